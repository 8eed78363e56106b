"""The mixed-integer program against the shared optima and exhaustive search."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chainstay.formulations import MIP
from chainstay.formulations.chain.claims import minimum_budget
from chainstay.formulations.program_by_highs import solve_by_highs
from chainstay.profiles import ChainProfile, Stage
from chainstay.schedule import Discards
from chainstay.validation import search
from chainstay.validation.simulate import simulate
from formulation_support import (
    RULES,
    SHORT,
    agrees_with_golden,
    agrees_with_search,
    budget_between,
    certified,
    has_exact_least_budget,
    huge_chains,
    small_chains,
)
from golden_chains import GoldenChain

# Outputs larger than what is saved with them. Only Fc0 Fa1 Fn1 Fn2 Fa2 B2 Fa0 B1 B0 fits in
# the least budget of 9: stage 2 runs to push a^2 out, then again. The model needs 10.
THIN = ChainProfile(
    input_bytes=0,
    input_gradient_bytes=0,
    stages=(
        Stage(forward_time=7, output_bytes=3, saved_bytes=1, gradient_bytes=1),
        Stage(output_bytes=4, saved_bytes=2, gradient_bytes=3),
        Stage(saved_bytes=4),
    ),
)


# A forward that needs much runs before an earlier stage is recorded, though δ ≤ a ≤ ā: only
# Fa0 Fc1 Fa2 Fn2 Fa1 B2 B1 B0 (free: Da2 for Fn2) fits in 5 bytes.
HUNGRY = ChainProfile(
    input_bytes=2,
    input_gradient_bytes=0,
    stages=(
        Stage(forward_time=6),
        Stage(
            forward_time=6,
            output_bytes=1,
            saved_bytes=2,
            gradient_bytes=1,
            forward_overhead_bytes=1,
        ),
        Stage(forward_time=9, forward_overhead_bytes=2),
    ),
)


@pytest.mark.parametrize("golden", SHORT, ids=lambda golden: golden.name)
@pytest.mark.parametrize("discards", Discards)
def test_golden_optima(golden: GoldenChain, discards: Discards) -> None:
    agrees_with_golden(MIP(discards=discards), golden)


@pytest.mark.parametrize("golden", SHORT, ids=lambda golden: golden.name)
@pytest.mark.parametrize("discards", Discards)
def test_golden_least_budgets(golden: GoldenChain, discards: Discards) -> None:
    assert (
        minimum_budget(golden.profile, MIP(discards=discards), solve_by_highs)
        == golden.min_budget[discards]
    )


@settings(max_examples=120)
@given(small_chains(max_stages=4), RULES, st.integers(0, 8))
@example(THIN, Discards.TABLE1, 0)
@example(HUNGRY, Discards.TABLE1, 0)
@example(HUNGRY, Discards.FREE, 0)
def test_optimum_of_small_chains_is_that_of_exhaustive_search(
    profile: ChainProfile, discards: Discards, eighths: int
) -> None:
    budget = budget_between(profile, discards, eighths)
    agrees_with_search(MIP(discards=discards), profile, budget)


@settings(max_examples=60)
@given(small_chains(max_stages=4), RULES)
@pytest.mark.long
def test_least_budget_of_small_chains_is_that_of_exhaustive_search(
    profile: ChainProfile, discards: Discards
) -> None:
    has_exact_least_budget(MIP(discards=discards), solve_by_highs, profile)


@pytest.mark.long
@pytest.mark.parametrize("times", [1, pytest.param(10**9 + 7, marks=pytest.mark.long)])
def test_byte_and_nanosecond_sizes_of_real_models_are_exact(times: int) -> None:
    sizes = [1_073_741_827, 536_870_909, 1_610_612_741, 805_306_357, 402_653_189, 3]
    profile = ChainProfile(
        input_bytes=201_326_611,
        input_gradient_bytes=0,
        stages=tuple(
            Stage(
                forward_time=times + 12_345 * i,
                backward_time=2 * times,
                output_bytes=size,
                saved_bytes=2 * size + i,
                gradient_bytes=size,
            )
            for i, size in enumerate(sizes)
        ),
    )
    least = search.least_budget(profile)
    assert minimum_budget(profile, MIP(), solve_by_highs) == least
    peaks = {simulate(profile, search.optimum(profile, least).schedule).peak_bytes}
    for budget in (6 * 10**9, 7 * 10**9, 8 * 10**9):
        if budget > least:
            replay = simulate(profile, search.optimum(profile, budget).schedule)
            peaks |= {replay.peak_bytes, replay.peak_bytes - 1}
    for budget in sorted(peak for peak in peaks if peak >= least):
        expected = search.optimum(profile, budget).makespan
        assert certified(profile, budget, MIP()(profile, budget)) == expected


@pytest.mark.long
@settings(max_examples=40)
@given(huge_chains(largest_bits=48), RULES)
def test_least_budget_of_huge_chains_is_exact_to_the_byte(
    profile: ChainProfile, discards: Discards
) -> None:
    has_exact_least_budget(MIP(discards=discards), solve_by_highs, profile)
