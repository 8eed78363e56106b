"""Units for axes: one for all numbers of a chart."""

from __future__ import annotations

from typing import Final, NamedTuple

__all__ = ["SLOTS", "Scale", "byte_scale", "time_scale"]


class Scale(NamedTuple):
    """A unit of an axis.

    Attributes:
        unit: Name of the unit.
        factor: Number of bytes or ns that it has.
    """

    unit: str
    factor: float


SLOTS: Final = Scale("slots", 1)
"""The unit of homogeneous joins."""


def byte_scale(largest: float) -> Scale:
    """Return the binary unit in which `largest` bytes have a number of 1 to 1,023.

    Example:
        >>> byte_scale(3 * 2**30)
        Scale(unit='GiB', factor=1073741824)
    """
    scales = (Scale(unit, 1024**power) for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")))
    return next((scale for scale in scales if largest >= scale.factor), Scale("bytes", 1))


def time_scale(largest: float) -> Scale:
    """Return the unit in which `largest` ns have a number of 1 to 999; seconds are the largest."""
    scales = (Scale("s", 1e9), Scale("ms", 1e6), Scale("µs", 1e3))
    return next((scale for scale in scales if largest >= scale.factor), Scale("ns", 1))
