"""All program lists of short chains: constraint program, search and golden optima."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from chainstay import CPSAT, MIP, InvalidScheduleError, UnknownMethodError, solve_hybrid
from chainstay.errors import SolverLimitError
from chainstay.formulations import ortools_backend
from chainstay.formulations.cpsat.hybrid import build
from chainstay.formulations.cpsat.hybrid_claims import Incumbent
from chainstay.formulations.cpsat.hybrid_codec import decode, start_from
from chainstay.formulations.cpsat.hybrid_truncation import ModelSize
from chainstay.formulations.settings import Limits, TerminationStatus
from chainstay.problems.hybrid import HybridClaim, HybridProblem
from chainstay.profiles import ChainProfile, Link, Stage
from chainstay.schedule import Schedule
from chainstay.solution import Family
from chainstay.solve.hybrid import IntegerProgramHybrid, Pofo
from chainstay.timetable import Time, exact
from chainstay.validation.hybrid.search import hybrid_optimum
from chainstay.validation.hybrid.simulate import simulate_hybrid
from golden_hybrids import GOLDEN_HYBRIDS, GoldenHybrid
from hybrid_support import tiny

LIMITS = Limits(time_s=60)
ONCE = ModelSize()
KNOWN = [golden for golden in GOLDEN_HYBRIDS if golden.integral_is_known]


def by_cpsat(problem: HybridProblem, extent: ModelSize) -> tuple[Time, Schedule] | None:
    program = build(problem, extent)
    outcome = ortools_backend.solve(program.model, LIMITS)
    if outcome.status is TerminationStatus.INFEASIBLE:
        return None
    assert outcome.status is TerminationStatus.OPTIMAL
    makespan = exact(program.to_time(outcome.objective))
    assert exact(program.bound(outcome.bound or 0)) == makespan
    return makespan, decode(program, outcome)


def replayed(problem: HybridProblem, schedule: Schedule) -> Time:
    return simulate_hybrid(
        problem.profile, schedule, budget=problem.budget, link=problem.link
    ).makespan


@pytest.mark.parametrize("golden", KNOWN, ids=lambda golden: golden.name)
def test_cpsat_finds_the_golden_integral_optimum(golden: GoldenHybrid) -> None:
    problem = HybridProblem(golden.profile, golden.budget, golden.link)
    found = by_cpsat(problem, ONCE)
    if golden.integral is None:
        assert found is None
        return
    assert found is not None
    assert found[0] == golden.integral
    assert replayed(problem, found[1]) == golden.integral


@pytest.mark.parametrize("seed", range(16))
def test_one_round_has_what_search_finds_in_it(seed: int) -> None:
    problem = tiny(seed)
    one = by_cpsat(problem, ONCE)
    if one is None:
        return
    assert replayed(problem, one[1]) == one[0]
    found = hybrid_optimum(problem.profile, budget=problem.budget, link=problem.link)
    assert found is not None
    assert found.makespan <= one[0]
    if found.makespan < one[0]:  # then it is outside of this extent
        assert ONCE.bound_outside(problem) <= found.makespan


def test_host_memory_is_held_until_the_way_back_ends() -> None:
    """Over a link of both ways at once, another item could take its place meanwhile."""
    problem = tiny(57, stages=3)
    problem = replace(problem, link=replace(problem.link, duplex="full", capacity=3))
    one = by_cpsat(problem, ONCE)
    assert one is not None
    assert replayed(problem, one[1]) == one[0]


def claimed(method: IntegerProgramHybrid, problem: HybridProblem) -> HybridClaim | None:
    try:
        return method(problem)
    except SolverLimitError:
        return None


@pytest.mark.parametrize("seed", range(100, 108))
def test_growing_extents_end_at_the_searched_optimum(seed: int) -> None:
    problem = tiny(seed)
    claim = claimed(IntegerProgramHybrid(CPSAT(time_limit_s=1), alone=True), problem)
    found = hybrid_optimum(problem.profile, budget=problem.budget, link=problem.link)
    if claim is None:
        return
    assert found is not None
    assert claim.unrestricted_bound <= found.makespan <= replayed(problem, claim.schedule)
    if claim.unrestricted_bound == claim.makespan:
        assert claim.makespan == found.makespan


@pytest.mark.long
def test_a_second_pass_is_found_where_one_is_not_enough() -> None:
    profile = ChainProfile(
        input_bytes=1,
        input_gradient_bytes=0,
        stages=(
            Stage(
                forward_time=4,
                backward_time=1,
                output_bytes=4,
                saved_bytes=8,
                gradient_bytes=4,
                forward_overhead_bytes=2,
            ),
            Stage(
                forward_time=0,
                backward_time=0,
                output_bytes=1,
                saved_bytes=3,
                gradient_bytes=1,
                forward_overhead_bytes=2,
            ),
        ),
    )
    link = Link(bandwidth=Fraction(1, 2), latency=Fraction(1, 2), duplex="full")
    problem = HybridProblem(profile, 14, link)
    assert by_cpsat(problem, ONCE) is None
    found = hybrid_optimum(profile, budget=14, link=link)
    assert found is not None
    assert "Fa0" in str(found.schedule).split("B1", maxsplit=1)[0]
    assert "Fc0" in str(found.schedule).split("B1", maxsplit=1)[0]
    replay = simulate_hybrid(profile, found.schedule, budget=14, link=link)
    program = build(problem, ModelSize(sweeps=2))
    start_from(program, found.schedule, replay.timetable)
    outcome = ortools_backend.solve(program.model, LIMITS)
    assert replayed(problem, decode(program, outcome)) == program.to_time(outcome.objective) == 42
    assert found.makespan == 42


@pytest.mark.parametrize(
    ("count", "outside"), [(1, Fraction(15, 2)), (2, Fraction(12)), (3, Fraction(13))]
)
def test_what_is_outside_of_an_extent_by_hand(count: int, outside: Fraction) -> None:
    """Times 1, 3 and 2, 4; on the link a0 takes 5, a1 5/2, b0 3, b1 1.

    One more pass costs 1 each. A second prefetch: of a1 in 3 times 5/2. A third: of a1 would
    need another reader; of b0, which three read, in 4 times 3. A fourth: of a0 only, in 25.
    """
    stages = (
        Stage(forward_time=1, backward_time=2, output_bytes=5, saved_bytes=6),
        Stage(forward_time=3, backward_time=4, output_bytes=1, saved_bytes=2),
    )
    profile = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=stages)
    problem = HybridProblem(profile, 100, Link(bandwidth=2))
    assert ModelSize(sweeps=count, prefetches=count).bound_outside(problem) == outside
    grown = ModelSize(sweeps=count, prefetches=count).enlarged(problem, outside)
    assert grown is None  # nothing faster than that can be outside
    assert ModelSize(sweeps=count, prefetches=count).enlarged(problem, 1000) is not None


def test_bounds_say_what_they_are_about() -> None:
    """With nothing outside of a model that is faster, its bound is one on all schedules."""
    problem = tiny(0)
    proof = Incumbent(problem, Schedule.keep_all(2), 100, 0)
    proof.add_bound(ModelSize(sweeps=2, prefetches=2), 90)
    claim = proof.claim()
    assert claim is not None
    outside = ModelSize(sweeps=2, prefetches=2).bound_outside(problem)
    assert (claim.lower_bound, claim.family) == (90, Family.TWICE)
    assert claim.unrestricted_bound == outside < 90
    proof.add_bound(ModelSize(), None)  # nothing is in it, so all is outside
    assert proof.bound == max(outside, ONCE.bound_outside(problem))


def test_an_exact_method_starts_from_the_best_plan_and_keeps_it_when_time_runs_out() -> None:
    golden = GOLDEN_HYBRIDS[0]
    known = solve_hybrid(golden.profile, golden.budget, link=golden.link, method=Pofo())
    method = CPSAT(time_limit_s=0.06)
    late = solve_hybrid(golden.profile, golden.budget, link=golden.link, method=method)
    assert known.lower_bound <= late.lower_bound <= late.makespan <= known.makespan
    assert late.fractional_makespan == known.fractional_makespan


def test_times_too_large_for_the_solver_are_rounded_and_the_bound_with_them() -> None:
    problem = tiny(8)
    scale = 2**42
    stages = tuple(
        replace(
            stage,
            forward_time=stage.forward_time * scale,
            backward_time=stage.backward_time * scale,
        )
        for stage in problem.profile.stages
    )
    link = Link(bandwidth=Fraction(problem.link.bandwidth) / scale)
    large = HybridProblem(replace(problem.profile, stages=stages), problem.budget, link)
    small = by_cpsat(problem, ONCE)
    program = build(large, ONCE)
    outcome = ortools_backend.solve(program.model, LIMITS)
    assert small is not None
    assert not program.is_exact
    assert outcome.bound is not None
    assert program.bound(outcome.bound) <= small[0] * scale <= program.to_time(outcome.objective)
    assert replayed(large, decode(program, outcome)) == small[0] * scale


@pytest.mark.parametrize("method", ["cpsat", "mip", CPSAT(), MIP()])
def test_exact_methods_are_for_whole_transfers(method: str | CPSAT | MIP) -> None:
    problem = tiny(0)
    with pytest.raises(UnknownMethodError, match="fractional"):
        solve_hybrid(
            problem.profile,
            problem.budget,
            link=problem.link,
            method=method,
            transfers="fractional",
        )
    with pytest.raises(UnknownMethodError, match="'tape'"):
        solve_hybrid(
            problem.profile, problem.budget, link=problem.link, method=CPSAT(discards="tape")
        )


def test_names_of_exact_methods_are_methods() -> None:
    problem = tiny(4)
    found = hybrid_optimum(problem.profile, budget=problem.budget, link=problem.link)
    assert found is not None
    for method in ("cpsat", "mip"):
        solution = solve_hybrid(problem.profile, problem.budget, link=problem.link, method=method)
        assert solution.makespan == found.makespan
        assert solution.is_optimal


def test_mip_is_the_same_program_under_its_own_limits() -> None:
    problem = tiny(4)
    solution = solve_hybrid(
        problem.profile, problem.budget, link=problem.link, method=MIP(time_limit_s=7)
    )
    assert solution.method == "cpsat (7 s)"
    assert solution.is_optimal


def test_a_program_list_that_is_too_tight_is_refused_by_the_referee_alone() -> None:
    problem = tiny(0)
    with pytest.raises(InvalidScheduleError):
        replayed(replace(problem, budget=problem.required_bytes - 1), Schedule.keep_all(2))
