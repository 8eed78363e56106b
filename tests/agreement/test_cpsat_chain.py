"""The program by CP-SAT against the shared optima, exhaustive search, and HiGHS."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay.dp import DP
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.chain.claims import minimum_budget
from chainstay.formulations.program_by_cpsat import solve_by_cpsat
from chainstay.profiles import ChainProfile, Stage
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Family
from chainstay.validation.simulate import simulate
from formulation_support import (
    RULES,
    SHORT,
    agrees_with_golden,
    agrees_with_search,
    answer,
    budget_between,
    certified,
    has_exact_least_budget,
    huge_chains,
    small_chains,
)
from golden_chains import GoldenChain


@pytest.mark.parametrize("golden", SHORT, ids=lambda golden: golden.name)
@pytest.mark.parametrize("discards", Discards)
def test_golden_optima(golden: GoldenChain, discards: Discards) -> None:
    agrees_with_golden(CPSAT(discards=discards), golden)


@pytest.mark.parametrize("golden", SHORT, ids=lambda golden: golden.name)
@pytest.mark.parametrize("discards", Discards)
def test_golden_least_budgets(golden: GoldenChain, discards: Discards) -> None:
    assert (
        minimum_budget(golden.profile, CPSAT(discards=discards), solve_by_cpsat)
        == golden.min_budget[discards]
    )


@settings(max_examples=150)
@given(small_chains(), RULES, st.integers(0, 8), st.sampled_from(["hinted", "alone"]))
@pytest.mark.long
def test_optimum_of_small_chains_is_that_of_exhaustive_search(
    profile: ChainProfile, discards: Discards, eighths: int, start: str
) -> None:
    budget = budget_between(profile, discards, eighths)
    agrees_with_search(CPSAT(discards=discards), profile, budget, hinted=start == "hinted")


@pytest.mark.long
@settings(max_examples=60)
@given(small_chains(), RULES)
def test_least_budget_of_small_chains_is_that_of_exhaustive_search(
    profile: ChainProfile, discards: Discards
) -> None:
    has_exact_least_budget(CPSAT(discards=discards), solve_by_cpsat, profile)


@settings(max_examples=60)
@given(small_chains(max_stages=6), RULES, st.integers(-1, 8))
@pytest.mark.long
def test_the_two_solvers_agree_on_every_chain(
    profile: ChainProfile, discards: Discards, eighths: int
) -> None:
    budget = budget_between(profile, discards, eighths)
    by_mip = answer(MIP(discards=discards), profile, budget)
    assert answer(CPSAT(discards=discards), profile, budget) == by_mip


@pytest.mark.parametrize("seed", range(3))
def test_twenty_stages_are_proved_in_seconds(seed: int) -> None:
    """Sizes and times as of a real model; the DP's schedule is the start and the cutoff."""
    sizes = [(37 * i * i + 101 * seed + 13) % 97 + 3 for i in range(21)]
    profile = ChainProfile(
        input_bytes=sizes[0] * 10**6,
        input_gradient_bytes=0,
        stages=tuple(
            Stage(
                forward_time=1000 + 53 * size,
                backward_time=2000 + 106 * size,
                output_bytes=size * 10**6,
                saved_bytes=3 * size * 10**6 + i,
                gradient_bytes=size * 10**6,
            )
            for i, size in enumerate(sizes[1:])
        ),
    )
    budget = 2 * simulate(profile, Schedule.keep_all(20)).peak_bytes // 5
    persistent = DP()(profile, budget)
    claim = CPSAT(time_limit_s=30)(profile, budget, hint=persistent.schedule)
    assert certified(profile, budget, claim) <= persistent.makespan
    assert claim.family is Family.ALL


@pytest.mark.long
@settings(max_examples=40)
@given(huge_chains(largest_bits=46), RULES)
def test_least_budget_of_huge_chains_is_exact_to_the_byte(
    profile: ChainProfile, discards: Discards
) -> None:
    has_exact_least_budget(CPSAT(discards=discards), solve_by_cpsat, profile)
