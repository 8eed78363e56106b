"""Joins: dynamic programs = exhaustive search = integer programs, and the referee agrees."""

from __future__ import annotations

import random

import pytest

import golden_joins
from chainstay import (
    CPSAT,
    DP,
    MIP,
    AssignCuts,
    InfeasibleBudgetError,
    JoinProfile,
    join_curve,
    simulate_join,
    solve_join,
    waterfilling_bound,
)
from chainstay.dp.join import claim_join
from chainstay.dp.join.canonical import LeastMemoryProgram, OverheadProgram
from chainstay.profiles import HomogeneousJoin
from chainstay.solution import Family
from chainstay.validation.join.search import join_optimum
from chainstay.verify.join_instances import random_join
from golden_joins import GoldenBytes, GoldenSlots

HOMOGENEOUS = golden_joins.homogeneous()
HETEROGENEOUS = golden_joins.heterogeneous()


def _slots_id(golden: GoldenSlots) -> str:
    return golden.name


def _bytes_id(golden: GoldenBytes) -> str:
    return golden.name


def _check(golden: GoldenSlots, method: object) -> None:
    if golden.optimum is None:
        with pytest.raises(InfeasibleBudgetError) as caught:
            solve_join(golden.profile, golden.slots, method, keep=golden.keep)  # type: ignore[arg-type]
        assert golden.least_slots in {None, caught.value.required}
        return
    solution = solve_join(golden.profile, golden.slots, method, keep=golden.keep)  # type: ignore[arg-type]
    assert solution.makespan == golden.optimum
    assert solution.is_optimal


@pytest.mark.parametrize("golden", HOMOGENEOUS, ids=_slots_id)
def test_homogeneous_program_is_the_optimum(golden: GoldenSlots) -> None:
    _check(golden, "dp")


@pytest.mark.parametrize("golden", HOMOGENEOUS, ids=_slots_id)
def test_exhaustive_search_finds_the_same(golden: GoldenSlots) -> None:
    _check(golden, join_optimum)


@pytest.mark.parametrize("golden", HOMOGENEOUS, ids=_slots_id)
def test_mip_is_the_optimum(golden: GoldenSlots) -> None:
    _check(golden, MIP(time_limit_s=120))


@pytest.mark.parametrize("golden", HOMOGENEOUS[::3], ids=_slots_id)
def test_cpsat_is_the_optimum(golden: GoldenSlots) -> None:
    if sum(golden.profile.lengths) < 11:
        _check(golden, CPSAT(time_limit_s=120))


@pytest.mark.parametrize(
    "golden", [g for g in HOMOGENEOUS if not g.profile.tail_length], ids=_slots_id
)
def test_assigning_cuts_is_the_optimum(golden: GoldenSlots) -> None:
    solver = CPSAT() if len(golden.name) % 2 else MIP()
    _check(golden, AssignCuts(solver=solver))


@pytest.mark.parametrize("golden", HETEROGENEOUS, ids=_bytes_id)
def test_canonical_program(golden: GoldenBytes) -> None:
    """Equal to the golden canonical persistent optimum, which the optimum never exceeds."""
    if golden.persistent is None:
        with pytest.raises(InfeasibleBudgetError) as caught:
            solve_join(golden.profile, golden.budget)
        assert caught.value.required == golden.least_budget
        return
    solution = solve_join(golden.profile, golden.budget)
    assert solution.makespan == golden.persistent
    assert solution.is_optimal
    assert golden.optimum is not None
    assert solution.makespan >= golden.optimum
    if solution.makespan > golden.profile.least_time:
        assert solution.family is Family.CANONICAL_PERSISTENT


@pytest.mark.parametrize("golden", HETEROGENEOUS, ids=_bytes_id)
@pytest.mark.parametrize("method", ["mip", "cpsat"])
def test_programs_by_phases_on_stages_with_saved_data(method: str, golden: GoldenBytes) -> None:
    if golden.optimum is None:
        if method == "cpsat":
            with pytest.raises(InfeasibleBudgetError) as caught:
                solve_join(golden.profile, golden.budget, method)
            assert caught.value.required == golden.least_budget
        return
    solution = solve_join(golden.profile, golden.budget, method)
    assert (solution.makespan, solution.is_optimal) == (golden.optimum, True)


