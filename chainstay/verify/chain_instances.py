"""Random chains under budgets, each made from a seed and a number alone.

Instance ``number`` of a seed is the same whether it is drawn alone or after a million others, in
any process.
"""

from __future__ import annotations

import random
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Final, TypeAlias

from chainstay.problems import ChainProblem
from chainstay.profiles import ChainProfile, Skip, Stage

CHAIN_FAMILIES: Final = (
    "plain",  # gradients like activations, saved data a few times the output
    "fat",  # saved data far larger than activations
    "wild",  # nothing holds: large gradients, saved data below the output
    "shrinking",  # the domain in which persistent schedules are as good as any
    "homogeneous",  # all stages alike
    "weightless",  # some stages without memory or without time
    "measured",  # sizes in MiB and a few bytes, times in microseconds and a few ns
    "skips",  # some tensors are part of several activations
)
_LENGTHS: Final = (1, 2, 3, 3, 4, 4, 4, 5, 5, 5, 6, 8, 12, 20)
_LARGEST_SIZES: Final = (3, 10, 60)
_SHARES: Final = 8

_Random: TypeAlias = random.Random


def random_chain(seed: int, number: int) -> ChainProblem:
    """Return instance `number` of `seed`: a chain of some family and a tight to ample budget.

    Example:
        >>> random_chain(1, 7) == random_chain(1, 7), random_chain(1, 7) == random_chain(1, 8)
        (True, False)
    """
    draw = random.Random(f"chainstay {seed} {number}")  # noqa: S311  # reproducible, no secret
    profile = _chain(draw, draw.choice(CHAIN_FAMILIES))
    return ChainProblem(profile, random_budget(draw, profile))


def random_budget(draw: _Random, profile: ChainProfile) -> int:
    """Return a budget from about the least, of the leanest options, to that of plain training."""
    least = profile.input_bytes + max(
        profile.activation_bytes(i) * (i > 0)
        + min(
            option.saved_bytes
            + max(
                option.first.overhead_bytes,
                option.backward_overhead_bytes
                + profile.gradient_bytes(i)
                + profile.gradient_bytes(i + option.stages),
            )
            for option in stage.all_options
        )
        for i, stage in enumerate(profile.stages)
    )
    most = max(least, profile.input_bytes + sum(stage.saved_bytes for stage in profile.stages))
    return max(1, least + (most - least) * draw.randint(0, _SHARES) // _SHARES)


def _chain(draw: _Random, family: str) -> ChainProfile:
    count, largest = draw.choice(_LENGTHS), draw.choice(_LARGEST_SIZES)
    activations = [draw.randint(0, largest) for _ in range(count + 1)]
    if family == "shrinking":
        activations.sort(reverse=True)
    if family == "homogeneous":
        activations = activations[:1] * (count + 1)
        stages = [_stage(draw, family, activations[0], largest)] * count
    else:
        sizes = "wild" if family == "skips" and draw.random() < 1 / 4 else family
        stages = [_stage(draw, sizes, after, largest) for _, after in pairwise(activations)]
    profile = ChainProfile(
        input_bytes=activations[0],
        input_gradient_bytes=draw.choice([0, activations[0]]),
        stages=tuple(stages),
    )
    match family:
        case "measured":
            return _measured(draw, profile)
        case "skips":
            return _with_skips(draw, profile, largest)
    return profile


def _stage(draw: _Random, family: str, output: int, largest: int) -> Stage:
    stage = Stage(
        name=family,
        forward_time=_time(draw),
        backward_time=_time(draw),
        output_bytes=output,
        saved_bytes=output + draw.randint(0, largest) * (5 if family == "fat" else 1),
        gradient_bytes=output,
        forward_overhead_bytes=draw.randint(0, largest),
        backward_overhead_bytes=draw.randint(0, largest),
    )
    match family:
        case "wild":
            saved, gradient = draw.randint(0, largest), draw.randint(0, largest)
            return replace(stage, saved_bytes=saved, gradient_bytes=gradient)
        case "shrinking":
            overhead = min(stage.forward_overhead_bytes, stage.backward_overhead_bytes)
            return replace(stage, forward_overhead_bytes=overhead)
        case "weightless" if draw.random() < 1 / 2:
            time = stage.forward_time * draw.randint(0, 1)
            return Stage(name=family, forward_time=time, output_bytes=output, saved_bytes=output)
    return stage


def _time(draw: _Random) -> int:
    return draw.randint(0, draw.choice([3, 100]))


def _measured(draw: _Random, profile: ChainProfile) -> ChainProfile:
    """Return the same proportions in numbers of many digits that share no divisor."""

    def stretch(stage: Stage) -> Stage:
        sizes = {
            name: value * 2**20 + draw.randint(0, 7) * (name == "saved_bytes")
            for name, value in asdict(stage).items()
            if name.endswith("_bytes")
        }
        forward = stage.forward_time * 1000 + draw.randint(0, 7)
        return replace(stage, forward_time=forward, **sizes)

    return ChainProfile(
        input_bytes=profile.input_bytes * 2**20,
        input_gradient_bytes=profile.input_gradient_bytes * 2**20,
        stages=tuple(map(stretch, profile.stages)),
    )


def _with_skips(draw: _Random, profile: ChainProfile, largest: int) -> ChainProfile:
    """Return the chain with one to four tensors more, each part of several activations."""
    for _ in range(draw.randint(1, 4) * (len(profile) > 1)):
        first, last = sorted(draw.sample(range(len(profile)), 2))
        size = draw.randint(0, largest)
        gradient = draw.choice([0, size])
        profile = with_skip(
            profile, Skip(first=first, last=last, bytes=size, gradient_bytes=gradient)
        )
    return profile


def with_skip(profile: ChainProfile, skip: Skip) -> ChainProfile:
    """Return `profile` with a tensor more; all sizes that count it grow by it.

    Example:
        >>> chain = ChainProfile(input_bytes=5, input_gradient_bytes=0, stages=(Stage(),) * 3)
        >>> chain = with_skip(chain, Skip(first=1, last=2, bytes=10))
        >>> [chain.activation_bytes(i) for i in range(4)], chain.stages[0].saved_bytes
        ([5, 10, 10, 0], 10)
    """

    def grown(i: int, stage: Stage) -> Stage:
        is_here, is_made = i + 1 in skip.states, i + 1 == skip.first
        return replace(
            stage,
            output_bytes=stage.output_bytes + skip.bytes * is_here,
            gradient_bytes=stage.gradient_bytes + skip.gradient_bytes * is_here,
            saved_bytes=stage.saved_bytes + skip.bytes * is_made,
        )

    return replace(
        profile,
        input_bytes=profile.input_bytes + skip.bytes * (skip.first == 0),
        input_gradient_bytes=profile.input_gradient_bytes + skip.gradient_bytes * (skip.first == 0),
        stages=tuple(grown(i, stage) for i, stage in enumerate(profile.stages)),
        skips=(*profile.skips, skip),
    )
