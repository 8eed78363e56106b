"""Offloading: the shared optima, exhaustive search, programs and models against each other."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay.baselines.offload import OFFLOAD_BASELINES, OrderedNoWait, best_ordered
from chainstay.dp.offload import Algorithm1, fractional_optimum, greedy_set
from chainstay.dp.offload.fluid import fluid_plan
from chainstay.errors import InfeasibleBudgetError
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.offload import claims as offload_claims
from chainstay.problems.offload import OffloadProblem
from chainstay.profiles import Link, OffloadProfile
from chainstay.solution import Family
from chainstay.solve.offload import IntegerProgramOffload, solve_offload
from chainstay.solve.offload_heuristics import Heuristics
from chainstay.timetable import Transfers
from chainstay.validation.certify import certify_offload
from chainstay.validation.offload.search import offload_optimum, proposition3_bound
from chainstay.validation.offload.simulate import simulate_offload
from chainstay.validation.offload.simulate_timetable import simulate_timetable
from chainstay.validation.replay import replay_transfers
from chainstay.verify.transfer_instances import random_offload
from golden_offloads import FEASIBLE, GOLDEN, GoldenOffload, require_solvers
from offload_strategies import OffloadCase, offload_cases

require_solvers()

SHORT = [golden for golden in FEASIBLE if golden.last <= 5]


def name(golden: GoldenOffload) -> str:
    return golden.name


def problem(golden: GoldenOffload, transfers: str = "integral") -> OffloadProblem:
    return OffloadProblem(golden.profile, golden.budget, golden.link, Transfers(transfers))


def sets(activations: int) -> Iterator[frozenset[int]]:
    for size in range(activations + 1):
        yield from map(frozenset, combinations(range(activations), size))


@pytest.mark.parametrize("golden", GOLDEN, ids=name)
def test_golden_feasibility_and_bound(golden: GoldenOffload) -> None:
    assert golden.profile.peak_bytes == golden.peak_bytes
    assert golden.profile.required_bytes == golden.required_bytes
    bound = proposition3_bound(golden.profile, budget=golden.budget, link=golden.link)
    assert bound == golden.lower_bound
    if not golden.is_feasible:
        for transfers in Transfers:
            with pytest.raises(InfeasibleBudgetError) as caught:
                solve_offload(golden.profile, golden.budget, link=golden.link, transfers=transfers)
            assert caught.value.required == golden.required_bytes > golden.budget


@pytest.mark.parametrize("golden", FEASIBLE, ids=name)
def test_golden_witnesses_replay(golden: GoldenOffload) -> None:
    assert golden.witness is not None
    found = simulate_offload(golden.profile, golden.witness, budget=golden.budget, link=golden.link)
    assert found.makespan == golden.integral
    assert found.peak_bytes <= golden.budget
    # What is whole and uninterrupted is interruptible, too.
    fluid = simulate_timetable(golden.profile, found.timetable, link=golden.link)
    assert fluid.makespan == found.makespan
    assert fluid.peak_bytes <= found.peak_bytes


@pytest.mark.parametrize("golden", FEASIBLE, ids=name)
def test_golden_optima_of_whole_transfers_by_cpsat(golden: GoldenOffload) -> None:
    asked = problem(golden)
    claim = IntegerProgramOffload(CPSAT(time_limit_s=60), alone=True)(asked)
    solution = certify_offload(asked, claim, method="cpsat", solve_seconds=0.0)
    assert solution.makespan == solution.lower_bound == golden.integral


@pytest.mark.parametrize("golden", SHORT, ids=name)
def test_golden_optima_of_whole_transfers_by_mip(golden: GoldenOffload) -> None:
    asked = problem(golden)
    claim = IntegerProgramOffload(MIP(time_limit_s=60), alone=True)(asked)
    solution = certify_offload(asked, claim, method="mip", solve_seconds=0.0)
    assert solution.makespan == solution.lower_bound == golden.integral


@pytest.mark.parametrize("golden", [g for g in FEASIBLE if g.last <= 4], ids=name)
def test_golden_optima_of_whole_transfers_by_search(golden: GoldenOffload) -> None:
    found = offload_optimum(golden.profile, budget=golden.budget, link=golden.link)
    assert found.makespan == golden.integral
    again = simulate_offload(golden.profile, found.schedule, budget=golden.budget, link=golden.link)
    assert again.makespan == golden.integral


@pytest.mark.parametrize("golden", FEASIBLE, ids=name)
def test_golden_optima_of_interruptible_transfers_by_mip(golden: GoldenOffload) -> None:
    asked = problem(golden, "interruptible")
    claim = IntegerProgramOffload(MIP(time_limit_s=60), alone=True)(asked)
    solution = certify_offload(asked, claim, method="mip", solve_seconds=0.0)
    assert solution.makespan == solution.lower_bound == golden.interruptible


@pytest.mark.parametrize("golden", FEASIBLE, ids=name)
def test_golden_optima_of_offload_first_plans_by_dp(golden: GoldenOffload) -> None:
    asked = problem(golden, "interruptible")
    for method in (Algorithm1(), Algorithm1(slots=500)):
        claim = method(asked)
        assert claim.makespan == golden.interruptible_ordered
        assert replay_transfers(asked, claim).makespan == golden.interruptible_ordered
        if claim.family is Family.ALL:
            assert golden.interruptible is not None
            assert claim.lower_bound <= golden.interruptible
        else:
            assert claim.lower_bound == golden.interruptible_ordered


@pytest.mark.parametrize("golden", FEASIBLE, ids=name)
def test_golden_fractional_optima(golden: GoldenOffload) -> None:
    solution = solve_offload(
        golden.profile,
        golden.budget,
        link=golden.link,
        method="greedy",
        transfers="fractional",
    )
    assert solution.makespan == solution.lower_bound == golden.fractional
    by_model = IntegerProgramOffload(MIP(time_limit_s=60), alone=True)(
        problem(golden, "fractional")
    )
    assert by_model.makespan == golden.fractional


@pytest.mark.parametrize("golden", FEASIBLE, ids=name)
def test_golden_optima_of_ordered_no_wait(golden: GoldenOffload) -> None:
    ordered = OrderedNoWait.from_problem(problem(golden))
    best = best_ordered(ordered, sets(golden.last))
    assert best is not None
    assert Fraction(best[0], golden.link.ticks) == golden.integral_ordered
    assert golden.greedy is not None
    assert greedy_set(problem(golden)) == frozenset(golden.greedy)
    plan = ordered.plan(golden.greedy)
    assert plan is not None
    assert plan.makespan == golden.greedy_integral
    replayed = simulate_offload(
        golden.profile, plan.schedule, budget=golden.budget, link=golden.link
    )
    assert replayed.makespan <= plan.makespan


@pytest.mark.parametrize("golden", FEASIBLE, ids=name)
def test_auto_proves_every_golden_optimum(golden: GoldenOffload) -> None:
    expected = {
        "integral": golden.integral,
        "interruptible": golden.interruptible,
        "fractional": golden.fractional,
    }
    for transfers, optimum in expected.items():
        solution = solve_offload(
            golden.profile, golden.budget, link=golden.link, transfers=transfers
        )
        assert solution.makespan == solution.lower_bound == optimum
        assert solution.family is Family.ALL


@pytest.mark.long
@settings(max_examples=80)
@given(offload_cases(max_stages=4))
def test_search_cpsat_and_mip_agree_on_any_link(case: OffloadCase) -> None:
    optimum = offload_optimum(case.profile, budget=case.budget, link=case.link).makespan
    for settings_of in (CPSAT(time_limit_s=30), MIP(time_limit_s=30)):
        asked = OffloadProblem(case.profile, case.budget, case.link)
        claim = IntegerProgramOffload(settings_of, alone=True)(asked)
        found = certify_offload(asked, claim, method=str(settings_of), solve_seconds=0.0)
        assert found.makespan == found.lower_bound == optimum


@pytest.mark.long
@settings(max_examples=40)
@given(offload_cases(max_stages=5, simple_links=True))
def test_transfers_contain_each_other(case: OffloadCase) -> None:
    """Fractional is never slower than interruptible, nor that than whole; all above the bound."""
    makespans = [
        solve_offload(case.profile, case.budget, link=case.link, method=MIP(), transfers=transfers)
        for transfers in ("fractional", "interruptible", "integral")
    ]
    bound = proposition3_bound(case.profile, budget=case.budget, link=case.link)
    found = [bound, *(solution.makespan for solution in makespans)]
    assert found == sorted(found)
    assert all(solution.is_optimal for solution in makespans)


@settings(max_examples=150)
@given(offload_cases(max_stages=6, simple_links=True))
def test_algorithm_1_is_the_best_of_all_sets(case: OffloadCase) -> None:
    asked = OffloadProblem(case.profile, case.budget, case.link, Transfers.INTERRUPTIBLE)
    claim = Algorithm1()(asked)
    plans = [
        fluid_plan(asked, [size * (j in chosen) for j, size in enumerate(sizes)])
        for sizes in [case.profile.activations[:-1]]
        for chosen in sets(len(case.profile) - 1)
    ]
    assert claim.makespan == min(plan.makespan for plan in plans if plan is not None)


@settings(max_examples=150)
@given(offload_cases(max_stages=6), st.data())
def test_every_set_by_ordered_no_wait_replays_no_slower(
    case: OffloadCase, data: st.DataObject
) -> None:
    ordered = OrderedNoWait.from_problem(OffloadProblem(case.profile, case.budget, case.link))
    chosen = data.draw(st.sets(st.sampled_from([*range(max(1, len(case.profile) - 1))])))
    plan = ordered.plan(chosen)
    if plan is not None:
        replayed = simulate_offload(case.profile, plan.schedule, budget=case.budget, link=case.link)
        assert replayed.makespan <= plan.makespan
        assert replayed.peak_bytes <= case.budget


@pytest.mark.parametrize("baseline", OFFLOAD_BASELINES)
@settings(max_examples=60)
@given(case=offload_cases(max_stages=6))
def test_baselines_keep_the_budget_and_beat_no_bound(baseline: str, case: OffloadCase) -> None:
    asked = OffloadProblem(case.profile, case.budget, case.link)
    schedule = OFFLOAD_BASELINES[baseline](asked)
    if schedule is not None:
        found = simulate_offload(case.profile, schedule, budget=case.budget, link=case.link)
        assert found.makespan >= fractional_optimum(asked)


@pytest.mark.long
def test_heuristics_are_within_half_a_percent_on_average() -> None:
    """300 small instances of `verify`, without the enumeration of all sets on every other one."""
    ratios: list[float] = []
    for number in range(600):
        instance = random_offload(17, number)
        if not 2 <= len(instance.profile) <= 6 or len(ratios) == 300:
            continue
        if instance.budget < instance.profile.required_bytes:
            continue
        asked = OffloadProblem(instance.profile, instance.budget, instance.link)
        claim = Heuristics(exhaustive_up_to=8 * (number % 2))(asked)
        best = solve_offload(
            instance.profile, instance.budget, link=instance.link, method=CPSAT(time_limit_s=2)
        )
        ratios.append(float(claim.makespan / best.makespan))
    assert len(ratios) == 300
    assert min(ratios) >= 1
    assert sum(ratios) / len(ratios) <= 1.005


@pytest.mark.long
def test_long_chains_of_measured_sizes() -> None:
    """Byte and ns granularity, 100 stages: a valid plan close to its bound."""
    draw, stages = random.Random(3), 100
    activations = tuple(draw.randint(10**8, 10**9) for _ in range(stages + 1))
    profile = OffloadProfile(
        activations=activations,
        gradients=tuple(draw.randint(0, size) for size in activations),
        forward_overheads=tuple(draw.randint(0, 10**8) for _ in range(stages)),
        backward_overheads=tuple(draw.randint(0, 10**8) for _ in range(stages)),
        forward_times=tuple(draw.randint(10**6, 10**7) for _ in range(stages)),
        backward_times=tuple(draw.randint(2 * 10**6, 2 * 10**7) for _ in range(stages)),
    )
    budget = profile.required_bytes + (profile.peak_bytes - profile.required_bytes) // 3
    for bandwidth, most in ((20, 1.01), (60, 1.01)):
        link = Link.from_bytes_per_second(bandwidth * 10**9)
        solution = solve_offload(profile, budget, link=link)
        assert solution.makespan <= most * float(solution.lower_bound)
        fluid = solve_offload(profile, budget, link=link, transfers="interruptible", method="auto")
        assert fluid.makespan <= solution.makespan


def test_the_mip_proves_nothing_with_amounts_of_millions() -> None:
    """Found by `chainstay verify`: HiGHS calls 21630583/1000 optimal, and less is possible."""
    profile = OffloadProfile(
        activations=(3465497, 2093041, 1048583, 6291462, 6291461),
        gradients=(8388610, 6291460, 6291456, 6291462, 6291461),
        forward_overheads=(2097152, 1048582, 1048581, 2097158),
        backward_overheads=(2097159, 2097159, 1048580, 2097157),
        forward_times=(1954, 1007, 3465, 3132),
        backward_times=(3156, 4731, 2953, 184),
    )
    problem = OffloadProblem(
        profile, 27355399, Link(bandwidth=1000), transfers=Transfers.INTERRUPTIBLE
    )
    best = solve_offload(
        profile, problem.budget, link=problem.link, method="dp", transfers="interruptible"
    )
    other = offload_claims.claim(problem, MIP())
    assert best.makespan == Fraction(21538187, 1000)
    assert other.lower_bound <= best.makespan <= other.makespan


@pytest.mark.long
def test_nor_of_whole_transfers() -> None:
    """Likewise: HiGHS calls 16107339/250 optimal."""
    profile = OffloadProfile(
        activations=(5242882, 6291457, 6291458, 5242886, 4194311),
        gradients=(4194311, 6291457, 6291458, 5242886, 1048582),
        forward_overheads=(2097159, 1048576, 1048577, 1048582),
        backward_overheads=(1048577, 1048576, 2097155, 1048583),
        forward_times=(3903, 5318, 695, 5239),
        backward_times=(2138, 3361, 5777, 3113),
    )
    problem = OffloadProblem(profile, 27525128, Link(bandwidth=500, duplex="full"))
    best = solve_offload(profile, problem.budget, link=problem.link, method="auto")
    other = offload_claims.claim(problem, MIP())
    assert best.makespan == Fraction(15131589, 250)
    assert other.lower_bound <= best.makespan <= other.makespan
