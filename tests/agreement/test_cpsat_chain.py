"""The constraint program against the shared optima, exhaustive search, and the MIP."""

from __future__ import annotations

import dataclasses

import pytest
from golden_chains import GOLDEN, GoldenChain
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import chains

from chainstay.dp import DP
from chainstay.errors import InfeasibleBudgetError
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.cpsat.claims import minimum_budget
from chainstay.profiles import ChainProfile, Stage
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family, Method
from chainstay.validation import search
from chainstay.validation.simulate import simulate

SHORT = [golden for golden in GOLDEN if golden.stages <= 8 and golden.has_small_gradients]
RULES = st.sampled_from(Discards)


def certified(profile: ChainProfile, budget: int, claim: Claim) -> int:
    """The claim's makespan, once the simulator agrees with it."""
    replay = simulate(profile, claim.schedule, discards=claim.discards)
    assert replay.peak_bytes <= budget
    assert claim.makespan == claim.lower_bound == replay.makespan
    return replay.makespan


@pytest.mark.parametrize("golden", SHORT, ids=lambda golden: golden.name)
@pytest.mark.parametrize("discards", Discards)
def test_golden_optima(golden: GoldenChain, discards: Discards) -> None:
    method, optimum = CPSAT(discards=discards), golden.optimum[discards]
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
@pytest.mark.parametrize("discards", Discards)
def test_golden_least_budgets(golden: GoldenChain, discards: Discards) -> None:
    assert minimum_budget(golden.profile, discards) == golden.min_budget[discards]


@st.composite
def small_chains(draw: st.DrawFn, *, max_stages: int = 5) -> ChainProfile:
    """The shared families, in bytes or in unrelated sizes of many digits."""
    profile = draw(chains(max_stages=max_stages))
    scale = draw(st.sampled_from([1, 1, 10**9 + 7]))
    return ChainProfile(
        input_bytes=scale * profile.input_bytes,
        input_gradient_bytes=scale * profile.input_gradient_bytes,
        stages=tuple(
            dataclasses.replace(
                stage,
                output_bytes=scale * stage.output_bytes,
                saved_bytes=scale * stage.saved_bytes + (scale > 1) * i,
                gradient_bytes=scale * stage.gradient_bytes,
                forward_overhead_bytes=scale * stage.forward_overhead_bytes,
                backward_overhead_bytes=scale * stage.backward_overhead_bytes,
            )
            for i, stage in enumerate(profile.stages)
        ),
    )


def budget_between(profile: ChainProfile, discards: Discards, eighths: int) -> int:
    """From the least budget (0) to that of keeping everything (8)."""
    least = search.least_budget(profile, discards=discards)
    all_kept = simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
    return least + eighths * (all_kept - least) // 8


@settings(max_examples=400)
@given(small_chains(), RULES, st.integers(0, 8), st.sampled_from(["hinted", "alone"]))
def test_optimum_of_small_chains_is_that_of_exhaustive_search(
    profile: ChainProfile, discards: Discards, eighths: int, start: str
) -> None:
    budget = budget_between(profile, discards, eighths)
    optimum = search.optimum(profile, budget, discards=discards)
    hint = optimum.schedule if start == "hinted" else None
    try:
        claim = CPSAT(discards=discards)(profile, budget, hint=hint)
    except InfeasibleBudgetError as error:
        assert "single-sweep" in str(error)  # noqa: PT017 - most draws do not raise
        return
    makespan = certified(profile, budget, claim)
    assert makespan == optimum.makespan or claim.family is not Family.ALL
    assert makespan >= optimum.makespan


@settings(max_examples=150)
@given(small_chains(), RULES)
def test_least_budget_of_small_chains_is_that_of_exhaustive_search(
    profile: ChainProfile, discards: Discards
) -> None:
    required = minimum_budget(profile, discards)
    least = search.least_budget(profile, discards=discards)
    assert required >= least
    if required:
        claim = CPSAT(discards=discards)(profile, required)
        certified(profile, required, claim)
        assert required == least or claim.family is not Family.ALL
        with pytest.raises(InfeasibleBudgetError) as caught:
            CPSAT(discards=discards)(profile, required - 1)
        assert caught.value.required == required


def answer(method: Method, profile: ChainProfile, budget: int) -> tuple[str, int]:
    """What a method proves, feasible or not."""
    try:
        return "optimum", certified(profile, budget, method(profile, budget))
    except InfeasibleBudgetError as error:
        return "required", error.required


@settings(max_examples=150)
@given(small_chains(max_stages=6), RULES, st.integers(-1, 8))
def test_the_two_models_agree_on_every_chain(
    profile: ChainProfile, discards: Discards, eighths: int
) -> None:
    """In and out of the domains: the two state the same family of schedules."""
    budget = max(1, budget_between(profile, discards, eighths))
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


@st.composite
def huge_chains(draw: st.DrawFn, *, largest_bits: int) -> ChainProfile:
    """Sizes of up to 2**46 that are unrelated, or a few bytes off the same power of two."""
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
@given(huge_chains(largest_bits=46), RULES)
def test_least_budget_of_huge_chains_is_exact_to_the_byte(
    profile: ChainProfile, discards: Discards
) -> None:
    least = search.least_budget(profile, discards=discards)
    assert minimum_budget(profile, discards) == least
    if least > 1:
        claim = CPSAT(discards=discards)(profile, least)
        expected = search.optimum(profile, least, discards=discards).makespan
        assert certified(profile, least, claim) == expected
        with pytest.raises(InfeasibleBudgetError) as caught:
            CPSAT(discards=discards)(profile, least - 1)
        assert caught.value.required == least
