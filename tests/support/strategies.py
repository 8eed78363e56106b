"""Families of chain instances, for hypothesis: every property test draws from here."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import strategies as st

from chainstay.profiles import ChainProfile, Skip, Stage
from chainstay.verify.chain_instances import with_skip
from chainstay.verify.option_instances import ENVIRONMENTS, OPTION_FAMILIES, with_options

TIMES = st.one_of(st.integers(0, 3), st.integers(0, 100))
FAMILIES_WITHOUT_SKIPS = (
    "plain",  # gradients like activations, saved data a few times the output
    "fat",  # saved data far larger than activations
    "wild",  # nothing holds: large gradients, saved data below the output
    "shrinking",  # the domain in which persistent schedules are as good as any
    "homogeneous",  # all stages alike
    "weightless",  # some stages without memory or without time
)
FAMILIES = (
    *FAMILIES_WITHOUT_SKIPS,
    "skips",  # some tensors are part of several activations
)
"""Families of plain chains; those of `OPTION_FAMILIES` add options to one of these."""


@st.composite
def chains(
    draw: st.DrawFn, *, max_stages: int = 8, families: tuple[str, ...] = FAMILIES
) -> ChainProfile:
    """A chain of 1 to `max_stages` stages of one of `families`."""
    family = draw(st.sampled_from(families))
    if family in (*OPTION_FAMILIES, ENVIRONMENTS):
        plain = draw(chains(max_stages=max_stages))
        return with_options(draw(st.randoms(use_true_random=False)), plain, family)
    count = draw(st.integers(1, max_stages))
    largest = draw(st.sampled_from([3, 10, 60]))
    activations = draw(st.lists(st.integers(0, largest), min_size=count + 1, max_size=count + 1))
    if family == "shrinking":
        activations.sort(reverse=True)
    if family == "homogeneous":
        activations = activations[:1] * (count + 1)
        stage = draw(_stages(family, activations[0], activations[0], largest))
        stages = [stage] * count
    else:
        pairs = pairwise(activations)
        sizes = draw(st.sampled_from(["plain", "wild"])) if family == "skips" else family
        stages = [draw(_stages(sizes, before, after, largest)) for before, after in pairs]
    profile = ChainProfile(
        input_bytes=activations[0],
        input_gradient_bytes=draw(st.sampled_from([0, activations[0]])),
        stages=tuple(stages),
    )
    if family == "skips" and count > 1:
        for skip in draw(st.lists(_skips(count, largest), min_size=1, max_size=4)):
            profile = with_skip(profile, skip)
    return profile


def with_options_of_one_stage(max_stages: int = 8) -> st.SearchStrategy[ChainProfile]:
    """Chains, some of them with options and costs by kind of run, but not of several stages."""

    def apart(profile: ChainProfile) -> ChainProfile:
        stages = (
            replace(stage, options=tuple(option for option in stage.options if option.stages == 1))
            for stage in profile.stages
        )
        return replace(profile, stages=tuple(stages))

    options = chains(max_stages=max_stages, families=OPTION_FAMILIES)
    return st.one_of(chains(max_stages=max_stages), options.map(apart))


@st.composite
def _skips(draw: st.DrawFn, stages: int, largest: int) -> Skip:
    first = draw(st.integers(0, stages - 2))
    size = draw(st.integers(0, largest))
    return Skip(
        first=first,
        last=draw(st.integers(first + 1, stages - 1)),
        bytes=size,
        gradient_bytes=draw(st.sampled_from([0, size])),
    )


@st.composite
def _stages(draw: st.DrawFn, family: str, before: int, after: int, largest: int) -> Stage:
    extra = st.integers(0, largest)
    output, saved, gradient = after, after + draw(extra), after
    overhead, backward_overhead = draw(extra), draw(extra)
    forward_time = draw(TIMES)
    if family == "fat":
        saved = after + 5 * draw(extra)
    elif family == "wild":
        saved, gradient = draw(extra), draw(extra)
    elif family == "shrinking":
        overhead = min(overhead, backward_overhead)
    elif family == "weightless" and draw(st.booleans()):
        saved, gradient = output, 0
        overhead = backward_overhead = 0
        forward_time = draw(st.sampled_from([0, forward_time]))
    return Stage(
        name=f"{family} {before}->{after}",
        forward_time=forward_time,
        backward_time=draw(TIMES),
        output_bytes=output,
        saved_bytes=saved,
        gradient_bytes=gradient,
        forward_overhead_bytes=overhead,
        backward_overhead_bytes=backward_overhead,
    )
