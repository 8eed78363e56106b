"""At equal measured peak: a planned step against ``torch.utils.checkpoint.checkpoint_sequential``.

    OMP_NUM_THREADS=1 PYTHONPATH=.:examples python benchmarks/sequential.py [--only GPT-2]

For every network, checkpoint_sequential runs at every segment count; of those that no other count
beats in memory and in time at once, two plans are run. One has the measured peak as its budget,
which its own measured peak then stays below. The other is that of the largest budget, up to a few
percent more, whose *measured* peak is no more than checkpoint_sequential's. Peaks are the
profiler's memory events, the sample included.
Times are the thread's own, the steps run in turns; a ratio below 1 means that the plan is faster.

Prints what it writes to ``benchmarks/results/sequential.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
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
    machine,
    mebibytes,
    peak_bytes,
    smallest_and_fastest,
)
from chainstay import DP, InfeasibleBudgetError, Solution, measure, solve_measured
from chainstay.runtime import MeasuredChain

RESULTS: Final = Path(__file__).parent / "results" / "sequential.md"
METHOD: Final = DP(discards="free")
MOST_ROWS: Final = 3
EXCESSES: Final = (0.06, 0.04, 0.02, 0.01, 0.0)
"""By which the budget of a plan of equal measured peak may exceed it."""
COLUMNS: Final = (
    "network",
    "segments",
    "its peak",
    "its step",
    "plain step",
    "budget = its peak: peak",
    "step",
    "least / least",
    "equal peak: budget",
    "peak",
    "step",
    "predicted",
    "least / least",
    "median / median",
)


def main() -> None:
    """Run, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9, help="timed steps of each kind")
    parser.add_argument("--only", help="one network; nothing is stored")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# Planned steps against checkpoint_sequential at equal measured peak",
        "",
        f"`{' '.join(['python', *sys.argv])}` on {machine(torch.device('cpu'))}.",
        "",
        *heading(*COLUMNS),
    ]
    print("\n".join(lines))
    for task in tasks_on_cpu():
        if options.only in (None, task.name):
            for line in _rows(task, options.rounds):
                print(line, flush=True)
                lines.append(line)
    if options.only is None:
        RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _rows(task: Task, rounds: int) -> Iterator[str]:
    task.prepare()
    measured = measure(task.model, task.sample, loss=task.loss, repeats=5)
    ways = smallest_and_fastest(checkpointed_ways(task, 3))
    step = max(1, -(-(len(ways) - 1) // (MOST_ROWS - 1)))
    chosen = {way.segments: way for way in (*ways[::step], ways[-1])}
    for way in chosen.values():
        yield _row(task, measured, way, rounds)


def _row(task: Task, measured: MeasuredChain, way: Way, rounds: int) -> str:
    theirs = (task.name, str(way.segments), mebibytes(way.peak_bytes))
    equal = _equal_plan(task, measured, way.peak_bytes)
    if isinstance(equal, InfeasibleBudgetError):
        least = mebibytes(equal.required)
        return cells(*theirs, "", "", f"predicted to need {least}", *[""] * 8)
    solution, equally_planned, equal_peak = equal
    forwards: dict[str, Forward] = {
        "plain": task.model,
        "its": way.forward,
        "equal": equally_planned,
    }
    within = ("", "infeasible", "")
    try:
        planned = measured.planned(solve_measured(measured, way.peak_bytes, METHOD))
    except InfeasibleBudgetError:
        times = interleaved_times(task, forwards, rounds)
    else:
        times = interleaved_times(task, forwards | {"within": planned}, rounds)
        ratio = times["within"].least / times["its"].least
        within = (
            mebibytes(peak_bytes(task, planned)),
            _milliseconds(times["within"]),
            f"{ratio:.3f}",
        )
    return cells(
        *theirs,
        _milliseconds(times["its"]),
        _milliseconds(times["plain"]),
        *within,
        mebibytes(solution.budget),
        mebibytes(equal_peak),
        _milliseconds(times["equal"]),
        f"{solution.makespan / 1e6:.1f} ms",
        f"{times['equal'].least / times['its'].least:.3f}",
        f"{times['equal'].median / times['its'].median:.3f}",
    )


def _equal_plan(
    task: Task, measured: MeasuredChain, peak: int
) -> tuple[Solution, Forward, int] | InfeasibleBudgetError:
    """The plan of the largest budget tried whose measured peak is at most `peak`."""
    for excess in EXCESSES:
        try:
            solution = solve_measured(measured, int(peak * (1 + excess)), METHOD)
        except InfeasibleBudgetError as infeasible:
            return infeasible
        planned = measured.planned(solution)
        own_peak = peak_bytes(task, planned)
        if own_peak <= peak:
            return solution, planned, own_peak
    raise AssertionError("a plan needs more than its budget")


def _milliseconds(times: Times) -> str:
    return f"{times.least / 1e6:.1f} ms"


if __name__ == "__main__":
    main()
