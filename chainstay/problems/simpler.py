"""Records of numbers made a little simpler, so that a counter-example gets as small as it can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from chainstay.errors import InvalidProfileError
from chainstay.profiles import ChainProfile, Stage

_Record = TypeVar("_Record")
_Part = TypeVar("_Part")


def smaller(number: int) -> Iterator[int]:
    """Yield numbers to try instead of `number`, ascending from 0 to one less.

    Example:
        >>> list(smaller(10))
        [0, 5, 8, 9]
    """
    step = number
    while step > 0:
        yield number - step
        step //= 2


def with_smaller_numbers(record: _Record) -> Iterator[_Record]:
    """Yield `record` with one number less, wherever in it that is; only what is valid."""
    for field in fields(record):  # type: ignore[arg-type]  # it is a dataclass
        for value in _smaller_values(getattr(record, field.name)):
            with suppress(InvalidProfileError):
                changes: dict[str, Any] = {field.name: value}
                yield replace(record, **changes)  # type: ignore[type-var]  # as above


def _smaller_values(value: Any) -> Iterator[Any]:
    if isinstance(value, int) and not isinstance(value, bool):
        yield from smaller(value)
    elif isinstance(value, tuple):
        for i, part in enumerate(value):
            for less in _smaller_values(part):
                yield _with_part(value, i, less)
    elif is_dataclass(value):
        yield from with_smaller_numbers(value)


def simpler_chains(profile: ChainProfile) -> Iterator[ChainProfile]:
    """Yield chains with one stage or skip less, then with an option or a number less."""
    for i in range(len(profile) * (len(profile) > 1)):
        with suppress(InvalidProfileError):  # its skips no longer fit in its sizes
            yield _without_stage(profile, i)
    for i in range(len(profile.skips)):
        yield replace(profile, skips=profile.skips[:i] + profile.skips[i + 1 :])
    for i, stage in enumerate(profile.stages):
        for plainer in _plainer_stages(stage):
            with suppress(InvalidProfileError):
                yield replace(profile, stages=_with_part(profile.stages, i, plainer))
    yield from with_smaller_numbers(profile)


def _plainer_stages(stage: Stage) -> Iterator[Stage]:
    """Yield the stage with one option less, or one kind of run less that has its own costs."""
    for k, option in enumerate(stage.options):
        yield replace(stage, options=stage.options[:k] + stage.options[k + 1 :])
        plainer = replace(option, again=None, needs_input=True)
        if plainer != option:
            yield replace(stage, options=_with_part(stage.options, k, plainer))
    for field, plain in _PLAIN.items():
        if getattr(stage, field) != plain:
            yield replace(stage, **{field: plain})


_PLAIN: Final[Mapping[str, Any]] = {
    **dict.fromkeys(("first", "again", "dropped_first", "dropped_again")),
    "needs_input": True,
}


def _with_part(parts: tuple[_Part, ...], place: int, part: _Part) -> tuple[_Part, ...]:
    return (*parts[:place], part, *parts[place + 1 :])


def _without_stage(profile: ChainProfile, i: int) -> ChainProfile:
    """Return the chain without stage i and its output.

    Skips go on between what remains, and options are left out that would reach past the end.
    """
    last = len(profile) - 2
    ends = [(s.first - (s.first > i + 1), min(last, s.last - (s.last > i))) for s in profile.skips]
    skips = zip(profile.skips, ends, strict=True)
    stages = profile.stages[:i] + profile.stages[i + 1 :]
    return replace(
        profile,
        stages=tuple(
            replace(stage, options=tuple(o for o in stage.options if j + o.stages <= len(stages)))
            for j, stage in enumerate(stages)
        ),
        skips=tuple(
            replace(skip, first=first, last=end) for skip, (first, end) in skips if first < end
        ),
    )
