"""Random joins under budgets, each made from a seed and a number alone, and simpler ones."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from typing import Final

from chainstay.profiles import ChainProfile, HomogeneousJoin, Join, JoinProfile, Stage

__all__ = ["JOIN_FAMILIES", "JoinInstance", "random_join", "simpler_joins"]

JOIN_FAMILIES: Final = (
    "slots",  # the unit-slot model
    "slots and a tail",  # the same with steps after the join
    "plain",  # gradients like activations, saved data a few times the output
    "shrinking",  # convolutional towers: activations get smaller
    "twins",  # two or three towers that are alike
    "wild",  # nothing holds: large gradients, saved data below the output
)
_SHARES: Final = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinInstance:
    """A join, a budget in bytes or slots, and whose input's gradient to keep."""

    profile: Join
    budget: int
    keep: tuple[bool, ...]


def random_join(seed: int, number: int) -> JoinInstance:
    """Return instance `number` of `seed`: a join of some family and a tight to ample budget.

    Example:
        >>> random_join(1, 7) == random_join(1, 7) != random_join(1, 8)
        True
    """
    draw = random.Random(f"chainstay join {seed} {number}")  # noqa: S311  # reproducible
    family = draw.choice(JOIN_FAMILIES)
    branches = draw.choice([1, 2, 2, 2, 3])
    keep = tuple(draw.random() < 1 / 5 for _ in range(branches))
    profile: Join
    if family.startswith("slots"):
        profile = _slots(draw, branches, has_tail=family != "slots")
        least, most = branches + 1, profile.enough_slots
    else:
        profile = _join(draw, branches, family)
        least, most = _bounds(profile)
    budget = least + (most - least) * draw.randint(0, _SHARES) // _SHARES
    return JoinInstance(profile=profile, budget=max(1, budget), keep=keep)


