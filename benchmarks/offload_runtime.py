"""What plans with transfers promise and what steps take: the CPU double of the transfers' engine.

    OMP_NUM_THREADS=1 PYTHONPATH=.:examples python benchmarks/offload_runtime.py

Each network is measured. For several links, and budgets between the least feasible one and what
plain training needs, the best plans found run on threads that copy at the link's pace: those
that only offload, and those that recompute, too. A step's time is the least of several: what its
thread computes, and how long it waits for transfers; other work on the machine does not count.
It is run in turns with plain steps: the plan tells its time for stages as fast or slow as they
are then, beside a link that stays the same.

A step may be faster than its plan, in which a backward waits for its stage's input to come back
before it begins: it waits where it reads that, at its end as a rule. Copies compete with the
computation for one memory bus here, which no plan knows about; on a device they do not.

Goal: steps within 10 % of the plan, peaks within the budget.

Prints what it writes to ``benchmarks/results/offload_runtime.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Final, NamedTuple

import torch

from benchmarks.frontier import least_of_recomputing
from benchmarks.frontier_networks import Subject, Training, densenet, gpt, on_images
from benchmarks.frontier_points import Point, run
from benchmarks.training import cells, heading, machine, mebibytes
from chainstay import Link
from chainstay.errors import ChainstayError
from chainstay.fitting.combined import solve_combined
from chainstay.fitting.offloaded import solve_offloaded
from chainstay.problems.offload import OffloadSolution
from chainstay.runtime.execute.items import bounding_chain, standing_bytes
from chainstay.runtime.measures.measured import Measurement
from chainstay.runtime.transfer import program_of
from chainstay.validation.hybrid.simulate import simulate_hybrid
from models import resnet50

RESULTS: Final = Path(__file__).parent / "results" / "offload_runtime.md"
TENTHS: Final = (0, 1, 3, 6)
"""Of the way from the least budget to what plain training needs."""
WITHIN: Final = 0.1
COLUMNS: Final = (
    "network",
    "link",
    "way",
    "budget",
    "peak",
    "moved",
    "run again",
    "plan ms",
    "step ms",
    "step / plan",
    "waited ms",
)


class Outcome(NamedTuple):
    """A plan that was run.

    Attributes:
        point: The plan, and how its step went.
        planned: What its step takes at the speed of the plain steps beside it, in ns.
    """

    point: Point
    planned: float

    @property
    def ratio(self) -> float:
        """The step's time over what was planned."""
        return self.point.measured_time / self.planned


def trainings() -> Iterator[Training]:
    """The networks, small enough for a CPU."""
    device = torch.device("cpu")
    yield on_images("ResNet-50", partial(resnet50, width=16), device, batch=8, side=96)
    yield gpt(device, width=192, heads=6, context=128)
    yield on_images("DenseNet-121", densenet, device, batch=4, side=64)


def links() -> Iterator[tuple[str, Link]]:
    """One that keeps up with the computation, and one that does not."""
    for name, speed, duplex in (
        ("1 GB/s", 10**9, "half"),
        ("0.4 GB/s each way", 4 * 10**8, "full"),
    ):
        yield name, Link.from_bytes_per_second(speed, latency_ns=200_000, duplex=duplex)


def _offload(subject: Subject, budget: int, link: Link) -> OffloadSolution:
    return solve_offloaded(subject.costs, budget, link=link, method="heuristics")


def _combined(subject: Subject, budget: int, link: Link) -> OffloadSolution:
    return solve_combined(subject.costs, budget, link=link)


class Way(NamedTuple):
    """A kind of plan: the least budget for it, and what makes one."""

    least: Callable[[Subject], int]
    solve: Callable[[Subject, int, Link], OffloadSolution]


WAYS: Final = {
    "offload": Way(lambda subject: subject.costs.offload_profile.required_bytes, _offload),
    "combined": Way(least_of_recomputing, _combined),
}


