"""``chainstay verify``: every method against the others, on random instances."""

from __future__ import annotations

import itertools
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from chainstay.cli.exit_codes import ExitCode
from chainstay.cli.options import JsonOutput, flatten_options
from chainstay.cli.terminal import (
    new_table,
    print_document,
    print_note,
    print_result,
    print_table,
    progress_bar,
    spinner,
)
from chainstay.files import write_file

if TYPE_CHECKING:
    from chainstay.verify import Check, MethodUnderTest, Tally

EXAMPLES: Final = """\b
Examples:
  chainstay verify --instances 1000 --seed 7
  chainstay verify --problem hybrid --seconds 60
"""

_CHECKS_WORTH_A_PROCESS: Final = 100
"""Number of checks that take about as long as a process takes to start."""
_METHOD_WIDTH: Final = 18
"""Width of the column of methods in a terminal of 80 columns."""


ProblemKind = Literal["chain", "join", "offload", "hybrid"]
"""Kinds of problems that can be verified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """The instances that are checked, and where a counter-example goes."""

    problem: Annotated[ProblemKind, typer.Option(help="Kind of instances.")] = "chain"
    instances: Annotated[int, typer.Option(min=1, help="Number of instances to check.")] = 2000
    seed: Annotated[int, typer.Option(help="Seed of the random instances.")] = 0
    first: Annotated[int, typer.Option(min=0, help="Number of the first instance.")] = 0
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Stop after so many seconds.")] = (
        None
    )
    workers: Annotated[int, typer.Option(min=0, help="Processes; 0 for one a core.")] = 0
    output: Annotated[Path, typer.Option(help="Folder for a counter-example.")] = Path()


@flatten_options()
def verify(*, options: VerifyOptions, as_json: JsonOutput = False) -> None:
    """Check all methods against each other on random instances.

    The simulator replays every schedule. Ends with exit code 1 and a minimised counter-example
    in a file if two methods disagree.
    """
    run = _Verification(options, as_json=as_json)
    try:
        failed = run.until_contradiction()
    except KeyboardInterrupt:
        if run.done or as_json:
            run.show("Interrupted")
        else:
            print_note("Interrupted before the first instance was checked.")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    run.show("No contradiction" if failed is None else "Contradiction")
    if failed is not None:
        run.report(failed)
        raise typer.Exit(ExitCode.FAILED)


class _Verification:
    """One run of the command."""

    def __init__(self, options: VerifyOptions, *, as_json: bool) -> None:
        # Needs numpy, which --help must not load.
        from chainstay.dp.jit import COMPILING, is_compiled
        from chainstay.verify import SUITES, Tally

        if not is_compiled():
            print_note(f"chainstay: {COMPILING}")

        self.options = options
        self.suite = SUITES[options.problem]
        self.as_json = as_json
        self.tallies = {tested: Tally() for tested in self.suite.methods}
        self.done = 0
        self.start = time.monotonic()

    def until_contradiction(self) -> Check | None:
        """Check all instances until a contradiction, which is returned, or until time is up."""
        with progress_bar("checking", self.options.instances) as step:
            for check in self._checks():
                for answer in check.answers:
                    self.tallies[answer.tested].add(answer)
                self.done += 1
                step("checking")
                if check.reason:
                    return check
        return None

    def _checks(self) -> Iterator[Check]:
        """Yield the checks that start in time."""
        options = self.options
        useful = 1 + options.instances // _CHECKS_WORTH_A_PROCESS
        deadline = None if options.seconds is None else self.start + options.seconds
        timely = itertools.takewhile(
            lambda _: deadline is None or time.monotonic() < deadline,
            range(options.first, options.first + options.instances),
        )
        workers = min(options.workers or os.cpu_count() or 1, useful)
        return self.suite.checks(timely, seed=options.seed, workers=workers)

    def show(self, outcome: str) -> None:
        """Print the summary."""
        seconds, seed = time.monotonic() - self.start, self.options.seed
        if self.as_json:
            document = {
                "outcome": outcome,
                "problem": self.options.problem,
                "seed": seed,
                "checked": self.done,
                "seconds": seconds,
                "methods": [_document(*tallied) for tallied in self.tallies.items()],
            }
            print_document(json.dumps(document))
            return
        table = new_table(
            f"{outcome}: {self.done} {self.suite.noun} of seed {seed} in {seconds:.1f} s"
        )
        table.add_column("method", min_width=_METHOD_WIDTH)
        table.add_column("run on")
        for heading in ("number", "optimal", "no fit", "gap", "time"):
            table.add_column(heading, justify="right", no_wrap=True)
        for tested in self.suite.methods:
            tally = self.tallies[tested]
            counts = map(str, (tally.instances, tally.optimal, tally.infeasible))
            gap, spent = f"{tally.worst_gap:.2%}", f"{tally.seconds:.1f} s"
            table.add_row(tested.name, tested.sampling, *counts, gap, spent)
        print_table(table)

    def report(self, check: Check) -> None:
        """Minimise the contradiction, write it to a file and print its path."""
        folder, seed = self.options.output, self.options.seed
        with spinner("minimising"):
            small = self.suite.minimised(check)
        path = folder / f"counter-example-{self.options.problem}-{seed}-{check.number}.json"
        folder.mkdir(parents=True, exist_ok=True)
        write_file(path, small.counter_example(seed=seed))
        if not self.as_json:
            print_result(f"Instance {check.number}: {check.reason}")
            print_result(f"Minimised to {small.problem.stages} stages: {path}")


def _document(tested: MethodUnderTest, tally: Tally) -> dict[str, object]:
    counts = asdict(tally)
    number = counts.pop("instances")
    return {"method": tested.name, "run_on": tested.sampling, "number": number, **counts}