def simpler_joins(instance: JoinInstance) -> Iterator[JoinInstance]:
    """Yield instances a little simpler than this one: a stage, a branch, bytes or time less."""
    profile, keep = instance.profile, instance.keep
    if any(keep):
        yield replace(instance, keep=(False,) * len(keep))
    for value in {instance.budget // 2, instance.budget - 1} - {0}:
        yield replace(instance, budget=value)
    if isinstance(profile, HomogeneousJoin):
        yield from _simpler_slots(instance, profile)
        return
    if len(profile.branches) > 1:
        for j in range(len(profile.branches)):
            rest = profile.branches[:j] + profile.branches[j + 1 :]
            joined = _joined(rest, profile.tail)
            yield replace(instance, profile=joined, keep=keep[:j] + keep[j + 1 :])
    for branches, tail in _smaller_chains(profile):
        if (joined := _joined(branches, tail)) != profile:  # a tail's input is as its branches say
            yield replace(instance, profile=joined)


def _simpler_slots(instance: JoinInstance, profile: HomogeneousJoin) -> Iterator[JoinInstance]:
    lengths, keep = profile.lengths, instance.keep
    for j, length in enumerate(lengths):
        if len(lengths) > 1:
            fewer = replace(profile, lengths=lengths[:j] + lengths[j + 1 :])
            yield replace(instance, profile=fewer, keep=keep[:j] + keep[j + 1 :])
        if length:
            shorter = (*lengths[:j], length - 1, *lengths[j + 1 :])
            yield replace(instance, profile=replace(profile, lengths=shorter))
    if profile.tail_steps is not None:
        tail = profile.tail_steps - 1 if profile.tail_steps else None
        yield replace(instance, profile=replace(profile, tail_steps=tail))
    for timeless in (
        replace(profile, forward_time=0),
        replace(profile, backward_time=0),
        replace(profile, turn_time=0),
    ):
        if timeless != profile:
            yield replace(instance, profile=timeless)


def _smaller_chains(
    profile: JoinProfile,
) -> Iterator[tuple[tuple[ChainProfile, ...], ChainProfile | None]]:
    """Yield branches and tails with one stage or quantity less."""
    if profile.tail is not None:
        yield profile.branches, None
        for tail in _smaller(profile.tail):
            yield profile.branches, tail
    for j, branch in enumerate(profile.branches):
        for smaller in _smaller(branch):
            yield (*profile.branches[:j], smaller, *profile.branches[j + 1 :]), profile.tail


def _smaller(chain: ChainProfile) -> Iterator[ChainProfile]:
    for i in range(len(chain) * (len(chain) > 1)):
        yield replace(chain, stages=chain.stages[:i] + chain.stages[i + 1 :])
    for field in ("input_bytes", "input_gradient_bytes"):
        for value in {0, getattr(chain, field) // 2} - {getattr(chain, field)}:
            yield replace(chain, **{field: value})
    for i, stage in enumerate(chain.stages):
        for name, quantity in asdict(stage).items():
            for value in () if name == "name" else {0, quantity // 2, quantity - 1} - {quantity}:
                if value >= 0:
                    fewer = replace(stage, **{name: value})
                    yield replace(chain, stages=(*chain.stages[:i], fewer, *chain.stages[i + 1 :]))


def _joined(branches: tuple[ChainProfile, ...], tail: ChainProfile | None) -> JoinProfile:
    """Return a join of these branches with this tail, whose input is made to match."""
    joined = JoinProfile(branches=branches)
    if tail is None:
        return joined
    fitted = replace(
        tail,
        input_bytes=joined.output_bytes,
        input_gradient_bytes=joined.output_gradient_bytes,
    )
    return JoinProfile(branches=branches, tail=fitted)


def _slots(draw: random.Random, branches: int, *, has_tail: bool) -> HomogeneousJoin:
    longest = {1: 9, 2: 6, 3: 4}[branches]
    lengths = tuple(draw.randint(0, longest) for _ in range(branches))
    return JoinProfile.homogeneous(
        lengths,
        forward_time=draw.randint(0, 5),
        backward_time=draw.randint(0, 5),
        turn_time=draw.randint(0, 3),
        tail_steps=draw.randint(0, 4) if has_tail else None,
    )


def _join(draw: random.Random, branches: int, family: str) -> JoinProfile:
    largest, longest = draw.choice([3, 9, 40]), {1: 6, 2: 4, 3: 2}[branches]
    towers = [_chain(draw, family, draw.randint(1, longest), largest) for _ in range(branches)]
    if family == "twins":
        towers = towers[:1] * branches
    tail = None
    if draw.random() < 3 / 4:
        tail = _chain(draw, family, draw.choice([1, 1, 2, 3]), largest)
    return _joined(tuple(towers), tail)


def _chain(draw: random.Random, family: str, count: int, largest: int) -> ChainProfile:
    sizes = [draw.randint(1, largest) for _ in range(count + 1)]
    if family == "shrinking":
        sizes.sort(reverse=True)
    stages = []
    for size in sizes[1:]:
        is_wild = family == "wild"
        stages.append(
            Stage(
                name=family,
                forward_time=draw.randint(0, 9),
                backward_time=draw.randint(0, 9),
                output_bytes=size,
                saved_bytes=draw.randint(0, largest) + size * (not is_wild),
                gradient_bytes=draw.randint(0, largest) if is_wild else size,
                forward_overhead_bytes=draw.randint(0, largest // 3),
                backward_overhead_bytes=draw.randint(0, largest // 3),
            )
        )
    return ChainProfile(
        input_bytes=sizes[0],
        input_gradient_bytes=draw.choice([0, sizes[0]]),
        stages=tuple(stages),
    )


def _bounds(profile: JoinProfile) -> tuple[int, int]:
    """Return about the least budget, and about what plain training needs."""
    chains = (*profile.branches, profile.closing)
    inputs = sum(branch.input_bytes for branch in profile.branches)
    needs = [
        stage.saved_bytes + stage.gradient_bytes + stage.backward_overhead_bytes
        for chain in chains
        for stage in chain.stages
    ]
    saved = list(accumulate(stage.saved_bytes for chain in chains for stage in chain.stages))
    least = inputs + max(*needs, profile.output_bytes + profile.output_gradient_bytes)
    return least, max(least, inputs + saved[-1] + max(needs))
