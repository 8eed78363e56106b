"""The mixed-integer program against the shared optima and exhaustive search."""

from __future__ import annotations

import dataclasses

import pytest
from golden_chains import GOLDEN, GoldenChain
from hypothesis import example, given, settings
from hypothesis import strategies as st
from strategies import chains

from chainstay.errors import InfeasibleBudgetError
from chainstay.formulations import MIP
from chainstay.formulations.claims import minimum_budget
from chainstay.profiles import ChainProfile, Stage
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family
from chainstay.validation import search
from chainstay.validation.simulate import simulate

SHORT = [golden for golden in GOLDEN if golden.stages <= 8 and golden.has_small_gradients]
RULES = st.sampled_from(Discards)

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


def certified(profile: ChainProfile, budget: int, claim: Claim) -> int:
    """The claim's makespan, once the simulator agrees with it."""
    replay = simulate(profile, claim.schedule, discards=claim.discards)
    assert replay.peak_bytes <= budget
    assert claim.makespan == claim.lower_bound == replay.makespan
    return replay.makespan


@pytest.mark.parametrize("golden", SHORT, ids=lambda golden: golden.name)
@pytest.mark.parametrize("discards", Discards)
def test_golden_optima(golden: GoldenChain, discards: Discards) -> None:
    method, optimum = MIP(discards=discards), golden.optimum[discards]
    if optimum is None:
        rules = "" if discards is Discards.TABLE1 else f"{discards} "
        with pytest.raises(
            InfeasibleBudgetError, match=f"^no ({rules}|single-sweep )sch"
        ) as caught:
            method(golden.profile, golden.budget)
        assert caught.value.required == golden.min_budget[discards]
        return
    claim = method(golden.profile, golden.budget)
    assert certified(golden.profile, golden.budget, claim) == optimum


@pytest.mark.parametrize("golden", SHORT, ids=lambda golden: golden.name)
def test_golden_least_budgets(golden: GoldenChain) -> None:
    assert minimum_budget(golden.profile) == golden.min_budget["table1"]


@st.composite
def small_chains(draw: st.DrawFn, *, wild: bool = False) -> ChainProfile:
    """Chains of the shared families, thin and huge ones; gradients cut to fit unless wild."""
    profile = draw(chains(max_stages=4))
    thin, scale = draw(st.sampled_from([0, 0, 1, 2])), draw(st.sampled_from([1, 1, 10**8]))
    stages = [
        dataclasses.replace(
            stage,
            output_bytes=scale * stage.output_bytes,
            saved_bytes=scale * max(0, stage.saved_bytes - thin) + (scale > 1) * i,
            gradient_bytes=scale
            * (stage.gradient_bytes if wild else min(stage.gradient_bytes, stage.output_bytes)),
            forward_overhead_bytes=scale * stage.forward_overhead_bytes,
            backward_overhead_bytes=scale * stage.backward_overhead_bytes,
        )
        for i, stage in enumerate(profile.stages)
    ]
    return ChainProfile(
        input_bytes=scale * profile.input_bytes,
        input_gradient_bytes=scale * profile.input_gradient_bytes,
        stages=tuple(stages),
    )


@settings(max_examples=250)
@given(small_chains(), RULES, st.integers(0, 8))
@example(THIN, Discards.TABLE1, 0)
@example(HUNGRY, Discards.TABLE1, 0)
@example(HUNGRY, Discards.FREE, 0)
def test_optimum_of_small_chains_is_that_of_exhaustive_search(
    profile: ChainProfile, discards: Discards, eighths: int
) -> None:
    least = search.least_budget(profile, discards=discards)
    all_kept = simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
    budget = least + eighths * (all_kept - least) // 8
    if not budget:
        return
    optimum = search.optimum(profile, budget, discards=discards).makespan
    try:
        claim = MIP(discards=discards)(profile, budget)
    except InfeasibleBudgetError as error:
        assert "single-sweep" in str(error)  # noqa: PT017 - most draws do not raise
        return
    makespan = certified(profile, budget, claim)
    assert makespan == optimum if claim.family is Family.ALL else makespan >= optimum


@settings(max_examples=100)
@given(small_chains(), RULES)
def test_least_budget_of_small_chains_is_that_of_exhaustive_search(
    profile: ChainProfile, discards: Discards
) -> None:
    required = minimum_budget(profile, discards)
    least = search.least_budget(profile, discards=discards)
    assert required >= least
    if required == 0:
        return
    claim = MIP(discards=discards)(profile, required)
    certified(profile, required, claim)
    assert required == least or claim.family is not Family.ALL
    with pytest.raises(InfeasibleBudgetError) as caught:
        MIP(discards=discards)(profile, required - 1)
    assert caught.value.required == required


@settings(max_examples=100)
@given(small_chains(wild=True))
def test_single_sweeps_of_wild_chains_are_valid_and_no_better_than_possible(
    profile: ChainProfile,
) -> None:
    budget = minimum_budget(profile)
    if not budget:
        return
    claim = MIP()(profile, budget)
    assert certified(profile, budget, claim) >= search.optimum(profile, budget).makespan


@pytest.mark.parametrize("times", [1, 10**9 + 7])
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
    assert minimum_budget(profile) == least
    peaks = {simulate(profile, search.optimum(profile, least).schedule).peak_bytes}
    for budget in (6 * 10**9, 7 * 10**9, 8 * 10**9):
        if budget > least:
            replay = simulate(profile, search.optimum(profile, budget).schedule)
            peaks |= {replay.peak_bytes, replay.peak_bytes - 1}
    for budget in sorted(peak for peak in peaks if peak >= least):
        expected = search.optimum(profile, budget).makespan
        assert certified(profile, budget, MIP()(profile, budget)) == expected


@st.composite
def huge_chains(draw: st.DrawFn, *, largest_bits: int) -> ChainProfile:
    """Sizes of up to 2**48 that are unrelated, or a few bytes off the same power of two."""
    power = 2 ** draw(st.integers(40, largest_bits))
    sizes = draw(
        st.sampled_from(
            [
                st.integers(0, power - 9),
                st.builds(
                    int.__add__, st.sampled_from([0, power // 2, power - 9]), st.integers(0, 9)
                ),
            ]
        )
    )
    output = [draw(sizes) for _ in range(draw(st.integers(1, 4)))]
    return ChainProfile(
        input_bytes=draw(sizes),
        input_gradient_bytes=0,
        stages=tuple(
            Stage(
                forward_time=draw(st.integers(0, 9)),
                output_bytes=size,
                saved_bytes=min(2**48, size + draw(sizes)),
                gradient_bytes=draw(st.integers(0, size)),
            )
            for size in output
        ),
    )


@settings(max_examples=100)
@given(huge_chains(largest_bits=48), RULES)
def test_least_budget_of_huge_chains_is_exact_to_the_byte(
    profile: ChainProfile, discards: Discards
) -> None:
    least = search.least_budget(profile, discards=discards)
    assert minimum_budget(profile, discards) == least
    if least > 1:
        claim = MIP(discards=discards)(profile, least)
        expected = search.optimum(profile, least, discards=discards).makespan
        assert certified(profile, least, claim) == expected
        with pytest.raises(InfeasibleBudgetError) as caught:
            MIP(discards=discards)(profile, least - 1)
        assert caught.value.required == least
