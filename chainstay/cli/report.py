"""``chainstay report``: a plan to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

__all__ = ["EXAMPLES", "report"]

EXAMPLES: Final = """\b
Examples:
  chainstay report plan.json -o plan.html
  chainstay report plan.json --png memory.png --trace plan.trace.json
The page needs no network; open the trace at https://ui.perfetto.dev or chrome://tracing.
"""


def report(  # noqa: PLR0913  # options of a command line, all by name
    plan: Annotated[Path, typer.Argument(metavar="FILE", help="By chainstay plan.")],
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="HTML page to write; FILE.html if no other is asked for."
        ),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="Picture to write.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Picture to write.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Chrome trace to write.")] = None,
    title: Annotated[str | None, typer.Option(help="Of page and pictures.")] = None,
) -> None:
    """Show a plan: memory over time, the schedule, other budgets, the proof, the stages."""
    from chainstay.cli.reporting import reported

    reported(plan, output=output, pictures=(png, svg), trace_file=trace, title=title)
