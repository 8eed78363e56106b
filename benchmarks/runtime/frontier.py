"""Throughput against memory for real models: what each way to save memory costs.

    .venv/bin/python -m benchmarks.runtime.frontier [--measure] [--networks NAME ...]

Each network is measured. For budgets between the least feasible one and what plain training
needs, a plan is made for each way: recomputing only, offloading only, and both; beside them
stand plain training and ``checkpoint_sequential`` with every number of segments (where the
model is a Sequential). Times and peaks are those of the referees; with ``--measure`` each plan
is run too, in turns with plain steps, so that both meet the same machine. A step's time is what
its thread computes, and how long it waits for transfers.

On CUDA the link is the real one. On the CPU it is the runtime's double: threads that copy at
the pace of a link which moves all that a step saves in as long as the step computes, so that
neither way is for nothing. Copies compete with the computation for one memory bus there.

Goals: steps within 10 % of the plan; peaks within the budget. (How near whole transfers come to
fractional ones is what `benchmarks.solvers.hybrid_speed` tells.)

All seven networks take a few minutes.

Writes ``benchmarks/results/frontier/*.png`` and ``benchmarks/results/frontier.md``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Final, TypeAlias

import torch
from matplotlib.figure import Figure
from torch import nn

from benchmarks import RESULTS
from benchmarks.runtime.frontier_points import Point, Subject, run
from benchmarks.training import cells, heading, machine
from benchmarks.trainings import NETWORKS, training_of
from chainstay import Link, measure_link, solve_measured
from chainstay.baselines.segments import every_segment_count
from chainstay.errors import ChainstayError, InfeasibleBudgetError
from chainstay.fitting.strategies.combined import solve_combined
from chainstay.fitting.strategies.offloaded import solve_offloaded
from chainstay.problems.offload import OffloadSolution
from chainstay.solution import Solution
from chainstay.validation.simulate import simulate

SHARES: Final = (0.05, 0.16, 0.3, 0.48, 0.7)
"""Of the way from the least budget to what plain training needs."""
COLORS: Final = {
    "keep all": "#222222",
    "checkpoint_sequential": "#999999",
    "recompute": "#4477aa",
    "offload": "#228833",
    "combined": "#cc3311",
}
MEBIBYTE: Final = 2**20


@dataclass(frozen=True)
class Frontier:
    """All plans of one network.

    Attributes:
        subject: The network.
        points: Its plans, plain training first.
    """

    subject: Subject
    points: tuple[Point, ...]


def link_for(subject: Subject) -> Link:
    """The device's, or one that moves in a step's time what a step saves."""
    device = subject.costs.chain.device
    if device.type == "cuda":
        return measure_link(device)
    profile = subject.costs.movable_profile
    moved = sum(stage.saved_bytes for stage in profile.stages)
    return Link(
        bandwidth=Fraction(moved, profile.least_time).limit_denominator(10_000),
        latency=20_000,
    )


def frontier(subject: Subject, repeats: int) -> Frontier:
    """Everything about one network; steps are run `repeats` times if that is not 0."""
    link, costs = link_for(subject), subject.costs
    overheads = costs.overheads_for(subject.plain)
    plain = simulate(costs.profile, subject.plain, overheads=overheads)
    points = [
        Point(way="keep all", planned_peak=plain.peak_bytes, planned_time=plain.makespan),
        *segmented(subject),
    ]
    least = min(least_of_recomputing(subject), costs.offload_profile.required_bytes)
    for share in SHARES:
        budget = least + int((plain.peak_bytes - least) * share)
        points += planned(subject, link, budget)
    if repeats:
        points = [run(subject, link, point, repeats) for point in points]
    return Frontier(subject, tuple(points))


def least_of_recomputing(subject: Subject) -> int:
    """Bytes."""
    try:
        return solve_measured(subject.costs, 1).peak_bytes
    except InfeasibleBudgetError as refusal:
        return refusal.required


def segmented(subject: Subject) -> Iterator[Point]:
    """``checkpoint_sequential`` with every number of segments that no other beats."""
    if not isinstance(subject.training.model, nn.Sequential):
        return
    costs, fastest = subject.costs, float("inf")
    found = []
    for count, schedule in enumerate(every_segment_count(len(costs.profile)), 1):
        replay = simulate(costs.profile, schedule, overheads=costs.overheads_for(schedule))
        found.append((replay.peak_bytes, replay.makespan, count))
    for peak, makespan, count in sorted(found):
        if makespan < fastest and count > 1:
            fastest = makespan
            yield Point(
                way="checkpoint_sequential",
                planned_peak=peak,
                planned_time=makespan,
                segments=count,
            )


def planned(subject: Subject, link: Link, budget: int) -> Iterator[Point]:
    """The plan of each way for one budget, as far as there is one."""
    known: list[Solution] = []
    for way, solve in SOLVERS.items():
        try:
            solution = solve(subject, link, budget, known)
        except ChainstayError:
            continue
        known.append(solution)
        host = solution.host_bytes if isinstance(solution, OffloadSolution) else 0
        yield Point(
            way=way,
            budget=budget,
            planned_peak=solution.peak_bytes,
            planned_time=float(solution.makespan),
            host_bytes=host,
            solution=solution,
        )


def _recompute(subject: Subject, _: Link, budget: int, __: list[Solution]) -> Solution:
    return solve_measured(subject.costs, budget)


def _offload(subject: Subject, link: Link, budget: int, _: list[Solution]) -> Solution:
    return solve_offloaded(subject.costs, budget, link=link, method="heuristics")


def _combined(subject: Subject, link: Link, budget: int, known: list[Solution]) -> Solution:
    return solve_combined(subject.costs, budget, link=link, known=known)


Solver: TypeAlias = Callable[[Subject, Link, int, list[Solution]], Solution]
"""Its last argument: the solutions of those before it, for the same budget."""

SOLVERS: Final[dict[str, Solver]] = {
    "recompute": _recompute,
    "offload": _offload,
    "combined": _combined,
}


def draw(result: Frontier, path: Path) -> None:
    """Throughput against memory, the legend below."""
    figure = Figure(figsize=(7.2, 4.8), layout="constrained", dpi=130)
    axes = figure.subplots()
    samples, plain = result.subject.training.samples, result.points[0].planned_time
    for way, color in COLORS.items():
        points = sorted(
            (point for point in result.points if point.way == way),
            key=lambda point: point.planned_peak,
        )
        if not points:
            continue
        is_line = way in SOLVERS
        axes.plot(
            [point.planned_peak / MEBIBYTE for point in points],
            [samples / point.planned_time * 1e9 for point in points],
            "o-" if is_line else ("*" if way == "keep all" else "s"),
            color=color,
            markersize=12 if way == "keep all" else 5,
            linewidth=1.5,
            label=way,
            zorder=3 if way == "combined" else 2,
            alpha=0.9,
        )
        run = [point for point in points if point.measured_time]
        axes.plot(
            [point.measured_peak / MEBIBYTE for point in run],
            [samples / (point.measured_time / point.plain_time * plain) * 1e9 for point in run],
            "x",
            color=color,
            markersize=6,
            label=f"{way}, measured" if run else None,
        )
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.set_xlabel("peak memory of a step in MiB")
    axes.set_ylabel("samples per second")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    name, stages = result.subject.training.name, len(result.subject.costs.profile)
    axes.set_title(f"{name}, {samples} samples, {stages} stages", loc="left")
    count = len(axes.get_legend_handles_labels()[0])
    figure.legend(loc="outside lower center", ncols=4 if count == 4 else 3, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


COLUMNS: Final = (
    "network",
    "way",
    "budget MiB",
    "peak MiB",
    "host MiB",
    "samples/s",
    "of plain",
    "measured MiB",
    "step / plan",
)


def rows(result: Frontier) -> Iterator[str]:
    """One per plan."""
    samples, plain = result.subject.training.samples, result.points[0].planned_time
    for point in result.points:
        yield cells(
            result.subject.training.name,
            point.way + (f" ({point.segments})" if point.segments else ""),
            _mebibytes(point.budget),
            _mebibytes(point.planned_peak),
            _mebibytes(point.host_bytes),
            f"{samples / point.planned_time * 1e9:.1f}",
            f"{plain / point.planned_time:.1%}",
            _mebibytes(point.measured_peak),
            f"{point.against_plan(plain):.2f}" if point.measured_time else "",
        )


def _mebibytes(size: int) -> str:
    return f"{size / MEBIBYTE:.2f}" if size else ""


def summary(results: list[Frontier]) -> Iterator[str]:
    """The goals, with figures."""
    run = [
        (point, point.against_plan(result.points[0].planned_time))
        for result in results
        for point in result.points
        if point.measured_time and point.solution is not None
    ]
    for way in SOLVERS:
        ratios = [ratio for point, ratio in run if point.way == way]
        if ratios:
            yield (
                f"* Steps against plans, {way}, both in times of plain training, {len(ratios)} "
                f"plans: within 10 % {sum(abs(ratio - 1) <= 0.1 for ratio in ratios)}, mean "
                f"{fmean(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}."
            )
    if run:
        over = sum(point.measured_peak > point.budget for point, _ in run)
        yield f"* Peaks above the budget: {over} of {len(run)}."


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run every plan, too")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of stages and steps")
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(chosen.device)
    results = []
    for name in chosen.networks:
        begin = time.perf_counter()
        training = training_of(name, device)
        subject = Subject.measure(training, chosen.repeats)
        result = frontier(subject, chosen.repeats if chosen.measure else 0)
        draw(result, RESULTS / "frontier" / f"{training.name.lower()}.png")
        results.append(result)
        sys.stdout.write(
            f"{training.name}: {len(subject.costs.profile)} stages, {len(result.points)} points, "
            f"{time.perf_counter() - begin:.0f} s\n"
        )
        sys.stdout.flush()
    lines = [f"# Throughput against memory\n\n{machine(device)}\n", *summary(results), ""]
    lines += heading(*COLUMNS)
    lines += [row for result in results for row in rows(result)]
    text = "\n".join(lines) + "\n"
    (RESULTS / "frontier.md").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
