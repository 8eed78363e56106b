"""Random chains under budgets, each made from a seed and a number alone, and simpler ones.

For `chainstay.verify`: instance ``number`` of a seed is the same whether it is drawn alone
or after a million others, in any process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final, TypeAlias, TypeVar

from chainstay.errors import InvalidProfileError
from chainstay.profiles import ChainProfile, Skip, Stage

__all__ = ["CHAIN_FAMILIES", "ChainInstance", "random_chain", "simpler_chains", "with_skip"]

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
_Record = TypeVar("_Record", ChainProfile, Skip, Stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainInstance:
    """A chain and a budget in bytes."""

    profile: ChainProfile
    budget: int


def random_chain(seed: int, number: int) -> ChainInstance:
    """Return instance `number` of `seed`: a chain of some family and a tight to ample budget.

    Example:
        >>> random_chain(1, 7) == random_chain(1, 7), random_chain(1, 7) == random_chain(1, 8)
        (True, False)
    """
    draw = random.Random(f"chainstay {seed} {number}")  # noqa: S311  # reproducible, no secret
    profile = _chain(draw, draw.choice(CHAIN_FAMILIES))
    least, most = _least_bytes(profile), _most_bytes(profile)
    budget = least + (most - least) * draw.randint(0, _SHARES) // _SHARES
    return ChainInstance(profile=profile, budget=max(1, budget))


def simpler_chains(instance: ChainInstance) -> Iterator[ChainInstance]:
    """Yield instances a little simpler than this one, the simplest first.

    One stage or skip less; all sizes and the budget, or all times, at a half; one number
    less by all, a half, a quarter, … of it.
    """
    profile = instance.profile
    for i in range(len(profile) * (len(profile) > 1)):
        yield from _if_valid(instance, partial(_without_stage, profile, i))
    for i in range(len(profile.skips)):
        skips = profile.skips[:i] + profile.skips[i + 1 :]
        yield replace(instance, profile=replace(profile, skips=skips))
    yield from _halved(instance)
    for value in filter(None, _smaller(instance.budget)):
        yield replace(instance, budget=value)
    for change in _with_one_number_less(profile):
        yield from _if_valid(instance, change)


def _if_valid(
    instance: ChainInstance, change: Callable[[], ChainProfile]
) -> Iterator[ChainInstance]:
    """Yield the instance on a changed chain, unless its skips no longer fit in its sizes."""
    with suppress(InvalidProfileError):
        yield replace(instance, profile=change())


def _with_one_number_less(profile: ChainProfile) -> Iterator[Callable[[], ChainProfile]]:
    """Yield functions that make chains with one size, time or reach less."""
    for field in ("input_bytes", "input_gradient_bytes"):
        for value in _smaller(getattr(profile, field)):
            yield partial(_with, profile, field, value)
    for parts in ("stages", "skips"):
        for i, record in enumerate(getattr(profile, parts)):
            for field, quantity in asdict(record).items():
                for value in () if field == "name" else _smaller(quantity):
                    yield partial(_with_part, profile, parts, i, field, value)


def _without_stage(profile: ChainProfile, i: int) -> ChainProfile:
    """Return the chain without stage i and its output; skips go on between what remains."""
    last = len(profile) - 2
    ends = [(s.first - (s.first > i + 1), min(last, s.last - (s.last > i))) for s in profile.skips]
    skips = zip(profile.skips, ends, strict=True)
    return replace(
        profile,
        stages=profile.stages[:i] + profile.stages[i + 1 :],
        skips=tuple(
            replace(skip, first=first, last=end) for skip, (first, end) in skips if first < end
        ),
    )


def _with(record: _Record, field: str, value: int) -> _Record:
    changes: dict[str, Any] = {field: value}
    return replace(record, **changes)


def _with_part(profile: ChainProfile, parts: str, i: int, field: str, value: int) -> ChainProfile:
    """Return `profile` with one field of its stage or skip number i changed."""
    records = [*getattr(profile, parts)]
    records[i] = _with(records[i], field, value)
    changes: dict[str, Any] = {parts: tuple(records)}
    return replace(profile, **changes)


def _halved(instance: ChainInstance) -> Iterator[ChainInstance]:
    """Yield all sizes and the budget at a half, and all times, where that is simpler."""
    profile = instance.profile
    sizes = ChainProfile(
        input_bytes=profile.input_bytes // 2,
        input_gradient_bytes=profile.input_gradient_bytes // 2,
        stages=tuple(_half(stage, "bytes") for stage in profile.stages),
        skips=tuple(_half(skip, "bytes") for skip in profile.skips),
    )
    times = replace(profile, stages=tuple(_half(stage, "_time") for stage in profile.stages))
    if instance.budget > 1:
        yield ChainInstance(profile=sizes, budget=instance.budget // 2)
    if times != profile:
        yield replace(instance, profile=times)


def _half(record: _Record, which: str) -> _Record:
    """Return `record` with half of every quantity whose name ends in `which`."""
    changes = {name: n // 2 for name, n in asdict(record).items() if name.endswith(which)}
    return replace(record, **changes)


def _smaller(value: int) -> Iterator[int]:
    """Yield numbers to try instead of `value`, ascending from 0 to one less."""
    step = value
    while step:
        yield value - step
        step //= 2


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


def _least_bytes(profile: ChainProfile) -> int:
    """Return the bytes that the largest stage needs with its input: about the least budget."""
    return profile.input_bytes + max(
        max(
            profile.gradient_bytes(i) + stage.gradient_bytes + stage.backward_overhead_bytes,
            stage.forward_overhead_bytes,
        )
        + stage.saved_bytes
        + profile.activation_bytes(i) * (i > 0)
        for i, stage in enumerate(profile.stages)
    )


def _most_bytes(profile: ChainProfile) -> int:
    """Return about the bytes that plain training needs."""
    kept = sum(stage.saved_bytes for stage in profile.stages)
    return max(_least_bytes(profile), profile.input_bytes + kept)
