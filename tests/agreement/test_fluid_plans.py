"""Plans for given amounts: valid, as the simulator says, and not one tick longer than they must be.

Times are often 0 and sometimes long, and overheads on one way only, so that now the link decides,
now the computations, now the memory at one of them.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay.dp.offload.fluid import fluid_plan
from chainstay.errors import InvalidScheduleError
from chainstay.problems.offload import OffloadProblem
from chainstay.problems.ordered_no_wait import OrderedPlan
from chainstay.profiles import Link, OffloadProfile
from chainstay.schedule import OpKind
from chainstay.timetable import Timetable, Transfers
from chainstay.validation.offload.simulate_timetable import simulate_timetable

NOTHING = st.just(0)
SIZES = st.integers(0, 6)
TIMES = st.sampled_from([0, 0, 0, 1, 2, 5, 12])


@st.composite
def problems(draw: st.DrawFn) -> OffloadProblem:
    """Short chains that do not fit as they are."""
    stages = draw(st.integers(1, 3))
    ways = draw(st.sampled_from([(SIZES, NOTHING), (NOTHING, SIZES), (SIZES, SIZES)]))

    def several(values: st.SearchStrategy[int], count: int = stages) -> tuple[int, ...]:
        return tuple(draw(values) for _ in range(count))

    profile = OffloadProfile(
        activations=several(SIZES, stages + 1),
        gradients=several(draw(st.sampled_from([NOTHING, st.integers(0, 2)])), stages + 1),
        forward_overheads=several(ways[0]),
        backward_overheads=several(ways[1]),
        forward_times=several(TIMES),
        backward_times=several(TIMES),
    )
    budget = draw(st.integers(profile.required_bytes, max(profile.peak_bytes, 1)))
    link = Link(bandwidth=draw(st.sampled_from([Fraction(1, 2), Fraction(1), Fraction(2)])))
    return OffloadProblem(profile, max(1, budget), link, Transfers.FRACTIONAL)


def shortened(plan: OrderedPlan, stages: int, time: Fraction) -> Timetable:
    """All of the way back that much earlier."""
    starts, moves = plan.timetable.starts, plan.timetable.moves
    return Timetable(
        (*starts[:stages], *(start - time for start in starts[stages:])),
        tuple(
            replace(move, start=move.start - time, end=move.end - time)
            if move.op.kind is OpKind.PREFETCH_ACTIVATION
            else move
            for move in moves
        ),
    )


@pytest.mark.long
@settings(max_examples=1500)
@given(problems(), st.data())
def test_no_way_back_is_too_early_or_too_late(problem: OffloadProblem, data: st.DataObject) -> None:
    profile, link = problem.profile, problem.link
    amounts = [
        data.draw(st.sampled_from([0, size // 2, size])) for size in profile.activations[:-1]
    ]
    plan = fluid_plan(problem, amounts)
    if plan is None:
        return
    found = simulate_timetable(profile, plan.timetable, link=link, transfers="fractional")
    assert found.makespan == plan.makespan
    assert found.peak_bytes <= problem.budget
    earlier = shortened(plan, len(profile), Fraction(1, link.ticks))
    assert refusal(problem, earlier)


def refusal(problem: OffloadProblem, timetable: Timetable) -> str:
    """Why the simulator does not take it; empty if it does."""
    try:
        found = simulate_timetable(
            problem.profile, timetable, link=problem.link, transfers="fractional"
        )
    except InvalidScheduleError as refused:
        return refused.reason
    return "too much memory" if found.peak_bytes > problem.budget else ""
