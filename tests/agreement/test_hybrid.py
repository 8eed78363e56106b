"""Recomputing and offloading together: solvers, referees and golden optima agree."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from chainstay import DP, InfeasibleBudgetError, solve_chain, solve_offload
from chainstay.dp.hybrid import Amounts, ExactHybrid, bracket, hybrid_bound
from chainstay.dp.jit import is_available
from chainstay.problems.hybrid import HybridProblem, HybridSolution
from chainstay.profiles import ChainProfile, Link, OffloadProfile, Stage
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.solve.hybrid import AutoHybrid, Pofo, solve_hybrid
from chainstay.timetable import Time
from chainstay.validation.hybrid.fractional_transfers import fractional_makespan
from chainstay.validation.hybrid.search import hybrid_optimum
from chainstay.validation.hybrid.simulate import simulate_hybrid
from chainstay.validation.simulate import simulate
from chainstay.verify.chain_instances import random_chain
from golden_hybrids import GOLDEN_HYBRIDS, GoldenHybrid
from hybrid_support import some_budget, tiny_chain

QUICK = AutoHybrid(time_limit_s=0.3)
FEASIBLE = [golden for golden in GOLDEN_HYBRIDS if golden.fractional is not None]


def _exact(profile: ChainProfile, budget: int, link: Link) -> Time | None:
    amounts = Amounts.from_chain(profile, budget, link)
    plan = ExactHybrid.solve(amounts)
    return None if plan is None else plan.cost * amounts.time_unit


def _schedule(ops: tuple[Op, ...], moved: frozenset[tuple[str, int]]) -> Schedule:
    kinds = {"a": OpKind.OFFLOAD_ACTIVATION, "b": OpKind.OFFLOAD_SAVED}
    return Schedule((*(Op(kinds[kind], i) for kind, i in sorted(moved)), *ops))


@pytest.mark.parametrize("golden", GOLDEN_HYBRIDS, ids=lambda golden: golden.name)
def test_pofo_is_the_golden_optimum_and_the_referee_agrees(golden: GoldenHybrid) -> None:
    amounts = Amounts.from_chain(golden.profile, golden.budget, golden.link)
    plan = ExactHybrid.solve(amounts)
    if golden.fractional is None:
        assert plan is None
        return
    assert plan is not None
    assert plan.cost * amounts.time_unit == golden.fractional
    value = fractional_makespan(
        golden.profile,
        _schedule(plan.ops, plan.moved),
        budget=golden.budget,
        link=golden.link,
    )
    assert value == golden.fractional


@pytest.mark.parametrize("golden", FEASIBLE, ids=lambda golden: golden.name)
def test_whole_transfers_reach_the_golden_integral_optimum(golden: GoldenHybrid) -> None:
    solution = solve_hybrid(golden.profile, golden.budget, link=golden.link, method=QUICK)
    replay = simulate_hybrid(
        golden.profile, solution.schedule, budget=golden.budget, link=golden.link
    )
    assert replay.makespan == solution.makespan
    assert solution.peak_bytes <= golden.budget
    assert solution.fractional_makespan == golden.fractional
    if golden.integral is not None:
        assert solution.makespan == golden.integral


def test_an_infeasible_golden_budget_names_the_least_one() -> None:
    golden = next(golden for golden in GOLDEN_HYBRIDS if golden.fractional is None)
    with pytest.raises(InfeasibleBudgetError, match="16") as caught:
        solve_hybrid(golden.profile, golden.budget, link=golden.link)
    solution = solve_hybrid(golden.profile, caught.value.required, link=golden.link)
    assert solution.peak_bytes <= caught.value.required


@pytest.mark.parametrize("name", ["ppub06", "ppub08"])
def test_search_finds_the_golden_integral_optimum(name: str) -> None:
    golden = next(golden for golden in GOLDEN_HYBRIDS if golden.name == name)
    found = hybrid_optimum(golden.profile, budget=golden.budget, link=golden.link)
    assert found is not None
    assert found.makespan == golden.integral


def _tiny(draw: random.Random, stages: int) -> tuple[ChainProfile, int, Link]:
    profile, link = tiny_chain(draw, stages)
    return profile, some_budget(draw, profile, link), link


@pytest.mark.parametrize("seed", range(12))
def test_no_answer_is_below_the_searched_optimum(seed: int) -> None:
    profile, budget, link = _tiny(random.Random(seed), 2)
    found = hybrid_optimum(profile, budget=budget, link=link)
    assert found is not None
    solution = solve_hybrid(profile, budget, link=link, method=QUICK)
    assert hybrid_bound(profile, budget, link) <= found.makespan <= solution.makespan


@pytest.mark.parametrize("seed", range(12))
def test_the_required_budget_is_the_least_that_search_fills(seed: int) -> None:
    profile, _, link = _tiny(random.Random(seed), 2)
    required = HybridProblem(profile, 1, link).required_bytes
    found = hybrid_optimum(profile, budget=required, link=link)
    assert found is not None
    replay = simulate_hybrid(profile, found.schedule, budget=required, link=link)
    assert replay.makespan == found.makespan
    assert _exact(profile, required - 1, link) is None


@pytest.mark.parametrize("seed", range(40))
def test_pofo_is_no_slower_than_recomputing_or_offloading_alone(seed: int) -> None:
    profile, budget, link = _tiny(random.Random(seed), random.Random(seed).randint(2, 6))
    optimum = _exact(profile, budget, link)
    try:
        recomputed = solve_chain(profile, budget, DP()).makespan
    except InfeasibleBudgetError:
        recomputed = None
    try:
        offloaded = solve_offload(
            OffloadProfile.from_chain(profile), budget, link=link, transfers="fractional"
        ).makespan
    except InfeasibleBudgetError:
        offloaded = None
    if recomputed is not None:
        assert optimum is not None
        assert optimum <= recomputed
    assert optimum is None or optimum >= profile.least_time
    solution = solve_hybrid(profile, budget, link=link, method=AutoHybrid(exact_stages=2))
    for _, makespan in solution.alternatives:
        assert makespan is None or solution.makespan <= makespan
    assert solution.makespan <= (recomputed or solution.makespan)
    assert offloaded is None or offloaded >= profile.least_time
    assert HybridSolution.from_json(solution.to_json()) == solution


@pytest.mark.skipif(not is_available(), reason="16 slots at most without numba")
@pytest.mark.parametrize("seed", range(40))
def test_slots_bracket_the_exact_optimum(seed: int) -> None:
    draw = random.Random(seed)
    profile, budget, link = _tiny(draw, draw.randint(2, 6))
    optimum = _exact(profile, budget, link)
    plans, bound = bracket(profile, budget, link, draw.choice([10, 40, 100]))
    if optimum is None:
        return
    assert float(bound) <= float(optimum) * (1 + 1e-9)
    for plan in plans:
        schedule = _schedule(plan.ops, plan.moved)
        assert fractional_makespan(profile, schedule, budget=budget, link=link) >= optimum


def _long_chain(draw: random.Random) -> ChainProfile:
    """Return a hundred stages; some save no more than their output, some five times as much."""
    sizes = [draw.randint(1, 100) << 10 for _ in range(100)]
    times = [draw.randint(1_000, 100_000) for _ in sizes]
    stages = tuple(
        Stage(
            forward_time=time,
            backward_time=2 * time,
            output_bytes=size,
            saved_bytes=size * draw.randint(1, 5),
        )
        for size, time in zip(sizes, times, strict=True)
    )
    return ChainProfile(input_bytes=100 << 10, input_gradient_bytes=0, stages=stages)


@pytest.mark.long
@pytest.mark.skipif(not is_available(), reason="16 slots at most without numba")
@pytest.mark.parametrize("percent", [20, 40, 60])
@pytest.mark.parametrize("seed", [1, 2])
def test_long_chains_have_good_plans_in_any_budget(seed: int, percent: int) -> None:
    """Searches with limits a little above the bound find nothing in some of these."""
    profile = _long_chain(random.Random(seed))
    plain = simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
    saved = sum(stage.saved_bytes for stage in profile.stages)
    link = Link(bandwidth=Fraction(saved, 2 * profile.least_time))
    budget = plain * percent // 100
    plans, bound = bracket(profile, budget, link, 100)
    schedules = [_schedule(plan.ops, plan.moved) for plan in plans]
    times = [fractional_makespan(profile, s, budget=budget, link=link) for s in schedules]
    assert float(bound) <= float(min(times)) <= 1.015 * float(bound)
    assert min(times) < solve_chain(profile, budget, method="dp").makespan


@pytest.mark.skipif(not is_available(), reason="16 slots at most without numba")
@pytest.mark.parametrize("number", [n for n in range(60) if len(random_chain(3, n).profile) > 6])
def test_longer_chains_are_certified_and_bracketed(number: int) -> None:
    instance = random_chain(3, number)
    if instance.profile.skips:
        return
    link = Link(bandwidth=Fraction(3, 2))
    required = HybridProblem(instance.profile, 1, link).required_bytes
    budget = max(required, instance.budget)
    solution = Pofo(tries=40)
    fractional = solve_hybrid(
        instance.profile, budget, link=link, method=solution, transfers="fractional"
    )
    integral = solve_hybrid(instance.profile, budget, link=link, method=solution)
    assert integral.peak_bytes <= budget
    assert fractional.lower_bound <= fractional.makespan
    assert integral.fractional_bound <= (integral.fractional_makespan or 0)
