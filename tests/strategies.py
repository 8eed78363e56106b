"""Families of chain instances, for hypothesis: every property test draws from here."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from chainstay.profiles import ChainProfile, Stage

TIMES = st.one_of(st.integers(0, 3), st.integers(0, 100))
FAMILIES = (
    "plain",  # gradients like activations, saved data a few times the output
    "fat",  # saved data far larger than activations
    "wild",  # nothing holds: large gradients, saved data below the output
    "shrinking",  # the domain in which persistent schedules are as good as any
    "homogeneous",  # all stages alike
    "weightless",  # some stages without memory or without time
)


@st.composite
def chains(
    draw: st.DrawFn, *, max_stages: int = 8, families: tuple[str, ...] = FAMILIES
) -> ChainProfile:
    """A chain of 1 to `max_stages` stages of one of `families`."""
    family = draw(st.sampled_from(families))
    count = draw(st.integers(1, max_stages))
    largest = draw(st.sampled_from([3, 10, 60]))
    sizes = st.integers(0, largest)
    activations = draw(st.lists(sizes, min_size=count + 1, max_size=count + 1))
    if family == "shrinking":
        activations.sort(reverse=True)
    if family == "homogeneous":
        activations = activations[:1] * (count + 1)
        stage = draw(_stages(family, activations[0], activations[0], largest))
        stages = [stage] * count
    else:
        pairs = pairwise(activations)
        stages = [draw(_stages(family, before, after, largest)) for before, after in pairs]
    return ChainProfile(
        input_bytes=activations[0],
        input_gradient_bytes=draw(st.sampled_from([0, activations[0]])),
        stages=tuple(stages),
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
