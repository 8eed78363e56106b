"""Predicted peak and step time against measured ones, for every family of the tests' zoo.

    OMP_NUM_THREADS=1 PYTHONPATH=.:tests:examples python benchmarks/prediction.py
        [--families NAME ...] [--output benchmarks/results/prediction.md]

Each model is measured once and planned at four budgets: plain training's peak, 70 % and
40 % of it, and the least. Peaks are those of the profiler's memory events over a whole step,
inputs included. Times are the thread's own, with one thread; steps of the plain model and of
all plans take turns, each the median of several. Predictions are also scaled by how far that of
plain training is off: that tells how well plans are told apart, whatever the machine does.

About four minutes on a quiet machine; what is done is written after every family. Exits with 1
unless the median error of the predicted time is at most a tenth and every measured peak within its
budget.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

import chainstay
from benchmarks.training import keep_memory, machine
from chainstay import InfeasibleBudgetError
from chainstay.fitting.measured import measure_model
from chainstay.fitting.planner import PlannerSettings
from chainstay.runtime import trace_memory
from chainstay.runtime.measures.measured import Measurement
from zoo import FAMILIES, Sample, build, loss_of

BUDGETS: Final = ("100%", "70%", "40%", "least")
STEPS: Final = 9
LEAST_STEPS: Final = 5
SECONDS: Final = 10.0
"""For the steps of one family, beyond the least number of them."""
GOAL: Final = 0.1


@dataclass(frozen=True)
class Row:
    """One model at one budget; sizes in bytes, times in ns.

    Attributes:
        family: Of the zoo.
        label: Of the budget.
        solution: What is predicted.
        peak: Measured.
        time: Likewise.
        plain: Predicted and measured time of plain training.
    """

    family: str
    label: str
    solution: chainstay.Solution
    peak: int
    time: int
    plain: tuple[int, int]

    @property
    def peak_ratio(self) -> float:
        """Predicted by measured."""
        return self.solution.peak_bytes / self.peak

    @property
    def time_ratio(self) -> float:
        """Predicted by measured."""
        return int(self.solution.makespan) / self.time

    @property
    def scaled_ratio(self) -> float:
        """The same, as if plain training were predicted as measured."""
        predicted, measured = self.plain
        return self.time_ratio * measured / predicted

    def __str__(self) -> str:
        return (
            f"| {self.family} | {self.label} | {self.solution.budget / 1024:,.0f} "
            f"| {self.solution.peak_bytes / 1024:,.0f} | {self.peak / 1024:,.0f} "
            f"| {self.peak_ratio:.3f} | {int(self.solution.makespan) / 1e6:.2f} "
            f"| {self.time / 1e6:.2f} | {self.time_ratio:.3f} | {self.scaled_ratio:.3f} |"
        )


def main() -> int:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--repeats", type=int, default=5, help="as for chainstay.fit")
    parser.add_argument("--output", type=Path, help="where to write the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    warnings.simplefilter("ignore")
    rows = []
    for family in options.families:
        for row in rows_of(family, options.repeats):
            print(row, flush=True)
            rows.append(row)
        if options.output is not None:
            options.output.write_text("\n".join(_report(rows)) + "\n", encoding="utf-8")
    print("\n".join(_report(rows)))
    return not _is_good(rows)


def rows_of(family: str, repeats: int) -> Iterator[Row]:
    """One per budget."""
    sample = build(family)
    for parameter in sample.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    settings = PlannerSettings(loss=loss_of, repeats=repeats)
    measured = measure_model(sample.model, sample.args, sample.kwargs, settings)
    solutions = {label: _solution(measured.costs, label) for label in BUDGETS}
    forwards: dict[str, Callable[..., Any]] = {
        label: measured.forward(measured.planned(each)) for label, each in solutions.items()
    }
    forwards["plain"] = sample.model
    steps = {label: partial(_step, forward, sample) for label, forward in forwards.items()}
    times = _median_times(steps)
    plain = (int(solutions["100%"].makespan), times.pop("plain"))
    for label, nanoseconds in times.items():
        peak = _peak(steps[label], sample)
        yield Row(family, label, solutions[label], peak, nanoseconds, plain)


def _solution(measured: Measurement, label: str) -> chainstay.Solution:
    """At this budget, or at the least one where that is less."""
    try:
        return chainstay.solve_measured(measured, 1 if label == "least" else label)
    except InfeasibleBudgetError as error:
        return chainstay.solve_measured(measured, error.required)


def _step(forward: Callable[..., Any], sample: Sample) -> None:
    output = forward(*sample.args, **sample.kwargs)  # held until the step ends, as mostly
    loss_of(output).backward()


def _peak(step: Callable[[], None], sample: Sample) -> int:
    trace = trace_memory(step, "cpu")
    inputs = {id(leaf): leaf for leaf in tree_leaves((sample.args, sample.kwargs))}
    sizes = (leaf.nbytes for leaf in inputs.values() if isinstance(leaf, torch.Tensor))
    return trace.peak_bytes + sum(sizes)


def _median_times(steps: Mapping[str, Callable[[], None]]) -> dict[str, int]:
    """Of steps that take turns, in ns, each behind one of its own kind, as in a training loop."""
    runs: dict[str, list[int]] = {label: [] for label in steps}
    begin = time.monotonic()
    for turn in range(STEPS + 1):
        if turn > LEAST_STEPS and time.monotonic() - begin > SECONDS:
            break
        for label, step in steps.items():
            step()
            start = time.thread_time_ns()
            step()
            if turn > 0:  # the first one warms up
                runs[label].append(time.thread_time_ns() - start)
    return {label: int(statistics.median(times)) for label, times in runs.items()}


def _is_good(rows: list[Row]) -> bool:
    errors = [abs(row.time_ratio - 1) for row in rows]
    within = all(row.peak <= row.solution.budget for row in rows)
    return within and statistics.median(errors) <= GOAL


def _report(rows: list[Row]) -> Iterator[str]:
    within = sum(row.peak <= row.solution.budget for row in rows)
    covered = sum(row.peak <= row.solution.peak_bytes for row in rows)
    close = sum(row.peak_ratio <= 1.1 for row in rows)
    times = sorted(row.time_ratio for row in rows)
    yield "# Predicted against measured"
    yield ""
    yield f"`{' '.join(['python', *sys.argv])}` on {machine(torch.device('cpu'))},"
    yield f"load {os.getloadavg()[0]:.1f}."
    yield ""
    yield f"- measured peak within the budget: {within} of {len(rows)}"
    yield f"- measured peak within the predicted one: {covered} of {len(rows)}"
    yield f"- predicted peak at most a tenth too high: {close} of {len(rows)}, median "
    yield f"  {statistics.median(row.peak_ratio for row in rows):.3f}"
    yield f"- predicted by measured step time: median {statistics.median(times):.3f}, from"
    yield f"  {times[0]:.2f} to {times[-1]:.2f}; median error {_median_error(times):.1%};"
    yield f"  with plain training scaled, {_median_error([r.scaled_ratio for r in rows]):.1%}"
    yield ""
    yield f"Verdict: {'met' if _is_good(rows) else 'missed'} over {len(rows)} schedules."
    yield ""
    yield (
        "| model | at | KiB | predicted | measured | ratio | ms, predicted | measured | ratio "
        "| scaled |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    yield from map(str, rows)


def _median_error(ratios: list[float]) -> float:
    return statistics.median(abs(ratio - 1) for ratio in ratios)


if __name__ == "__main__":
    sys.exit(main())
