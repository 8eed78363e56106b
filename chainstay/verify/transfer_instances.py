"""Random problems with transfers, each made from a seed and a number alone."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction
from typing import Final

from chainstay.problems import HybridProblem, OffloadProblem
from chainstay.profiles import Link, OffloadProfile
from chainstay.verify.chain_instances import random_chain
from chainstay.verify.option_instances import WITH_LINKS, with_options

OFFLOAD_FAMILIES: Final = (
    "plain",  # gradients like activations
    "bare",  # activations only: no gradients, no overheads
    "large",  # sizes of three digits
    "sparse",  # many sizes and times are zero
    "measured",  # sizes in MiB and a few bytes, times in microseconds and a few ns
)
_LENGTHS: Final = (1, 2, 3, 3, 4, 4, 5, 5, 6, 7, 9, 14)
_BANDWIDTHS: Final = tuple(map(Fraction, ("1/2", "1", "1", "2", "3", "5/3")))
_HYBRID_BANDWIDTHS: Final = tuple(map(Fraction, ("1/3", "1", "2", "5/2", "9")))
_LIMITED: Final = (5, 7)
"""Remainders by 8 of the numbers of hybrid instances whose host has a limit."""
_WITH_OPTIONS: Final = 4
"""Every so many hybrid instances have stage options."""
_SHARES: Final = 8


def random_offload(seed: int, number: int) -> OffloadProblem:
    """Return instance `number` of `seed`; one in eight budgets is infeasible.

    Example:
        >>> random_offload(1, 7) == random_offload(1, 7) != random_offload(1, 8)
        True
    """
    draw = random.Random(f"chainstay offload {seed} {number}")  # noqa: S311  # reproducible
    family, stages = draw.choice(OFFLOAD_FAMILIES), draw.choice(_LENGTHS)
    profile = _profile(draw, family, stages)
    least, most = profile.required_bytes, profile.peak_bytes
    budget = least + (most - least) * draw.randint(0, _SHARES) // _SHARES
    if draw.random() < 1 / 8:
        budget = draw.randint(least // 2, max(least - 1, least // 2))
    latency = draw.choice([Fraction(0)] * 6 + [Fraction(1), Fraction(1, 2)])
    link = Link(
        bandwidth=draw.choice(_BANDWIDTHS) * (1000 if family == "measured" else 1),
        latency=latency,
        duplex=draw.choice(["half"] * 5 + ["full"]),
    )
    return OffloadProblem(profile, max(1, budget), link)


def _profile(draw: random.Random, family: str, stages: int) -> OffloadProfile:
    largest = {"large": 150, "sparse": 4}.get(family, draw.choice([4, 8]))
    unit, slowest = (2**20, 6000) if family == "measured" else (1, 6)

    def size(most: int) -> int:
        if family == "sparse" and draw.random() < 1 / 3:
            return 0
        noise = draw.randint(0, 7) if family == "measured" else 0
        return unit * draw.randint(0 if family == "sparse" else min(1, most), most) + noise

    def time() -> int:
        if family == "sparse" and draw.random() < 1 / 3:
            return 0
        return draw.randint(1, slowest)

    activations = tuple(size(largest) for _ in range(stages + 1))
    bare = family == "bare"
    return OffloadProfile(
        activations=activations,
        gradients=tuple(0 if bare else draw.choice([x, size(largest)]) for x in activations),
        forward_overheads=tuple(0 if bare else size(largest // 3) for _ in range(stages)),
        backward_overheads=tuple(0 if bare else size(largest // 3) for _ in range(stages)),
        forward_times=tuple(time() for _ in range(stages)),
        backward_times=tuple(time() for _ in range(stages)),
    )


def random_hybrid(seed: int, number: int) -> HybridProblem:
    """Return instance `number` of `seed`; now and then the budget is infeasible.

    Example:
        >>> random_hybrid(1, 7) == random_hybrid(1, 7) != random_hybrid(1, 8)
        True
    """
    draw = random.Random(f"chainstay hybrid {seed} {number}")  # noqa: S311  # reproducible
    profile = replace(random_chain(seed, number).profile, skips=())
    if number % _WITH_OPTIONS == 1:
        profile = with_options(draw, profile, WITH_LINKS)
    is_measured = profile.stages[0].name == "measured"
    link = Link(bandwidth=draw.choice(_HYBRID_BANDWIDTHS) * (1000 if is_measured else 1))
    if number % _SHARES in _LIMITED:
        room = sum(stage.saved_bytes for stage in profile.stages)
        link = replace(link, capacity=draw.randint(0, room))
    least = HybridProblem(profile, 1, link).required_bytes
    most = max(least, profile.input_bytes + sum(stage.saved_bytes for stage in profile.stages))
    budget = least + (most - least) * draw.randint(0, _SHARES) // _SHARES
    if draw.random() < 1 / 10:
        budget = least - draw.randint(1, 1 + least // 4)
    return HybridProblem(profile, max(1, budget), link)
