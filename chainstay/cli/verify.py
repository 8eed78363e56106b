"""``chainstay verify``: every method against the others, here and now."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from chainstay.cli.options import Json

__all__ = ["EXAMPLES", "verify"]

EXAMPLES: Final = """\b
Examples:
  chainstay verify --instances 1000 --seed 7
  chainstay verify --problem hybrid --seconds 60
"""


class Problem(StrEnum):
    """What `verify` can be asked about."""

    CHAIN = "chain"
    JOIN = "join"
    OFFLOAD = "offload"
    HYBRID = "hybrid"


def verify(  # noqa: PLR0913  # options of a command line, all by name
    *,
    problem: Annotated[Problem, typer.Option(help="Which kind of instances.")] = Problem.CHAIN,
    instances: Annotated[int, typer.Option(min=1, help="How many to check.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the random instances.")] = 0,
    first: Annotated[int, typer.Option(min=0, help="Number of the first one.")] = 0,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Stop after so long.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0 for one a core.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for a counter-example.")] = Path(),
    json: Json = False,
) -> None:
    """Check every method against the others and the simulator on random instances.

    Ends with status 1 and a minimised counter-example in a file if two of them disagree.
    """
    from chainstay.cli.verifying import verified

    ending = verified(
        problem,
        range(first, first + instances),
        seed=seed,
        seconds=seconds,
        workers=workers,
        output=output,
        json=json,
    )
    if ending:
        raise typer.Exit(ending)
