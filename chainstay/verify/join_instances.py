"""Random joins under budgets, each made from a seed and a number alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Final

from chainstay.problems import JoinProblem
from chainstay.problems.join import joined
from chainstay.profiles import (
    ChainProfile,
    HomogeneousJoin,
    Join,
    JoinProfile,
    SharedGradient,
    Stage,
)
from chainstay.verify.option_instances import with_options

JOIN_FAMILIES: Final = (
    "slots",  # the unit-slot model
    "slots and a tail",  # the same with steps after the join
    "plain",  # gradients like activations, saved data a few times the output
    "shrinking",  # convolutional towers: activations get smaller
    "twins",  # two or three towers that are alike
    "wild",  # nothing holds: large gradients, saved data below the output
)
_OPTION_FAMILIES: Final = ("", "", "options", "runs")
"""As `OPTION_FAMILIES`: joins take no options of several stages. Half have no options."""
_SHARES: Final = 6


def random_join(seed: int, number: int) -> JoinProblem:
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
    return JoinProblem(profile, max(1, budget), keep)


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
    if options := draw.choice(_OPTION_FAMILIES):
        towers = [with_options(draw, tower, options) for tower in towers]
        tail = tail and with_options(draw, tail, options)
    join = joined(tuple(towers), tail)
    if join.stages == 1 or draw.random() < 1 / 2:
        return join
    return replace(
        join, shared=tuple(_shared(draw, join, largest, family) for _ in range(draw.randint(1, 4)))
    )


def _shared(draw: random.Random, join: JoinProfile, largest: int, family: str) -> SharedGradient:
    """Return a gradient of any stages; of twins mostly one of stages that are alike."""
    count, length = draw.randint(2, min(3, join.stages)), len(join.branches[0])
    users = draw.sample(range(join.stages), count)
    if family == "twins" and len(join.branches) > 1 and draw.random() < 3 / 4:
        users = list(range(draw.randrange(length), length * len(join.branches), length))
    return SharedGradient(bytes=draw.randint(0, 2 * largest), users=tuple(sorted(users)))


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
    held = sum(branch.input_bytes for branch in profile.branches)
    held += sum(gradient.bytes for gradient in profile.shared)
    needs = [
        stage.gradient_bytes
        + min(option.saved_bytes + option.backward_overhead_bytes for option in stage.all_options)
        for stage in profile.all_stages
    ]
    saved = sum(stage.saved_bytes for stage in profile.all_stages)
    least = held + max(*needs, profile.output_bytes + profile.output_gradient_bytes)
    return least, max(least, held + saved + max(needs))