def points(subject: Subject, link: Link) -> Iterator[Point]:
    """The plans of each way."""
    most = subject.costs.offload_profile.peak_bytes
    for name, way in WAYS.items():
        least = way.least(subject)
        for tenths in TENTHS:
            budget = least + (most - least) * tenths // 10
            try:
                solution = way.solve(subject, budget, link)
            except ChainstayError:
                continue
            yield Point(
                way=name,
                budget=budget,
                planned_peak=solution.peak_bytes,
                planned_time=float(solution.makespan),
                host_bytes=solution.host_bytes,
                solution=solution,
            )


def rows(training: Training, repeats: int, outcomes: list[Outcome]) -> Iterator[str]:
    """One per plan, which is added to `outcomes`."""
    for parameter in training.model.parameters():
        parameter.grad = torch.zeros_like(parameter)  # the caller's: no budget covers them
    subject = training.measured(repeats)
    for name, link in links():
        for point in points(subject, link):
            done = run(subject, link, point, repeats)
            outcome = Outcome(done, planned_time(subject.costs, done))
            outcomes.append(outcome)
            yield row(training.name, name, outcome)


def planned_time(costs: Measurement, point: Point) -> float:
    """The plan's time at the speed of the plain steps that were run in turns with it, in ns."""
    solution = point.solution
    assert isinstance(solution, OffloadSolution), "both ways move something"
    schedule = program_of(solution)
    standing = standing_bytes(costs.profile, schedule)
    overheads = list(map(sum, zip(costs.overheads_for(schedule), standing, strict=True)))
    chain = bounding_chain(costs.profile_for(schedule))

    def replayed(slowness: float) -> float:
        stages = (
            replace(
                stage,
                forward_time=int(stage.forward_time * slowness),
                backward_time=int(stage.backward_time * slowness),
            )
            for stage in chain.stages
        )
        replay = simulate_hybrid(
            replace(chain, stages=tuple(stages)),
            schedule,
            budget=solution.budget,
            link=solution.link,
            overheads=overheads,
        )
        return float(replay.makespan)

    return point.planned_time * replayed(point.plain_time / costs.profile.least_time) / replayed(1)


def row(network: str, link: str, outcome: Outcome) -> str:
    """Of the table."""
    point = outcome.point
    assert point.solution is not None, "there is a plan"
    ops = point.solution.schedule.ops
    stages = len({op.stage for op in ops})
    return cells(
        network,
        link,
        point.way,
        mebibytes(point.budget),
        mebibytes(point.measured_peak),
        str(sum(op.kind.is_offload for op in ops)),
        str(sum(op.kind.is_forward for op in ops) - stages),
        f"{outcome.planned / 1e6:.1f}",
        f"{point.measured_time / 1e6:.1f}",
        f"{outcome.ratio:.2f}",
        f"{point.waited_time / 1e6:.1f}",
    )


def verdicts(outcomes: list[Outcome]) -> Iterator[str]:
    """The goals, with figures."""
    for way in WAYS:
        ratios = [each.ratio for each in outcomes if each.point.way == way]
        ours = [each.point for each in outcomes if each.point.way == way]
        count = len(ratios)
        yield (
            f"* {way}, {count} plans: steps within 10 % of the plan "
            f"{sum(abs(ratio - 1) <= WITHIN for ratio in ratios)}, no more than 10 % slower "
            f"{sum(ratio <= 1 + WITHIN for ratio in ratios)}, mean {fmean(ratios):.3f}, from "
            f"{min(ratios):.3f} to {max(ratios):.3f}; peaks within the budget "
            f"{sum(each.measured_peak <= each.budget for each in ours)}."
        )


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=10, help="timed runs of stages and steps")
    parser.add_argument("--networks", nargs="*", help="names; by default all")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    outcomes: list[Outcome] = []
    lines: list[str] = []
    for training in trainings():
        if not chosen.networks or training.name in chosen.networks:
            lines += rows(training, chosen.repeats, outcomes)
    title = f"# Plans with transfers on the CPU double\n\n{machine(torch.device('cpu'))}\n"
    text = "\n".join([title, *verdicts(outcomes), "", *heading(*COLUMNS), *lines]) + "\n"
    if not chosen.networks:
        RESULTS.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
