"""The dynamic program against the shared optima, exhaustive search and its own slot table."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay import DP, ChainProfile, Family, InfeasibleBudgetError, least_budget, simulate
from chainstay.validation import search
from golden_chains import GOLDEN, GoldenChain
from strategies import chains

ONE_BYTE_SLOTS = DP(slots=10**6)
by_name = pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)


@by_name
@pytest.mark.parametrize("method", [DP(), ONE_BYTE_SLOTS], ids=str)
def test_persistent_optimum_of_golden_chains(golden: GoldenChain, method: DP) -> None:
    if golden.optimum["persistent"] is None:
        with pytest.raises(InfeasibleBudgetError) as caught:
            method(golden.profile, golden.budget)
        assert caught.value.required == golden.min_budget["persistent"]
        return
    claim = method(golden.profile, golden.budget)
    replay = simulate(golden.profile, claim.schedule)
    assert claim.makespan == claim.lower_bound == replay.makespan == golden.optimum["persistent"]
    assert replay.peak_bytes <= golden.budget


@by_name
def test_least_budget_of_golden_chains(golden: GoldenChain) -> None:
    assert least_budget(golden.profile) == golden.min_budget["persistent"]


@by_name
def test_curve_of_golden_chains(golden: GoldenChain) -> None:
    curve = DP().curve(golden.profile)
    assert curve.budgets[0] == golden.min_budget["persistent"]
    assert curve.makespans[-1] == golden.profile.least_time
    if golden.optimum["persistent"] is not None:
        assert curve.makespan(golden.budget) == golden.optimum["persistent"]


@by_name
def test_coarse_slots_bracket_the_optimum(golden: GoldenChain) -> None:
    if golden.optimum["persistent"] is None:
        pytest.skip("nothing to bracket: infeasible")
    claim = DP(slots=9)(golden.profile, golden.budget)
    assert claim.lower_bound <= golden.optimum["persistent"] <= claim.makespan
    replay = simulate(golden.profile, claim.schedule)
    assert replay.makespan == claim.makespan
    assert replay.peak_bytes <= golden.budget


@settings(max_examples=120)
@given(chains(max_stages=4), st.integers(0, 60))
def test_claims_about_all_schedules_hold_in_exhaustive_search(
    profile: ChainProfile, extra: int
) -> None:
    budget = least_budget(profile) + extra
    claim = DP()(profile, budget)
    optimum = search.optimum(profile, budget).makespan
    assert optimum <= claim.makespan
    if claim.family is Family.ALL:
        assert claim.makespan == optimum


@pytest.mark.long
@settings(max_examples=120)
@given(chains(max_stages=5, families=("shrinking",)), st.integers(0, 60))
def test_persistent_schedules_are_optimal_where_activations_shrink(
    profile: ChainProfile, extra: int
) -> None:
    budget = least_budget(profile) + extra
    claim = DP()(profile, budget)
    assert claim.family is Family.ALL
    assert claim.makespan == search.optimum(profile, budget).makespan
