"""Throughput against memory for real models: what each way to save memory costs.

    OMP_NUM_THREADS=1 PYTHONPATH=.:examples python benchmarks/frontier.py
    OMP_NUM_THREADS=1 PYTHONPATH=.:examples python benchmarks/frontier.py --measure

Each network is measured. For budgets between the least feasible one and what plain training
needs, a plan is made for each way: recomputing only, offloading only, and both; beside them
stand plain training and ``checkpoint_sequential`` with every number of segments (where the
model is a Sequential). Times and peaks are those of the referees; with ``--measure`` each plan
is run too, by the clock on the wall, for waiting counts.

On CUDA the link is the real one. On the CPU it is the runtime's double: threads that copy at
the pace of a link which moves all that a step saves in as long as the step computes, so that
neither way is for nothing. Copies compete with the computation for one memory bus there.

Goals: whole transfers within 5 % of the fractional optimum on average; steps within 10 % of
the plan; peaks within the budget.

Writes ``benchmarks/results/frontier/*.png`` and ``benchmarks/results/frontier.md``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Final

import torch
from matplotlib.figure import Figure
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from benchmarks.frontier_networks import Subject, trainings
from benchmarks.training import cells, heading, machine
from chainstay import Link, measure_link, solve_measured, solve_offload
from chainstay.baselines.segments import every_segment_count
from chainstay.errors import ChainstayError, InfeasibleBudgetError
from chainstay.fitting.combining import solve_combined
from chainstay.offloading import OffloadSolution
from chainstay.runtime import trace_memory
from chainstay.runtime.transfers import engine_for, program_of, transfers_of
from chainstay.solution import Solution
from chainstay.solve.hybrid import Pofo, solve_hybrid
from chainstay.validation.simulate import simulate

RESULTS: Final = Path(__file__).parent / "results"
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


@dataclass(frozen=True, kw_only=True)
class Point:
    """One plan, and how its step went.

    Attributes:
        way: A key of `COLORS`.
        planned_peak: Bytes.
        planned_time: Of a step, in ns.
        budget: Bytes; 0 for what nobody planned.
        host_bytes: In host memory.
        segments: Of ``checkpoint_sequential``.
        solution: The plan, if there is one.
        measured_peak: Bytes; 0 if it was not run.
        measured_time: Of a step, in ns.
    """

    way: str
    planned_peak: int
    planned_time: float
    budget: int = 0
    host_bytes: int = 0
    segments: int = 0
    solution: Solution | None = None
    measured_peak: int = 0
    measured_time: float = 0.0


@dataclass(frozen=True)
class Frontier:
    """All plans of one network; and, over its budgets, whole plans against fractional ones."""

    subject: Subject
    points: tuple[Point, ...]
    shortages: tuple[float, ...]


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
    shortages: list[float] = []
    for share in SHARES:
        budget = least + int((plain.peak_bytes - least) * share)
        points += planned(subject, link, budget)
        shortages += shortage(subject, link, budget)
    if repeats:
        points = [_run(subject, link, point, repeats) for point in points]
    return Frontier(subject, tuple(points), tuple(shortages))


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
    for way, solve in SOLVERS.items():
        try:
            solution = solve(subject, link, budget)
        except ChainstayError:
            continue
        host = solution.host_bytes if isinstance(solution, OffloadSolution) else 0
        yield Point(
            way=way,
            budget=budget,
            planned_peak=solution.peak_bytes,
            planned_time=float(solution.makespan),
            host_bytes=host,
            solution=solution,
        )


def _offload(subject: Subject, link: Link, budget: int) -> Solution:
    costs = subject.costs
    solution = solve_offload(costs.offload_profile, budget, link=link, method="heuristics")
    schedule = program_of(solution)
    plan = transfers_of(schedule, costs.profile, budget, costs.overheads_for(schedule))
    return replace(solution, peak_bytes=plan.peak_bytes)


SOLVERS: Final[dict[str, Callable[[Subject, Link, int], Solution]]] = {
    "recompute": lambda subject, _, budget: solve_measured(subject.costs, budget),
    "offload": _offload,
    "combined": lambda subject, link, budget: solve_combined(subject.costs, budget, link=link),
}


def shortage(subject: Subject, link: Link, budget: int) -> Iterator[float]:
    """By how much whole transfers take longer than the best known plan of partial ones."""
    profile = subject.costs.movable_profile
    slots = max(40, min(100, 2400 // len(profile)))
    there = Link(bandwidth=link.bandwidth)  # fractional transfers know no latency
    try:
        solution = solve_hybrid(profile, budget, link=there, method=Pofo(slots=slots, tries=100))
    except ChainstayError:
        return
    if solution.fractional_makespan:
        yield float(solution.makespan / solution.fractional_makespan) - 1


def _run(subject: Subject, link: Link, point: Point, repeats: int) -> Point:
    """Run it: peak by the allocator's own account, the least time by the clock on the wall."""
    device = subject.costs.chain.device
    engine = engine_for(device, link=link)
    model = subject.training.model
    if point.solution is not None:
        step = subject.step_by(point.solution, engine)
    elif point.segments and isinstance(model, nn.Sequential):
        step = subject.step_of(
            lambda sample: checkpoint_sequential(model, point.segments, sample, use_reentrant=False)
        )
    else:
        step = subject.step_of(model)
    step()
    peak = trace_memory(step, device).peak_bytes + subject.training.given_bytes
    times = []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        begin = time.perf_counter_ns()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter_ns() - begin)
    engine.close()
    return replace(point, measured_peak=peak, measured_time=min(times))


