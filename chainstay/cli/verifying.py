"""The work behind ``chainstay verify``."""

from __future__ import annotations

import itertools
import json as documents
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chainstay.cli.endings import Ending
from chainstay.cli.terminal import bar, busy, plain_table, say, show
from chainstay.files import write_text
from chainstay.verify import Tally
from chainstay.verify.campaigns import CAMPAIGNS, Result

__all__ = ["verified"]

_CHECKS_WORTH_A_PROCESS: Final = 100
"""They take about as long as a process takes to start."""

_METHOD_WIDTH: Final = 18
"""For its longest words in a terminal of 80 columns."""


def verified(  # noqa: PLR0913  # as many settings as the command has
    problem: str,
    numbers: range,
    *,
    seed: int,
    seconds: float | None,
    workers: int,
    output: Path,
    json: bool,
) -> Ending:
    """Check instances until two methods disagree, all are checked, or time is up."""
    useful = 1 + len(numbers) // _CHECKS_WORTH_A_PROCESS
    run = _Run(problem, seed, workers=min(workers or os.cpu_count() or 1, useful), json=json)
    try:
        failed = run.until(numbers, seconds)
    except KeyboardInterrupt:
        run.show("Interrupted")
        return Ending.INTERRUPTED
    run.show("No contradiction" if failed is None else "Contradiction")
    if failed is None:
        return Ending.DONE
    run.report(failed, output)
    return Ending.FAILED


class _Run:
    """One run of `verify` at a terminal."""

    def __init__(self, problem: str, seed: int, *, workers: int, json: bool) -> None:
        self.problem = problem
        self.campaign = CAMPAIGNS[problem]
        self.seed = seed
        self.workers = workers
        self.json = json
        self.tallies = {contestant.name: Tally() for contestant in self.campaign.contestants}
        self.done = 0
        self.start = time.monotonic()

    def until(self, numbers: range, seconds: float | None) -> Result | None:
        """Check `numbers` until a contradiction, which is returned, or until time is up."""
        with bar("checking", len(numbers)) as step:
            for result in self._timely(numbers, seconds):
                for name, answer in result.answers:
                    self.tallies[name].add(answer)
                self.done += 1
                step("checking")
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
        if self.json:
            sys.stdout.write(documents.dumps(self._document(outcome, seconds)) + "\n")
            return
        table = plain_table(title)
        table.add_column("method", min_width=_METHOD_WIDTH)
        table.add_column("asked")
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
        show(table)

    def _document(self, outcome: str, seconds: float) -> dict[str, object]:
        methods = {
            name: {
                "number": tally.instances,
                "optimal": tally.optimal,
                "infeasible": tally.infeasible,
                "worst_gap": tally.worst_gap,
                "seconds": tally.seconds,
            }
            for name, tally in self.tallies.items()
        }
        return {
            "outcome": outcome,
            "problem": str(self.problem),
            "seed": self.seed,
            "checked": self.done,
            "seconds": seconds,
            "methods": methods,
        }

    def report(self, result: Result, folder: Path) -> None:
        """Minimise the contradiction, write it down and say where."""
        with busy("minimising"):
            text, stages = result.report()
        path = folder / f"counter-example-{self.problem}-{self.seed}-{result.number}.json"
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
        if not self.json:
            say(f"Instance {result.number}: {result.reason}")
            say(f"Minimised to {stages} stages: {path}")
