"""The command line: ``chainstay verify`` checks every method against the others, here and now."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from chainstay.verify import Tally
from chainstay.verify.campaigns import CAMPAIGNS, Result

__all__ = ["app"]

_DISAGREEMENT: Final = 1
_INTERRUPTED: Final = 130
"""What shells report for a program that Ctrl-C ended."""
_CHECKS_WORTH_A_PROCESS: Final = 100
"""They take about as long as a process takes to start."""

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


class Problem(StrEnum):
    """What `verify` can be asked about."""

    CHAIN = "chain"
    JOIN = "join"
    OFFLOAD = "offload"
    HYBRID = "hybrid"


@app.callback()
def chainstay() -> None:
    """Train neural networks inside a memory budget, provably optimally."""


@app.command()
def verify(  # noqa: PLR0913 - options of a command line, all by name
    *,
    problem: Annotated[Problem, typer.Option(help="Which kind of instances.")] = Problem.CHAIN,
    instances: Annotated[int, typer.Option(min=1, help="How many to check.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the random instances.")] = 0,
    first: Annotated[int, typer.Option(min=0, help="Number of the first one.")] = 0,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Stop after so long.")] = None,
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0 for one a core.")] = 0,
    output: Annotated[Path, typer.Option(help="Folder for a counter-example.")] = Path(),
) -> None:
    """Check every method against the others and the simulator on random instances.

    Ends with status 1 and a minimised counter-example in a file if two of them disagree.
    """
    useful = 1 + instances // _CHECKS_WORTH_A_PROCESS
    run = _Run(problem, seed, Console(), workers=min(workers or os.cpu_count() or 1, useful))
    try:
        failed = run.until(range(first, first + instances), seconds)
    except KeyboardInterrupt:
        run.show("Interrupted")
        raise typer.Exit(_INTERRUPTED) from None
    run.show("No contradiction" if failed is None else "Contradiction")
    if failed is not None:
        run.report(failed, output)
        raise typer.Exit(_DISAGREEMENT)


class _Run:
    """One run of `verify` at a terminal."""

    def __init__(self, problem: Problem, seed: int, console: Console, *, workers: int) -> None:
        self.problem = problem
        self.campaign = CAMPAIGNS[problem]
        self.seed = seed
        self.console = console
        self.workers = workers
        self.tallies = {contestant.name: Tally() for contestant in self.campaign.contestants}
        self.done = 0
        self.start = time.monotonic()

    def until(self, numbers: range, seconds: float | None) -> Result | None:
        """Check `numbers` until a contradiction, which is returned, or until time is up."""
        columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console, transient=True) as progress:
            task = progress.add_task("checking", total=len(numbers))
            for result in self._timely(numbers, seconds):
                for name, answer in result.answers:
                    self.tallies[name].add(answer)
                self.done += 1
                progress.advance(task)
                if result.reason:
                    return result
        return None

    def _timely(self, numbers: range, seconds: float | None) -> Iterator[Result]:
        """The checks that start before `seconds` have passed."""
        timely = itertools.takewhile(
            lambda _: seconds is None or time.monotonic() < self.start + seconds, numbers
        )
        return self.campaign.results(timely, self.seed, self.workers)

    def show(self, outcome: str) -> None:
        """Print the summary."""
        seconds = time.monotonic() - self.start
        title = (
            f"{outcome}: {self.done} {self.campaign.noun} of seed {self.seed} in {seconds:.1f} s"
        )
        table = Table(
            title=title,
            title_justify="left",
            title_style="bold",
            box=SIMPLE_HEAD,
            padding=(0, 0, 0, 1),
            show_edge=False,
        )
        table.add_column("method")
        table.add_column("asked", no_wrap=True)
        for heading in ("number", "optimal", "no fit", "gap", "time"):
            table.add_column(heading, justify="right", no_wrap=True)
        for contestant in self.campaign.contestants:
            tally = self.tallies[contestant.name]
            table.add_row(
                contestant.name,
                contestant.plan,
                str(tally.instances),
                str(tally.optimal),
                str(tally.infeasible),
                f"{tally.worst_gap:.2%}",
                f"{tally.seconds:.1f} s",
            )
        self.console.print(table)

    def report(self, result: Result, folder: Path) -> None:
        """Minimise the contradiction, write it down and say where."""
        with self.console.status("minimising"):
            text, stages = result.report()
        path = folder / f"counter-example-{self.problem}-{self.seed}-{result.number}.json"
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.console.print(f"Instance {result.number}: {result.reason}", markup=False)
        self.console.print(f"Minimised to {stages} stages: {path}", markup=False)