def draw(result: Frontier, path: Path) -> None:
    """Throughput against memory, the legend below."""
    figure = Figure(figsize=(7.2, 4.8), layout="constrained", dpi=130)
    axes = figure.subplots()
    samples = result.subject.training.samples
    for way, color in COLORS.items():
        points = sorted(
            (each for each in result.points if each.way == way), key=lambda each: each.planned_peak
        )
        if not points:
            continue
        is_line = way in SOLVERS
        axes.plot(
            [each.planned_peak / MEBIBYTE for each in points],
            [samples / each.planned_time * 1e9 for each in points],
            "o-" if is_line else ("*" if way == "keep all" else "s"),
            color=color,
            markersize=12 if way == "keep all" else 5,
            linewidth=1.5,
            label=way,
            zorder=3 if way == "combined" else 2,
            alpha=0.9,
        )
        run = [each for each in points if each.measured_time]
        axes.plot(
            [each.measured_peak / MEBIBYTE for each in run],
            [samples / each.measured_time * 1e9 for each in run],
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
    base = result.points[0].measured_time / plain
    for each in result.points:
        is_run = each.measured_time > 0
        yield cells(
            result.subject.training.name,
            each.way + (f" ({each.segments})" if each.segments else ""),
            _mebibytes(each.budget),
            _mebibytes(each.planned_peak),
            _mebibytes(each.host_bytes),
            f"{samples / each.planned_time * 1e9:.1f}",
            f"{plain / each.planned_time:.1%}",
            _mebibytes(each.measured_peak),
            f"{each.measured_time / each.planned_time / base:.2f}" if is_run else "",
        )


def _mebibytes(size: int) -> str:
    return f"{size / MEBIBYTE:.2f}" if size else ""


def summary(results: list[Frontier]) -> Iterator[str]:
    """The goals, with figures."""
    shortages = [each for result in results for each in result.shortages]
    if shortages:
        yield (
            f"Whole transfers above the best plan known of partial ones, {len(shortages)} "
            f"problems: mean {fmean(shortages):.2%}, worst {max(shortages):.2%}."
        )
    ratios, over = [], 0
    for result in results:
        base = result.points[0].measured_time / result.points[0].planned_time
        for each in result.points:
            if each.measured_time and each.solution is not None:
                ratios.append(each.measured_time / each.planned_time / base)
                over += each.measured_peak > each.budget
    if ratios:
        near = sum(abs(ratio - 1) <= 0.1 for ratio in ratios)
        yield (
            f"Steps against plans, both in times of plain training, {len(ratios)} plans: within "
            f"10 % {near}, mean {fmean(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}; "
            f"peaks above the budget: {over}."
        )


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--measure", action="store_true", help="run every plan, too")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of stages and steps")
    parser.add_argument("--networks", nargs="*", help="names; by default all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(chosen.device)
    results = []
    for training in trainings(device):
        if chosen.networks and training.name not in chosen.networks:
            continue
        for parameter in training.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        subject = training.measured(chosen.repeats)
        result = frontier(subject, chosen.repeats if chosen.measure else 0)
        draw(result, RESULTS / "frontier" / f"{training.name.lower()}.png")
        results.append(result)
        sys.stdout.write(f"{training.name} done\n")
    lines = [f"# Throughput against memory\n\n{machine(device)}\n", *summary(results), ""]
    lines += heading(*COLUMNS)
    lines += [row for result in results for row in rows(result)]
    text = "\n".join(lines) + "\n"
    (RESULTS / "frontier.md").write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
