"""Solvers on chains with skips, against a bare recursion and exhaustive search."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay import (
    CPSAT,
    DP,
    MIP,
    ChainProfile,
    InfeasibleBudgetError,
    InvalidProfileError,
    Schedule,
    Skip,
    Stage,
    least_budget,
    simulate,
    solve_chain,
    unrestricted_bound,
)
from chainstay.formulations.chain.formulation import build
from chainstay.schedule import Discards, OpKind
from chainstay.solution import Family
from chainstay.solve import AutoChain
from chainstay.validation import search
from strategies import chains
from tensors import Tensors

SKIPPING = chains(max_stages=7, families=("skips",))
SHORT = chains(max_stages=4, families=("skips",))
RULES = st.sampled_from(Discards)
U_NET = ChainProfile(
    input_bytes=10,
    input_gradient_bytes=0,
    stages=tuple(
        Stage(
            forward_time=3 + i,
            backward_time=7,
            output_bytes=output,
            saved_bytes=saved,
            gradient_bytes=output,
        )
        for i, (output, saved) in enumerate(
            [(50, 90), (70, 45), (70, 35), (50, 40), (10, 30), (1, 1)]
        )
    ),
    skips=(
        Skip(first=1, last=4, bytes=40, gradient_bytes=40),
        Skip(first=2, last=3, bytes=20, gradient_bytes=20),
    ),
)
WITHOUT = replace(U_NET, skips=())


@settings(max_examples=1_500)
@given(SKIPPING, st.integers(-1, 150))
@pytest.mark.long
def test_persistent_optimum_is_that_of_a_bare_recursion(profile: ChainProfile, extra: int) -> None:
    required = least_budget(profile)
    assert _least_time(profile, required - 1) == float("inf")
    budget = required + extra
    if extra < 0:
        with pytest.raises(InfeasibleBudgetError) as caught:
            DP()(profile, budget)
        assert caught.value.required == required
        return
    claim = DP()(profile, budget)
    replay = simulate(profile, claim.schedule)
    assert claim.makespan == claim.lower_bound == replay.makespan == _least_time(profile, budget)
    assert replay.peak_bytes <= budget


@settings(max_examples=60)
@given(SKIPPING, st.integers(0, 150))
def test_schedules_are_read_off_the_dense_table_too(profile: ChainProfile, extra: int) -> None:
    budget = least_budget(profile) + extra
    claim = DP(slots=10**6)(profile, budget)
    assert claim.makespan == DP()(profile, budget).makespan
    assert simulate(profile, claim.schedule).makespan == claim.makespan


@settings(max_examples=500)
@given(SKIPPING, st.integers(0, 150))
@pytest.mark.long
def test_counting_tensors_twice_only_costs(profile: ChainProfile, extra: int) -> None:
    plain = replace(profile, skips=())
    assert least_budget(profile) <= least_budget(plain)
    budget = least_budget(plain) + extra
    assert DP()(profile, budget).makespan <= DP()(plain, budget).makespan


def test_counting_tensors_twice_does_cost() -> None:
    assert (least_budget(U_NET), least_budget(WITHOUT)) == (200, 255)
    assert DP()(U_NET, 290).makespan < DP()(WITHOUT, 290).makespan


@settings(max_examples=250)
@given(SHORT, RULES, st.integers(0, 60))
@pytest.mark.long
def test_no_bound_lies_above_the_optimum_of_exhaustive_search(
    profile: ChainProfile, rules: Discards, extra: int
) -> None:
    budget = max(1, search.least_budget(profile, discards=rules) + extra)
    optimum = search.optimum(profile, budget, discards=rules)
    assert unrestricted_bound(profile, budget) <= optimum.makespan
    if least_budget(profile) <= budget:
        claim = DP()(profile, budget)
        assert claim.makespan >= search.optimum(profile, budget).makespan
        assert claim.family is not Family.ALL or claim.makespan == profile.least_time


@settings(max_examples=250)
@given(SHORT, RULES, st.integers(0, 60))
@pytest.mark.long
def test_formulations_have_every_optimum_that_is_a_single_sweep(
    profile: ChainProfile, rules: Discards, extra: int
) -> None:
    budget = max(1, search.least_budget(profile, discards=rules) + extra)
    optimum = search.optimum(profile, budget, discards=rules)
    found = [
        _makespan(method, profile, budget)
        for method in (MIP(discards=rules), CPSAT(discards=rules))
    ]
    assert found[0] == found[1]
    assert found[0] >= optimum.makespan
    if _is_single_sweep(optimum.schedule):
        assert found[0] == optimum.makespan


@pytest.mark.parametrize(
    "method", ["auto", AutoChain(discards="free"), "mip", "cpsat", MIP(discards="free")]
)
def test_front_door_takes_skips(method: str) -> None:
    solution = solve_chain(U_NET, 250, method)
    assert solution.peak_bytes <= 250
    assert solution.makespan <= DP()(U_NET, 250).makespan


def test_saved_data_outlive_their_input_where_nothing_better_is_asked() -> None:
    solution = solve_chain(U_NET, 240, AutoChain(discards="free", exact_stages=1))
    assert (solution.makespan, DP()(U_NET, 240).makespan) == (83, 87)
    assert (solution.family, solution.discards) == (Family.PERSISTENT, Discards.FREE)


def test_the_program_that_cannot_take_skips_says_so() -> None:
    method = DP(persistence="weak")
    with pytest.raises(
        InvalidProfileError, match=r"has 2 skips, and DP\(persistence='weak'\).* Use DP\(\)"
    ):
        method(U_NET, 300)
    with pytest.raises(InvalidProfileError, match="has 2 skips"):
        least_budget(U_NET, persistence="weak")
    assert method(WITHOUT, 300).makespan <= DP()(WITHOUT, 300).makespan


@pytest.mark.parametrize("rules", Discards)
def test_encoded_schedules_are_decoded_and_counted_to_the_byte(rules: Discards) -> None:
    for budget in (200, 240, 290):
        schedule = DP()(U_NET, budget).schedule
        peak = simulate(U_NET, schedule).peak_bytes
        formulation = build(U_NET, peak, discards=rules)
        on = formulation.encode(schedule)
        assert on is not None
        assert formulation.program.peak(on) * formulation.phases.unit == peak
        decoded = formulation.decode(on)
        assert simulate(U_NET, decoded, discards=rules).peak_bytes <= peak
        assert build(U_NET, peak - 1, discards=rules).encode(schedule) is None


def _makespan(method: MIP | CPSAT, profile: ChainProfile, budget: int) -> float:
    try:
        claim = method(profile, budget)
    except InfeasibleBudgetError:
        return float("inf")
    replay = simulate(profile, claim.schedule, discards=claim.discards)
    assert replay.peak_bytes <= budget
    assert replay.makespan == claim.makespan == claim.lower_bound
    return claim.makespan


def _is_single_sweep(schedule: Schedule) -> bool:
    """Whether stages run in increasing order between two backwards."""
    last = -1
    for op in schedule:
        if op.kind.is_forward and op.stage <= last:
            return False
        last = op.stage if op.kind.is_forward else (-1 if op.kind is OpKind.BACKWARD else last)
    return True


def _least_time(profile: ChainProfile, budget: int) -> float:
    """Theorem 4.8 of [BEHJS24] as it reads, on sets of tensors."""
    tensors, stages = Tensors(profile), profile.stages

    @cache
    def least(s: int, t: int, m: int) -> float:
        if m < 0:
            return float("inf")
        stage, gradient, best = stages[s], profile.gradient_bytes(t + 1), float("inf")
        forward = gradient + stage.forward_overhead_bytes
        backward = tensors.gradients(s) + stage.backward_overhead_bytes
        if m >= stage.saved_bytes + max(forward, backward):
            rest = least(s + 1, t, m - stage.saved_bytes) if s < t else 0
            best = stage.forward_time + rest + stage.backward_time
        spent = 0
        for k in range(s + 1, t + 1):
            running = tensors.added(k - 1, [s]) + tensors.added(k, [s, k - 1])
            if m < gradient + running + stages[k - 1].forward_overhead_bytes:
                break
            spent += stages[k - 1].forward_time
            later = least(k, t, m - tensors.added(k, [s]))
            best = min(best, spent + later + least(s, k - 1, m))
        return best

    return least(0, len(profile) - 1, budget - profile.input_bytes)
