"""``chainstay report``: pages, images and traces of a plan."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from chainstay.cli.exit_codes import CommandLineError
from chainstay.cli.output_files import output_path, write_output
from chainstay.cli.terminal import print_result, spinner

if TYPE_CHECKING:
    from chainstay.plans import Plan

EXAMPLES: Final = """\b
Examples:
  chainstay report plan.json -o plan.html
  chainstay report plan.json --png memory.png --trace plan.trace.json
The page needs no network; open the trace at https://ui.perfetto.dev or chrome://tracing.
"""

_PAGE_SUFFIXES: Final = (".html", ".htm")


def report(  # noqa: PLR0913  # options of a command, all by name
    *,
    plan: Annotated[
        Path, typer.Argument(metavar="FILE", help="Plan file, written by chainstay plan.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="HTML page to write; FILE.html if no other file is asked for."
        ),
    ] = None,
    png: Annotated[Path | None, typer.Option(help="PNG image to write.")] = None,
    svg: Annotated[Path | None, typer.Option(help="SVG image to write.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Chrome trace to write; compressed as .json.gz.")
    ] = None,
    title: Annotated[str | None, typer.Option(help="Title of page and images.")] = None,
) -> None:
    """Show a plan: memory over time, schedule, proof and stages.

    Writes a page that loads nothing, with the least times of other budgets, too; or a picture or
    a trace.
    """
    # Needs numpy, which --help must not load.
    from chainstay.plans import load_plan

    if not (output or png or svg or trace):
        output = plan.with_suffix(".html")
    wanted: list[tuple[Path | None, tuple[str, ...], Callable[[Plan, str, Path], None]]] = [
        (output, _PAGE_SUFFIXES, _write_page),
        (png, (".png",), _write_image),
        (svg, (".svg",), _write_image),
        (trace, (".json", ".gz"), _write_trace),
    ]
    for file, suffixes, _ in wanted:
        _require_writable(file, suffixes, plan)
    loaded = load_plan(plan)
    heading = title or loaded.model or plan.name
    for file, _, write in wanted:
        if file is not None:
            with spinner(f"writing {file}"):
                write(loaded, heading, file)
            print_result(f"wrote {file}")


def _require_writable(file: Path | None, suffixes: tuple[str, ...], source: Path) -> None:
    if file is None:
        return
    output_path(file, file.name, as_json=True, source=str(source))
    if file.suffix.lower() not in suffixes:
        raise CommandLineError(
            f"{file} is to be written, and its name does not end with {' or '.join(suffixes)}; "
            "choose another name"
        )


def _replay_settings(plan: Plan) -> dict[str, Any]:
    """Return the settings of a replay."""
    return {"keep": plan.keep or None, "overheads": plan.overheads}


def _write_page(plan: Plan, title: str, file: Path) -> None:
    # Needs Bokeh, which is optional.
    from chainstay.report import page

    text = page(
        plan.solution,
        plan.profile,
        title=title,
        plain_time=plan.plain_time,
        plain_peak=plan.plain_peak,
        **_replay_settings(plan),
    )
    write_output(file, text)


def _write_trace(plan: Plan, title: str, file: Path) -> None:  # noqa: ARG001  # traces have none
    # Needs numpy, which --help must not load.
    from chainstay.report import trace

    events = trace(plan.solution, plan.profile, **_replay_settings(plan))
    content = json.dumps(events).encode()
    write_output(file, gzip.compress(content) if file.suffix.lower() == ".gz" else content)


def _write_image(plan: Plan, title: str, file: Path) -> None:
    # Needs matplotlib, which is slow to load.
    from chainstay.report.plan_image import picture

    content, kind = io.BytesIO(), file.suffix[1:].lower()
    picture(plan.solution, plan.profile, content, kind=kind, title=title, **_replay_settings(plan))
    write_output(file, content.getvalue())
