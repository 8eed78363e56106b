"""``chainstay verify``: every method against the others, on random instances."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from chainstay.cli.options import JsonOutput

__all__ = ["EXAMPLES", "verify"]

EXAMPLES: Final = """\b
Examples:
  chainstay verify --instances 1000 --seed 7
  chainstay verify --problem hybrid --seconds 60
"""


class ProblemKind(StrEnum):
    """Kinds of problems that can be verified."""

    CHAIN = "chain"
    JOIN = "join"
    OFFLOAD = "offload"
    HYBRID = "hybrid"


def verify(  # noqa: PLR0913  # options of a command line, all by name
    *,
    problem: Annotated[ProblemKind, typer.Option(help="Kind of instances.")] = ProblemKind.CHAIN,
    instances: Annotated[int, typer.Option(min=1, help="Number of instances to check.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of the random instances.")] = 0,
    first: Annotated[int, typer.Option(min=0, help="Number of the first instance.")] = 0,
    seconds: Annotated[
        float | None, typer.Option(min=0.0, help="Stop after so many seconds.")
    ] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0 for one a core.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for a counter-example.")] = Path(),
    as_json: JsonOutput = False,
) -> None:
    """Check every method against the others and the simulator on random instances.

    Ends with exit code 1 and a minimised counter-example in a file if two of them disagree.
    """
    # Needs numpy, which --help must not load.
    from chainstay.cli.verification import verify_methods

    exit_code = verify_methods(
        problem,
        range(first, first + instances),
        seed=seed,
        seconds=seconds,
        workers=workers,
        output=output,
        as_json=as_json,
    )
    if exit_code:
        raise typer.Exit(exit_code)
