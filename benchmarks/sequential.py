"""At equal measured peak: a planned step against ``torch.utils.checkpoint.checkpoint_sequential``.

    OMP_NUM_THREADS=1 PYTHONPATH=.:examples python benchmarks/sequential.py [--only GPT-2]
        [--output benchmarks/results/sequential.md]

For every network, checkpoint_sequential runs at every segment count. Of those that no other count
beats in memory and in time at once, up to three meet a plan: that of ``chainstay.fit`` for the
largest budget, up to a few percent above the measured peak, whose own *measured* peak is no more
than checkpoint_sequential's. Peaks are the profiler's memory events, the sample included. Times are
the thread's own, the steps run in turns, and the process keeps its memory. A ratio below 1 means
that the plan is faster; both the least steps and the median of the ratios of neighbours are shown.
A row is lost where both are above 1.02: between equal schedules they differ by as much.

About six minutes on a quiet machine. Exits with 1 if a row is lost.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Final

import torch

from benchmarks.networks import tasks_on_cpu
from benchmarks.training import (
    Forward,
    Task,
    Times,
    Way,
    cells,
    checkpointed_ways,
    heading,
    interleaved_times,
    keep_memory,
    machine,
    mebibytes,
    peak_bytes,
    smallest_and_fastest,
    twin,
)
from chainstay import InfeasibleBudgetError, Solution, fit
from chainstay.fitting.fitted import Fitted

MOST_ROWS: Final = 3
EXCESSES: Final = (0.06, 0.04, 0.02, 0.01, 0.0)
"""By which the budget of a plan of equal measured peak may exceed it."""
NOISE: Final = 1.02
COLUMNS: Final = (
    "network",
    "segments",
    "its peak",
    "its step",
    "plain step",
    "budget",
    "peak",
    "step",
    "predicted",
    "least / least",
    "median of ratios",
)


@dataclass(frozen=True)
class Row:
    """A plan beside a segment count of checkpoint_sequential; ``None`` where none fits.

    Attributes:
        network: By name.
        way: What checkpoint_sequential does.
        plan: At equal measured peak; or why there is none.
        times: Of ``"plain"``, ``"its"`` and ``"plan"``.
    """

    network: str
    way: Way
    plan: tuple[Solution, int] | InfeasibleBudgetError
    times: dict[str, Times]

    @property
    def ratios(self) -> tuple[float, float]:
        """Of least steps, and of neighbours."""
        plan, its = self.times["plan"], self.times["its"]
        return plan.least / its.least, plan.ratio_to(its)

    @property
    def is_lost(self) -> bool:
        """Whether checkpoint_sequential is faster, or fits where nothing was found."""
        return isinstance(self.plan, InfeasibleBudgetError) or min(self.ratios) > NOISE

    def __str__(self) -> str:
        theirs = (self.network, str(self.way.segments), mebibytes(self.way.peak_bytes))
        if isinstance(self.plan, InfeasibleBudgetError):
            return cells(*theirs, "", "", f"needs {mebibytes(self.plan.required)}", *[""] * 5)
        solution, peak = self.plan
        return cells(
            *theirs,
            _milliseconds(self.times["its"]),
            _milliseconds(self.times["plain"]),
            mebibytes(solution.budget),
            mebibytes(peak),
            _milliseconds(self.times["plan"]),
            f"{solution.makespan / 1e6:.1f} ms",
            *(f"{ratio:.3f}" for ratio in self.ratios),
        )


def main() -> int:
    """Run, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="most timed steps of each kind")
    parser.add_argument("--seconds", type=float, default=6, help="for each row's steps")
    parser.add_argument("--only", help="one network")
    parser.add_argument("--output", type=Path, help="where to write the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    lines = [
        "# Planned steps against checkpoint_sequential at equal measured peak",
        "",
        f"`{' '.join(['python', *sys.argv])}` on {machine(torch.device('cpu'))}.",
        f"The load is {os.getloadavg()[0]:.1f}.",
        "",
        *heading(*COLUMNS),
    ]
    print("\n".join(lines))
    rows: list[Row] = []
    for task in tasks_on_cpu():
        if options.only in (None, task.name):
            for row in _rows(task, options.rounds, options.seconds):
                print(row, flush=True)
                rows.append(row)
    lines += [*map(str, rows), "", _verdict(rows)]
    print(lines[-1])
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return any(row.is_lost for row in rows)


def _verdict(rows: list[Row]) -> str:
    lost = [f"{row.network} at {row.way.segments}" for row in rows if row.is_lost]
    usual = median(row.ratios[1] for row in rows if row.times)
    said = f"lost: {', '.join(lost)}" if lost else "never slower, beyond 2 % of noise"
    return f"Verdict over {len(rows)} rows: {said}; median of the ratios {usual:.3f}."


def _rows(task: Task, rounds: int, seconds: float) -> Iterator[Row]:
    task.prepare()
    ways = smallest_and_fastest(checkpointed_ways(task, 3))
    step = max(1, -(-(len(ways) - 1) // (MOST_ROWS - 1)))
    chosen = {way.segments: way for way in (*ways[::step], ways[-1])}
    with TemporaryDirectory() as cache:  # the network is measured once
        for way in chosen.values():
            equal = _equal_plan(task, cache, way.peak_bytes)
            if isinstance(equal, InfeasibleBudgetError):
                yield Row(task.name, way, equal, {})
                continue
            solution, planned, peak = equal
            forwards: dict[str, Forward] = {
                "plain": task.model,
                "its": way.forward,
                "plan": planned,
            }
            times = interleaved_times(task, forwards, rounds, seconds=seconds)
            yield Row(task.name, way, (solution, peak), times)


def _equal_plan(
    task: Task, cache: str, peak: int
) -> tuple[Solution, Forward, int] | InfeasibleBudgetError:
    """The plan of the largest budget tried whose measured peak is at most `peak`."""
    for excess in EXCESSES:
        model = twin(task.model)
        budget = int(peak * (1 + excess))
        try:
            fit(model, (task.sample,), budget=budget, loss=task.loss, cache=cache, progress=False)
        except InfeasibleBudgetError as infeasible:
            return infeasible
        own_peak = peak_bytes(task, model)
        if own_peak <= peak:
            assert isinstance(model.chainstay, Fitted)
            return model.chainstay.solution, model, own_peak
    raise AssertionError("a plan needs more than its budget")


def _milliseconds(times: Times) -> str:
    return f"{times.least / 1e6:.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