@pytest.mark.parametrize("golden", HETEROGENEOUS[2::15], ids=_bytes_id)
def test_exhaustive_search_on_stages_with_saved_data(golden: GoldenBytes) -> None:
    claim = join_optimum(golden.profile, golden.budget)
    assert claim.makespan == golden.optimum
    replay = simulate_join(golden.profile, claim.schedule)
    assert (replay.makespan, replay.peak_bytes <= golden.budget) == (claim.makespan, True)


@pytest.mark.parametrize("seed", range(4))
def test_random_homogeneous_joins(seed: int) -> None:
    """The whole curve against search, least slots included; every schedule replayed."""
    draw = random.Random(seed)
    for _ in range(40):
        branches, tail = draw.choice([1, 2, 2, 3]), draw.choice([None, None, 0, 1, 3])
        join = JoinProfile.homogeneous(
            [draw.randint(0, 5 if branches < 3 else 3) for _ in range(branches)],
            forward_time=draw.randint(0, 4),
            backward_time=draw.randint(0, 4),
            turn_time=draw.randint(0, 3),
            tail_steps=tail,
        )
        keep = tuple(draw.random() < 0.3 for _ in range(branches))
        curve = join_curve(join, keep=keep)
        slots = draw.choice(curve.slots)
        assert join_optimum(join, slots, keep=keep).makespan == curve.makespan(slots)
        replay = simulate_join(join, curve.schedule(slots), keep=keep)
        assert (replay.makespan, replay.peak_bytes <= slots) == (curve.makespan(slots), True)
        bound = waterfilling_bound(join, slots, keep=keep)
        assert bound is not None
        assert bound <= curve.makespan(slots)
        with pytest.raises(InfeasibleBudgetError) as caught:
            join_optimum(join, curve.slots[0] - 1, keep=keep)
        assert caught.value.required == curve.slots[0]


@pytest.mark.parametrize("seed", range(3))
def test_random_joins_of_any_stages(seed: int) -> None:
    """Never below the optimum; rounded both ways, the truth is between."""
    for number in range(25):
        instance = random_join(seed, number)
        profile, keep = instance.profile, instance.keep
        if isinstance(profile, HomogeneousJoin):
            continue
        try:
            exact = solve_join(profile, instance.budget, keep=keep)
        except InfeasibleBudgetError as infeasible:
            exact = solve_join(profile, infeasible.required, keep=keep)
            with pytest.raises(InfeasibleBudgetError):
                solve_join(profile, infeasible.required - 1, keep=keep)
            continue
        rounded = solve_join(profile, instance.budget, DP(slots=25), keep=keep)
        assert rounded.lower_bound <= exact.makespan <= rounded.makespan
        if profile.stages <= (7 if profile.is_plain else 4):
            optimum = join_optimum(profile, instance.budget, keep=keep).makespan
            assert optimum <= exact.makespan


@pytest.mark.parametrize("seed", range(3))
def test_least_budget_is_where_the_table_begins(seed: int) -> None:
    """Two programs that share their moves but not their tables."""
    for number in range(30):
        instance = random_join(seed, number)
        if isinstance(instance.profile, HomogeneousJoin):
            continue
        least = LeastMemoryProgram(instance.profile, instance.keep)
        memory = least.root + least.inputs
        table = OverheadProgram(instance.profile, instance.keep, least.sums, memory)
        assert table.overhead(least.root) is not None
        assert table.overhead(least.root - 1) is None
        replay = simulate_join(instance.profile, least.schedule(least.root), keep=instance.keep)
        assert replay.peak_bytes <= memory


def test_claims_say_what_they_are() -> None:
    join = JoinProfile.homogeneous((3, 4), forward_time=1, backward_time=1, turn_time=1)
    claim = claim_join(join, 5, keep=(False, False))
    assert claim.family is Family.SINGLE_TURN
    assert claim_join(join, 99, keep=(False, False)).family is Family.ALL
