"""Whole numbers; bytes and nanoseconds as people write them: ``"8GiB"``, ``"50%"``, ``47.4 ms``."""

from __future__ import annotations

import operator
import re
from fractions import Fraction
from math import ceil
from typing import Any, Final

_FACTORS: Final = {
    "": 1,
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}
_QUANTITY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")
_PERCENTAGE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")
_LONGEST_TEXT: Final = 64


def whole_number(value: Any) -> int | None:
    """Return the int that `value` stands for, or ``None`` if there is none, as for a bool.

    Example:
        >>> whole_number(3), whole_number(3.0), whole_number(True)
        (3, None, None)
    """
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:  # arrays and tensors have an index, unless they hold a fraction
        return None


def parse_bytes(text: str) -> int | None:
    """Return the whole bytes meant by `text`, rounded down, or ``None`` if it is not a size.

    Units are B, kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (powers of 1024),
    in any case.

    Example:
        >>> parse_bytes("1.5 GiB"), parse_bytes("20MB"), parse_bytes("1.5 apples")
        (1610612736, 20000000, None)
    """
    match = _QUANTITY.fullmatch(text.strip().lower()) if len(text) <= _LONGEST_TEXT else None
    if match is None or match[2] not in _FACTORS:
        return None
    return int(Fraction(match[1]) * _FACTORS[match[2]])


def parse_percentage(text: str) -> Fraction | None:
    """Return the share meant by `text`, exactly, or ``None`` if it is not a percentage.

    Example:
        >>> parse_percentage("50%"), parse_percentage("8GiB")
        (Fraction(1, 2), None)
    """
    match = _PERCENTAGE.fullmatch(text.strip()) if len(text) <= _LONGEST_TEXT else None
    return None if match is None else Fraction(match[1]) / 100


def format_bytes(size: int) -> str:
    """Return `size` in the largest binary unit that leaves at least 1 before the point.

    Example:
        >>> format_bytes(1965000000), format_bytes(14)
        ('1.83 GiB', '14 bytes')
    """
    if abs(size) < 1024:
        return f"{size} byte{'s' * (size != 1)}"
    amount, units = size / 1024, iter(("KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while abs(amount) >= 1023.995 and unit != "TiB":
        amount, unit = amount / 1024, next(units)
    return f"{amount:.2f} {unit}"


def format_bound(share: float) -> str:
    """Return an upper bound on a share in percent, rounded up.

    Example:
        >>> format_bound(0.123), format_bound(0.12341), format_bound(1e-15), format_bound(0)
        ('12.30%', '12.35%', '0.01%', '0.00%')
    """
    hundredths = ceil(round(share * 10_000, 6))
    return f"{max(hundredths, share > 0) / 100:.2f}%"


def format_time(time: float | Fraction) -> str:
    """Return a duration in ns as text for people, to three digits.

    Example:
        >>> format_time(47_420_000), format_time(950)
        ('47.4 ms', '950 ns')
    """
    nanoseconds = float(time)
    rounded = float(f"{nanoseconds:.3g}")
    if abs(rounded) >= 1e12:
        return f"{nanoseconds / 1e9:.0f} s"
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(rounded) >= factor:
            return f"{rounded / factor:g} {unit}"
    return f"{rounded:.0f} ns"
