"""The numbers in profiles: checks that every profile makes, and changes of all sizes or times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, SupportsIndex, TypeVar

from chainstay.errors import InvalidProfileError
from chainstay.units import whole_number

_Record = TypeVar("_Record")

_LARGEST: Final = 2**48
"""Largest size or time: 256 TiB, or 78 hours. Sums over a long chain still fit in int64."""


def all_of(value: object, kind: type, what: str) -> tuple[object, ...]:
    """Return `value` as a tuple whose items are all of one kind, or refuse it."""
    if not isinstance(value, tuple | list):
        raise InvalidProfileError(f"{what} is {value!r}, must be a tuple of {kind.__name__}")
    for position, item in enumerate(value):
        if not isinstance(item, kind):
            raise InvalidProfileError(f"{what}[{position}] is {item!r}, must be a {kind.__name__}")
    return tuple(value)


def whole(value: SupportsIndex, what: str) -> int:
    """Return `value` as an int (numpy integers are accepted, floats and bools are not)."""
    if (number := whole_number(value)) is None:
        raise InvalidProfileError(f"{what} is {value!r}, must be a whole number (bytes or ns)")
    if not 0 <= number <= _LARGEST:
        bits = number.bit_length()
        shown = number if bits < 200 else f"a number of {bits} bits"
        raise InvalidProfileError(f"{what} is {shown}, must be from 0 to 2**48")
    return number


def with_numbers(
    record: _Record, ending: str | tuple[str, ...], change: Callable[[int], int]
) -> _Record:
    """Return a dataclass with `change` made of every number whose name ends with `ending`.

    Numbers of its parts are changed, too: ``with_numbers(profile, "bytes", change)`` changes the
    sizes of all stages and options. What is no dataclass comes back as it is.
    """
    if not is_dataclass(record):
        return record
    changes: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if isinstance(value, tuple):
            changes[field.name] = tuple(with_numbers(part, ending, change) for part in value)
        elif is_dataclass(value):
            changes[field.name] = with_numbers(value, ending, change)
        elif field.name.endswith(ending):
            changes[field.name] = change(value)
    return replace(record, **changes)  # type: ignore[type-var]  # it is a dataclass
