"""What tests of the formulation share: chains, and how answers are held to the truth."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import strategies as st

from chainstay.errors import InfeasibleBudgetError
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations.chain.claims import Solve, minimum_budget
from chainstay.profiles import ChainProfile, RunCost, Stage, StageOption
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family, Method
from chainstay.validation import search
from chainstay.validation.simulate import simulate
from golden_chains import GOLDEN, GoldenChain
from strategies import chains

BY_NAME = {golden.name: golden for golden in GOLDEN}
STAGE = Stage(forward_time=10, backward_time=7, output_bytes=3, saved_bytes=5, gradient_bytes=3)
CHAIN = ChainProfile(input_bytes=3, input_gradient_bytes=0, stages=(STAGE,) * 6)
PERIODIC = Schedule.parse("Fc0 Fn1 Fn2 Fa3 Fa4 Fa5 B5 B4 B3 Fa0 Fa1 Fa2 B2 B1 B0")
NO_TIME = 1e-9

PAIR = ChainProfile(
    input_bytes=3,
    input_gradient_bytes=0,
    stages=(
        Stage(
            forward_time=1,
            output_bytes=1,
            saved_bytes=7,
            gradient_bytes=5,
            forward_overhead_bytes=3,
            backward_overhead_bytes=3,
        ),
        Stage(
            forward_time=7,
            saved_bytes=6,
            gradient_bytes=4,
            backward_overhead_bytes=3,
            dropped_first=RunCost(time=1),
            dropped_again=RunCost(time=1),
            options=(
                StageOption(
                    saved_bytes=2,
                    backward_overhead_bytes=3,
                    first=RunCost(time=4, overhead_bytes=2, backward_time=7),
                    stages=2,
                ),
            ),
        ),
        Stage(forward_time=5, output_bytes=2, saved_bytes=6, gradient_bytes=6, backward_time=7),
        Stage(forward_time=2, saved_bytes=2, gradient_bytes=6, backward_overhead_bytes=2),
    ),
)
"""A record of two stages in which ``Fn`` of the first one would swap a^1 for nothing."""

SHORT = [golden for golden in GOLDEN if golden.stages <= 8 and golden.has_small_gradients]
RULES = st.sampled_from(Discards)


def certified(profile: ChainProfile, budget: int, claim: Claim) -> int:
    """The claim's makespan, once the simulator agrees with it."""
    replay = simulate(profile, claim.schedule, discards=claim.discards)
    assert replay.peak_bytes <= budget
    assert claim.makespan == claim.lower_bound == replay.makespan
    return replay.makespan


def agrees_with_golden(method: MIP | CPSAT, golden: GoldenChain) -> None:
    """The optimum of the file, or the least budget where nothing fits."""
    rules = Discards(method.discards)
    optimum = golden.optimum[rules]
    if optimum is not None:
        claim = method(golden.profile, golden.budget)
        assert certified(golden.profile, golden.budget, claim) == optimum
        return
    name = "" if rules is Discards.TABLE1 else f"{rules} "
    with pytest.raises(InfeasibleBudgetError, match=f"^no ({name}|single-sweep )sch") as caught:
        method(golden.profile, golden.budget)
    assert caught.value.required == golden.min_budget[rules]


def agrees_with_search(
    method: MIP | CPSAT, profile: ChainProfile, budget: int, *, hinted: bool = False
) -> None:
    """The optimum of exhaustive search, or, of a narrower family, nothing faster."""
    optimum = search.optimum(profile, budget, discards=method.discards)
    try:
        claim = method(profile, budget, hint=optimum.schedule if hinted else None)
    except InfeasibleBudgetError as error:
        assert "single-sweep" in str(error)  # noqa: PT017 - most draws do not raise
        return
    makespan = certified(profile, budget, claim)
    assert makespan == optimum.makespan or claim.family is not Family.ALL
    assert makespan >= optimum.makespan


def has_exact_least_budget(method: MIP | CPSAT, solve: Solve, profile: ChainProfile) -> None:
    """What fits in it, that a byte less is refused, and that search needs as much."""
    rules = Discards(method.discards)
    required = minimum_budget(profile, method, solve)
    least = search.least_budget(profile, discards=rules)
    assert required >= least
    if required > 0:
        claim = method(profile, required)
        agrees_with_search(method, profile, required)
        assert required == least or claim.family is not Family.ALL
        with pytest.raises(InfeasibleBudgetError) as caught:
            method(profile, required - 1)
        assert caught.value.required == required


def answer(method: Method, profile: ChainProfile, budget: int) -> tuple[str, int]:
    """What a method proves, feasible or not."""
    try:
        return "optimum", certified(profile, budget, method(profile, budget))
    except InfeasibleBudgetError as error:
        return "required", error.required


def budget_between(profile: ChainProfile, discards: Discards, eighths: int) -> int:
    """From the least budget (0) to that of keeping everything (8), at least a byte."""
    least = search.least_budget(profile, discards=discards)
    all_kept = simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
    return max(1, least + eighths * (all_kept - least) // 8)


@st.composite
def small_chains(draw: st.DrawFn, *, max_stages: int = 5) -> ChainProfile:
    """The shared families in bytes or unrelated sizes of many digits; some thin, some tame."""
    profile = draw(chains(max_stages=max_stages))
    thin, scale = draw(st.sampled_from([0, 0, 1, 2])), draw(st.sampled_from([1, 1, 10**9 + 7]))
    is_tame = draw(st.booleans())

    made = [sum(s.bytes for s in profile.skips if s.first == i + 1) for i in range(len(profile))]

    def stretched(i: int, stage: Stage) -> Stage:
        gradient = (
            min(stage.gradient_bytes, stage.output_bytes) if is_tame else stage.gradient_bytes
        )
        return dataclasses.replace(
            stage,
            output_bytes=scale * stage.output_bytes,
            saved_bytes=scale * max(made[i], stage.saved_bytes - thin) + (scale > 1) * i,
            gradient_bytes=scale * gradient,
            forward_overhead_bytes=scale * stage.forward_overhead_bytes,
            backward_overhead_bytes=scale * stage.backward_overhead_bytes,
        )

    return ChainProfile(
        input_bytes=scale * profile.input_bytes,
        input_gradient_bytes=scale * profile.input_gradient_bytes,
        stages=tuple(stretched(i, stage) for i, stage in enumerate(profile.stages)),
        skips=tuple(
            dataclasses.replace(
                skip, bytes=scale * skip.bytes, gradient_bytes=scale * skip.gradient_bytes
            )
            for skip in profile.skips
        ),
    )


@st.composite
def huge_chains(draw: st.DrawFn, *, largest_bits: int) -> ChainProfile:
    """Sizes of up to 2**48 that are unrelated, or a few bytes off the same power of two."""
    power = 2 ** draw(st.integers(40, largest_bits))
    near = st.builds(int.__add__, st.sampled_from([0, power // 2, power - 9]), st.integers(0, 9))
    sizes = draw(st.sampled_from([st.integers(0, power - 9), near]))
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
