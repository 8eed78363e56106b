"""Families of offloading instances, for hypothesis."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from hypothesis import strategies as st

from chainstay.profiles import Link, OffloadProfile


class OffloadCase(NamedTuple):
    """A chain, a feasible budget in bytes and a link."""

    profile: OffloadProfile
    budget: int
    link: Link


@st.composite
def offload_profiles(draw: st.DrawFn, *, max_stages: int = 6) -> OffloadProfile:
    """A chain of 1 to `max_stages` stages, with or without gradients and overheads."""
    stages = draw(st.integers(1, max_stages))
    largest = draw(st.sampled_from([4, 9, 100]))
    sizes = st.integers(0, largest)
    others = st.just(0) if draw(st.booleans()) else st.integers(0, largest // 2)
    times = st.integers(0, 6)

    def several(values: st.SearchStrategy[int], count: int) -> tuple[int, ...]:
        return tuple(draw(st.lists(values, min_size=count, max_size=count)))

    return OffloadProfile(
        activations=several(sizes, stages + 1),
        gradients=several(others, stages + 1),
        forward_overheads=several(others, stages),
        backward_overheads=several(others, stages),
        forward_times=several(times, stages),
        backward_times=several(times, stages),
    )


@st.composite
def offload_cases(
    draw: st.DrawFn, *, max_stages: int = 6, simple_links: bool = False
) -> OffloadCase:
    """A chain under a budget between the least and what plain training needs."""
    profile = draw(offload_profiles(max_stages=max_stages))
    budget = draw(st.integers(profile.required_bytes, max(profile.peak_bytes, 1)))
    bandwidth = draw(st.sampled_from([Fraction(1, 2), Fraction(1), Fraction(2), Fraction(5, 3)]))
    if simple_links or draw(st.booleans()):
        return OffloadCase(profile, max(1, budget), Link(bandwidth=bandwidth))
    latency = draw(st.sampled_from([Fraction(0), Fraction(1), Fraction(1, 3)]))
    duplex = draw(st.sampled_from(["half", "full"]))
    link = Link(bandwidth=bandwidth, latency=latency, duplex=duplex)
    return OffloadCase(profile, max(1, budget), link)
