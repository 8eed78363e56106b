"""Recomputing and offloading stages with options: solvers, the referee and exhaustive search."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from itertools import product

import pytest

from chainstay import (
    CPSAT,
    InfeasibleBudgetError,
    InvalidProfileError,
    InvalidScheduleError,
    solve_hybrid,
)
from chainstay.dp.hybrid import Amounts, ExactHybrid, bracket, hybrid_bound
from chainstay.dp.jit import is_available
from chainstay.problems.hybrid import HybridProblem
from chainstay.profiles import ChainProfile, Link, OffloadProfile, RunCost, StageOption
from chainstay.schedule import Item, Op, Schedule
from chainstay.solve.hybrid import AutoHybrid, Pofo
from chainstay.timetable import Time
from chainstay.validation.hybrid.fractional_transfers import fractional_makespan
from chainstay.validation.hybrid.search import hybrid_optimum
from chainstay.validation.hybrid.simulate import simulate_hybrid
from chainstay.validation.offload.search import offload_optimum
from hybrid_support import CHAIN, tiny_chain, with_options
from persistent_plans import best_plan

QUICK = AutoHybrid(combined=Pofo(tries=60))
LEAN = StageOption(saved_bytes=4, backward_overhead_bytes=3, first=RunCost(time=2, backward_time=7))
WITH_LEAN = replace(CHAIN, stages=(replace(CHAIN.stages[0], options=(LEAN,)), CHAIN.stages[1]))
LINK = Link(bandwidth=2)


def _instance(seed: int, stages: int, most_options: int) -> tuple[ChainProfile, int, Link]:
    """A chain, a budget from one less than the least feasible one on, and a plain link."""
    draw = random.Random(seed)
    plain, link = tiny_chain(draw, stages)
    profile = with_options(draw, plain, most_options)
    least = HybridProblem(profile, 1, link).required_bytes
    return profile, max(1, least + draw.choice([-1, 0, 0, 1, 2, 3, 5, 8, 12])), link


def _schedule(ops: tuple[Op, ...], moved: frozenset[tuple[str, int]]) -> Schedule:
    return Schedule((*(Item(*item).offload for item in sorted(moved)), *ops))


@pytest.mark.parametrize(
    ("seed", "stages", "most_options"),
    [
        *((seed, 2, 3) for seed in range(60)),
        *((seed, 3, 3) for seed in range(100, 130)),
        *((seed, 4, 2) for seed in range(200, 206)),
    ],
)
def test_pofo_is_the_best_of_all_persistent_plans(
    seed: int, stages: int, most_options: int
) -> None:
    profile, budget, link = _instance(seed, stages, most_options)
    amounts = Amounts.from_chain(profile, budget, link)
    plan, best = ExactHybrid.solve(amounts), best_plan(profile, budget, link)
    if plan is None:
        assert best is None
        return
    assert best is not None
    assert plan.cost * amounts.time_unit == best[0]
    schedule = _schedule(plan.ops, plan.moved)
    assert fractional_makespan(profile, schedule, budget=budget, link=link) == best[0]


@pytest.mark.skipif(not is_available(), reason="16 slots at most without numba")
@pytest.mark.parametrize("seed", range(40))
def test_slots_bracket_the_exact_optimum(seed: int) -> None:
    draw = random.Random(seed)
    profile, budget, link = _instance(seed, draw.randint(2, 6), 3)
    amounts = Amounts.from_chain(profile, budget, link)
    plan = ExactHybrid.solve(amounts)
    plans, bound = bracket(profile, budget, link, draw.choice([10, 40, 100]))
    if plan is None:
        return
    optimum = plan.cost * amounts.time_unit
    assert float(bound) <= float(optimum) * (1 + 1e-9)
    for found in plans:
        schedule = _schedule(found.ops, found.moved)
        assert fractional_makespan(profile, schedule, budget=budget, link=link) >= optimum


@pytest.mark.parametrize("seed", range(30))
def test_no_answer_is_below_the_searched_optimum(seed: int) -> None:
    profile, _, link = _instance(seed, 2, 3)
    draw = random.Random(seed)
    link = draw.choice([link, replace(link, duplex="full", latency=Fraction(1, 2))])
    required = HybridProblem(profile, 1, link).required_bytes
    assert hybrid_optimum(profile, budget=required - 1, link=link) is None
    assert hybrid_optimum(profile, budget=required, link=link) is not None
    budget = required + draw.choice([0, 1, 2, 5])
    found = hybrid_optimum(profile, budget=budget, link=link)
    assert found is not None
    replay = simulate_hybrid(profile, found.schedule, budget=budget, link=link)
    assert replay.makespan == found.makespan
    solution = solve_hybrid(profile, budget, link=link, method=QUICK)
    assert hybrid_bound(profile, budget, link) <= found.makespan <= solution.makespan
    assert solution.unrestricted_bound <= found.makespan


def test_bytes_and_times_are_those_of_the_option_by_hand() -> None:
    """4 bytes leave and come back in 2 each, beside 3 + 4; B0 takes 7 and 3 bytes more."""
    schedule = Schedule.parse("Fa0.1 Fa1 Ob0 B1 Pb0 B0")
    # Ob0 waits for no one: from 2 to 4; Fa1 until 5, B1 until 9, Pb0 until 11, B0 until 18.
    replay = simulate_hybrid(WITH_LEAN, schedule, budget=50, link=LINK)
    assert replay.makespan == 18
    assert replay.host_bytes == 4
    assert replay.peak_bytes == 10 + 4 + 3  # B0; Fa1 runs beside 10 + 4 + 2
    whole = simulate_hybrid(WITH_LEAN, Schedule.parse("Fa0 Fa1 B1 B0"), budget=50, link=LINK)
    assert whole.makespan == CHAIN.least_time


def test_what_comes_back_is_what_was_sent() -> None:
    """The stage is kept whole, sent, and kept in part; B0 runs under option 0 again."""
    text = "Fa0 Ob0 Db0 Fa0.1 Fa1 B1 Db0 Pb0 B0"
    replay = simulate_hybrid(WITH_LEAN, Schedule.parse(text), budget=50, link=LINK)
    moves = [move.end - move.start for move in replay.timetable.moves]
    assert moves == [Fraction(5, 2), Fraction(5, 2)]
    assert replay.makespan - replay.timetable.starts[-1] == CHAIN.stages[0].backward_time


def test_options_that_a_stage_does_not_have_are_refused() -> None:
    with pytest.raises(InvalidScheduleError, match=r"Fa1\.1 names option 1, and stage 1 has 1"):
        simulate_hybrid(WITH_LEAN, Schedule.parse("Fa0.1 Fa1.1 B1 B0"), budget=50, link=LINK)


@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"options": (replace(LEAN, stages=2),)}, "an option that keeps several stages"),
        ({"options": (replace(LEAN, needs_input=False),)}, "an option that needs no input"),
        ({"options": (replace(LEAN, again=RunCost(time=1)),)}, "costs by kind of run"),
        ({"dropped_again": RunCost(time=1)}, "costs by kind of run"),
    ],
)
def test_what_links_do_not_take_is_refused(changes: dict[str, object], refusal: str) -> None:
    stages = (replace(CHAIN.stages[0], **changes), CHAIN.stages[1])  # type: ignore[arg-type]  # any field
    profile = replace(CHAIN, stages=stages)
    with pytest.raises(InvalidProfileError, match=f"stage 0 of this chain has {refusal}"):
        solve_hybrid(profile, 50, link=LINK)
    with pytest.raises(InvalidProfileError, match=f"stage 0 of this chain has {refusal}"):
        simulate_hybrid(profile, Schedule.keep_all(2), budget=50, link=LINK)


def test_methods_without_options_refuse_them() -> None:
    with pytest.raises(InvalidProfileError, match="has options, which the integer program"):
        solve_hybrid(WITH_LEAN, 16, link=LINK, method=CPSAT())


def test_offloading_alone_keeps_stages_whole_at_the_costs_of_their_first_runs() -> None:
    assert OffloadProfile.from_chain(WITH_LEAN) == OffloadProfile.from_chain(CHAIN)
    first = RunCost(time=90, overhead_bytes=7, backward_time=91)
    stage = replace(CHAIN.stages[0], first=first, again=RunCost(), environment_bytes=5)
    profile = replace(WITH_LEAN, stages=(stage, CHAIN.stages[1]))
    found = OffloadProfile.from_chain(profile)
    assert found.forward_times[0] == 90
    assert found.backward_times[0] == 91
    assert found.forward_overheads[0] == 7 + profile.gradient_bytes(2)
    assert found.activations == OffloadProfile.from_chain(CHAIN).activations


@pytest.mark.parametrize(
    ("seed", "stages"), [*((seed, 2) for seed in range(30)), (0, 3), (4, 3), (10, 3)]
)
def test_offloading_with_options_is_never_faster_than_both_together(seed: int, stages: int) -> None:
    """So `solve_hybrid` is what solves plans that move and keep stages in part."""
    profile, budget, link = _instance(seed, stages, 2 if stages == 3 else 3)
    ways = product(*(stage.all_options for stage in profile.stages))
    alone = [_offloading_optimum(profile, way, budget, link) for way in ways]
    together = hybrid_optimum(profile, budget=budget, link=link)
    fitting = [makespan for makespan in alone if makespan is not None]
    if fitting:
        assert together is not None
        assert together.makespan <= min(fitting)


def _offloading_optimum(
    profile: ChainProfile, options: tuple[StageOption, ...], budget: int, link: Link
) -> Time | None:
    """The optimum of offloading alone where each stage is kept by one option; None if none fits."""
    stages = tuple(
        replace(
            stage,
            options=(),
            saved_bytes=option.saved_bytes,
            backward_overhead_bytes=option.backward_overhead_bytes,
            first=option.first,
        )
        for stage, option in zip(profile.stages, options, strict=True)
    )
    alone = OffloadProfile.from_chain(replace(profile, stages=stages))
    try:
        return offload_optimum(alone, budget=budget, link=link).makespan
    except InfeasibleBudgetError:
        return None


def test_offloading_alone_is_asked_where_stages_have_options() -> None:
    answer = solve_hybrid(WITH_LEAN, 16, link=LINK, method=QUICK)
    assert dict(answer.alternatives)["offload"] is not None
