"""Verification at a terminal: check instances, show a summary, report a contradiction."""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from chainstay.cli.exit_codes import ExitCode
from chainstay.cli.terminal import new_table, print_result, print_table, progress_bar, spinner
from chainstay.files import write_text
from chainstay.verify import SUITES, Check, Tally

__all__ = ["verify_methods"]

_CHECKS_WORTH_A_PROCESS: Final = 100
"""Number of checks that take about as long as a process takes to start."""

_METHOD_WIDTH: Final = 18
"""Width of the column of methods in a terminal of 80 columns."""


def verify_methods(  # noqa: PLR0913  # as many settings as the command has
    problem: str,
    numbers: range,
    *,
    seed: int,
    seconds: float | None,
    workers: int,
    output: Path,
    as_json: bool,
) -> ExitCode:
    """Check instances until two methods disagree, all are checked, or time is up."""
    useful = 1 + len(numbers) // _CHECKS_WORTH_A_PROCESS
    run = _Verification(
        problem, seed, workers=min(workers or os.cpu_count() or 1, useful), as_json=as_json
    )
    try:
        failed = run.until(numbers, seconds)
    except KeyboardInterrupt:
        run.show("Interrupted")
        return ExitCode.INTERRUPTED
    run.show("No contradiction" if failed is None else "Contradiction")
    if failed is None:
        return ExitCode.DONE
    run.report(failed, output)
    return ExitCode.FAILED


class _Verification:
    """One run of `verify` at a terminal."""

    def __init__(self, problem: str, seed: int, *, workers: int, as_json: bool) -> None:
        self.problem = problem
        self.suite = SUITES[problem]
        self.seed = seed
        self.workers = workers
        self.as_json = as_json
        self.tallies = {tested.name: Tally() for tested in self.suite.methods}
        self.done = 0
        self.start = time.monotonic()

    def until(self, numbers: range, seconds: float | None) -> Check | None:
        """Check `numbers` until a contradiction, which is returned, or until time is up."""
        with progress_bar("checking", len(numbers)) as step:
            for result in self._timely(numbers, seconds):
                for answer in result.answers:
                    self.tallies[answer.tested.name].add(answer)
                self.done += 1
                step("checking")
                if result.reason:
                    return result
        return None

    def _timely(self, numbers: range, seconds: float | None) -> Iterator[Check]:
        """Yield the checks that start before `seconds` have passed."""
        timely = itertools.takewhile(
            lambda _: seconds is None or time.monotonic() < self.start + seconds, numbers
        )
        return self.suite.checks(timely, seed=self.seed, workers=self.workers)

    def show(self, outcome: str) -> None:
        """Print the summary."""
        seconds = time.monotonic() - self.start
        title = f"{outcome}: {self.done} {self.suite.noun} of seed {self.seed} in {seconds:.1f} s"
        if self.as_json:
            sys.stdout.write(json.dumps(self._document(outcome, seconds)) + "\n")
            return
        table = new_table(title)
        table.add_column("method", min_width=_METHOD_WIDTH)
        table.add_column("run on")
        for heading in ("number", "optimal", "no fit", "gap", "time"):
            table.add_column(heading, justify="right", no_wrap=True)
        for tested in self.suite.methods:
            tally = self.tallies[tested.name]
            table.add_row(
                tested.name,
                tested.sampling,
                str(tally.instances),
                str(tally.optimal),
                str(tally.infeasible),
                f"{tally.worst_gap:.2%}",
                f"{tally.seconds:.1f} s",
            )
        print_table(table)

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

    def report(self, result: Check, folder: Path) -> None:
        """Minimise the contradiction, write it to a file and print its path."""
        with spinner("minimising"):
            small = self.suite.minimised(result)
        path = folder / f"counter-example-{self.problem}-{self.seed}-{result.number}.json"
        folder.mkdir(parents=True, exist_ok=True)
        write_text(path, small.counter_example(seed=self.seed))
        if not self.as_json:
            print_result(f"Instance {result.number}: {result.reason}")
            print_result(f"Minimised to {small.problem.stages} stages: {path}")
