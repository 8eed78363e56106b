"""Predicted peak and step time against measured ones, for every family of the tests' zoo.

    PYTHONPATH=.:tests python benchmarks/prediction.py [--families NAME ...] [--repeats 5]

Each model is extracted, measured and planned at four budgets: plain training's peak, 70 % and
40 % of it, and the least. Peaks are those of the profiler's memory events over a whole step,
inputs included; times are thread time with one thread, the median of several steps. Other
jobs on the machine change times, peaks never.

Prints what it writes to ``benchmarks/results/prediction.md``.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils._pytree import tree_leaves

import chainstay
from chainstay import InfeasibleBudgetError, unfit
from chainstay.runtime import trace_memory
from zoo import FAMILIES, Sample, build, loss_of

RESULTS: Final = Path(__file__).parent / "results" / "prediction.md"
BUDGETS: Final = ("100%", "70%", "40%", "least")
STEPS: Final = 9


@dataclass(frozen=True)
class Row:
    """One model at one budget; sizes in bytes, times in ns."""

    family: str
    label: str
    budget: int
    predicted_peak: int
    measured_peak: int
    predicted_time: int
    measured_time: int

    @property
    def peak_ratio(self) -> float:
        """Predicted by measured."""
        return self.predicted_peak / self.measured_peak

    @property
    def time_ratio(self) -> float:
        """Predicted by measured."""
        return self.predicted_time / self.measured_time

    def __str__(self) -> str:
        return (
            f"| {self.family} | {self.label} | {self.budget / 1024:,.0f} "
            f"| {self.predicted_peak / 1024:,.0f} | {self.measured_peak / 1024:,.0f} "
            f"| {self.peak_ratio:.3f} | {self.predicted_time / 1e6:.2f} "
            f"| {self.measured_time / 1e6:.2f} | {self.time_ratio:.2f} |"
        )


def main() -> None:
    """Measure, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=list(FAMILIES))
    parser.add_argument("--repeats", type=int, default=5, help="as for chainstay.fit")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for family in options.families:
        for row in rows_of(family, options.repeats):
            print(row, flush=True)
            rows.append(row)
    text = "\n".join(_report(rows))
    print(text)
    if options.families == list(FAMILIES):
        RESULTS.write_text(text + "\n")


def rows_of(family: str, repeats: int) -> Iterator[Row]:
    """One per budget."""
    sample = build(family)
    for parameter in sample.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for label in BUDGETS:
        plan = _planned(sample, label, repeats)
        _step(sample)
        yield Row(
            family=family,
            label=label,
            budget=plan.budget,
            predicted_peak=plan.peak_bytes,
            measured_peak=_peak(sample),
            predicted_time=int(plan.makespan),
            measured_time=_median_time(lambda: _step(sample)),
        )
        unfit(sample.model)


def _planned(sample: Sample, label: str, repeats: int) -> chainstay.Solution:
    """The plan that the sample's model is fitted with; the least budget where `label` is less."""

    def fit(budget: int | str) -> chainstay.Solution:
        fitted: Any = chainstay.fit(
            sample.model, sample.args, sample.kwargs, budget=budget, loss=loss_of, repeats=repeats
        )
        solution: chainstay.Solution = fitted.chainstay.solution
        return solution

    try:
        return fit(1 if label == "least" else label)
    except InfeasibleBudgetError as error:
        return fit(error.required)


def _step(sample: Sample) -> None:
    output = sample()  # held until the step ends, as in most training loops
    loss_of(output).backward()


def _peak(sample: Sample) -> int:
    trace = trace_memory(lambda: _step(sample), "cpu")
    inputs = {id(leaf): leaf for leaf in tree_leaves((sample.args, sample.kwargs))}
    sizes = (leaf.nbytes for leaf in inputs.values() if isinstance(leaf, torch.Tensor))
    return trace.peak_bytes + sum(sizes)


def _median_time(function: Callable[[], None]) -> int:
    times = []
    for _ in range(STEPS):
        start = time.thread_time_ns()
        function()
        times.append(time.thread_time_ns() - start)
    return int(statistics.median(times))


def _report(rows: list[Row]) -> Iterator[str]:
    within = sum(row.measured_peak <= row.budget for row in rows)
    covered = sum(row.measured_peak <= row.predicted_peak for row in rows)
    close = sum(row.peak_ratio <= 1.1 for row in rows)
    times = sorted(row.time_ratio for row in rows)
    errors = [abs(ratio - 1) for ratio in times]
    yield "# Predicted against measured"
    yield ""
    yield (
        f"{platform.node()}, {platform.machine()}, {os.cpu_count()} cores, torch "
        f"{torch.__version__}, one thread, load {os.getloadavg()[1]:.1f}"
    )
    yield ""
    yield f"- measured peak within the budget: {within} of {len(rows)}"
    yield f"- measured peak within the predicted one: {covered} of {len(rows)}"
    yield f"- predicted peak at most a tenth too high: {close} of {len(rows)}, median "
    yield f"  {statistics.median(row.peak_ratio for row in rows):.3f}"
    yield f"- predicted by measured step time: median {statistics.median(times):.3f}, median"
    yield f"  error {statistics.median(errors):.1%}, from {times[0]:.2f} to {times[-1]:.2f}"
    yield ""
    yield "| model | at | KiB | predicted | measured | ratio | ms, predicted | measured | ratio |"
    yield "|---|---|---|---|---|---|---|---|---|"
    yield from map(str, rows)


if __name__ == "__main__":
    main()
