"""Random offloading instances, each made from a seed and a number alone, and simpler ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from itertools import accumulate
from typing import Any, Final

from chainstay.profiles import Link, OffloadProfile

__all__ = ["OFFLOAD_FAMILIES", "OffloadInstance", "random_offload", "simpler_offload"]

OFFLOAD_FAMILIES: Final = (
    "plain",  # gradients like activations
    "bare",  # activations only: no gradients, no overheads
    "large",  # sizes of three digits
    "sparse",  # many sizes and times are zero
    "measured",  # sizes in MiB and a few bytes, times in microseconds and a few ns
)
_LENGTHS: Final = (1, 2, 3, 3, 4, 4, 5, 5, 6, 7, 9, 14)
_BANDWIDTHS: Final = tuple(map(Fraction, ("1/2", "1", "1", "2", "3", "5/3")))
_SHARES: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadInstance:
    """A chain, a budget in bytes and a link."""

    profile: OffloadProfile
    budget: int
    link: Link


def random_offload(seed: int, number: int) -> OffloadInstance:
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
    return OffloadInstance(profile=profile, budget=max(1, budget), link=link)


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


def simpler_offload(instance: OffloadInstance) -> Iterator[OffloadInstance]:
    """Yield instances a little simpler than this one, the simplest first.

    One stage less; a simpler link; one number less by all, a half, a quarter, … of it.
    """
    profile, link = instance.profile, instance.link
    for i in range(len(profile) * (len(profile) > 1)):
        yield replace(instance, profile=_without_stage(profile, i))
    for other in (replace(link, latency=0), replace(link, duplex="half"), Link(bandwidth=1)):
        if _weight(other) < _weight(link):
            yield replace(instance, link=other)
    for value in _smaller(instance.budget):
        if value:
            yield replace(instance, budget=value)
    for field in fields(profile):
        numbers = getattr(profile, field.name)
        for i, number in enumerate(numbers):
            for value in _smaller(number):
                changed: dict[str, Any] = {field.name: (*numbers[:i], value, *numbers[i + 1 :])}
                yield replace(instance, profile=replace(profile, **changed))


def _weight(link: Link) -> tuple[int, ...]:
    bandwidth, latency = Fraction(link.bandwidth), Fraction(link.latency)
    terms = (bandwidth.numerator, bandwidth.denominator, latency.numerator, latency.denominator)
    return (link.is_full_duplex + sum(terms), *terms)


def _without_stage(profile: OffloadProfile, i: int) -> OffloadProfile:
    """Return the profile without stage i and its output."""

    def without(numbers: tuple[int, ...], index: int) -> tuple[int, ...]:
        return numbers[:index] + numbers[index + 1 :]

    return OffloadProfile(
        activations=without(profile.activations, i + 1),
        gradients=without(profile.gradients, i + 1),
        forward_overheads=without(profile.forward_overheads, i),
        backward_overheads=without(profile.backward_overheads, i),
        forward_times=without(profile.forward_times, i),
        backward_times=without(profile.backward_times, i),
    )


def _smaller(number: int) -> Iterator[int]:
    """Yield 0, a half, three quarters, … of `number`, up to one less."""
    steps = accumulate(range(number.bit_length()), lambda step, _: step // 2, initial=number)
    yield from dict.fromkeys(number - step for step in steps if step)
