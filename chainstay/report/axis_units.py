"""Units for axes: one for all numbers of a chart."""

from __future__ import annotations

from typing import NamedTuple

from chainstay.problems import Problem


class Scale(NamedTuple):
    """A unit of an axis.

    Attributes:
        unit: Name of the unit.
        factor: Number of bytes or ns that it has.
    """

    unit: str
    factor: float


def memory_scale(problem: Problem) -> Scale:
    """Return slots, or the binary unit in which the budget has a number of 1 to 1,023."""
    if problem.unit != "bytes":
        return Scale(problem.unit, 1)
    units = (Scale(unit, 1024**power) for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")))
    return next((scale for scale in units if problem.budget >= scale.factor), Scale("bytes", 1))


def time_scale(largest: float) -> Scale:
    """Return the unit in which `largest` ns have a number of 1 to 999; seconds are the largest."""
    scales = (Scale("s", 1e9), Scale("ms", 1e6), Scale("µs", 1e3))
    return next((scale for scale in scales if largest >= scale.factor), Scale("ns", 1))
