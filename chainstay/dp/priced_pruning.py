"""What cannot matter under a limit, by the bound of `prices`, inside compiled code."""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.jit import kernel
from chainstay.dp.recursion import Array
from chainstay.dp.steps import Steps

__all__ = [
    "Priced",
    "PricedLimit",
    "keep_affordable",
    "priced_limit",
    "room_within",
    "without_limit",
]

_Floats = NDArray[np.float64]

_ROUNDING: Final = 2.0**-32
_NO_LIMIT: Final = 2.0**61


class Priced(Protocol):
    """A bound by prices; `PriceBound` tells what its attributes are."""

    memory: int
    least: Array
    rerun_time: int
    step: float
    around: _Floats


class PricedLimit(NamedTuple):
    """A limit on the overhead of whole schedules, and what it leaves to sub-chains.

    Attributes:
        overhead: ns, with what covers the rounding of the bound, which is made of doubles.
        memory: Bytes besides the network's input.
        step: As in `PriceBound`.
        around: Likewise.
        least: Shape (n, n), at [s, t]: stages s..t do not run in less; or zeros.
    """

    overhead: float
    memory: int
    step: float
    around: _Floats
    least: Array


def priced_limit(bound: Priced, overhead: int) -> PricedLimit:
    """What can be part of schedules with at most this overhead."""
    rounding = _ROUNDING * bound.rerun_time + 1
    return PricedLimit(overhead + rounding, bound.memory, bound.step, bound.around, bound.least)


def without_limit(memory: int, least: Array) -> PricedLimit:
    """Whatever fits in `memory` can matter."""
    return PricedLimit(_NO_LIMIT, memory, 0.0, np.zeros((*least.shape, 1)), least)


@kernel
def _outside(limit: PricedLimit, lines: _Floats, m: int) -> float:
    highest = lines[0]
    for i in range(1, len(lines)):
        highest = max(highest, lines[i] + i * limit.step * m)
    return float(highest)


@kernel
def room_within(limit: PricedLimit, lines: _Floats, stored: int, least: int) -> tuple[int, int]:
    """The most bytes with which a sub-chain can matter, and the least ns that is too many.

    Args:
        limit: As everywhere.
        lines: Shape (prices,): a schedule that gives the sub-chain m bytes spends at least
            ``lines[i] + i * step * m`` outside of it, for each i.
        stored: Bytes, at least, that its input takes; 0 for the network's.
        least: It needs as many bytes.
    """
    left = limit.overhead - _outside(limit, lines, least)
    if left < 0:
        return -1, 0
    cap = float(limit.memory - stored)
    for i in range(1, len(lines)):
        cap = min(cap, (limit.overhead - lines[i]) / (i * limit.step))
    return int(np.floor(cap)), int(np.floor(left)) + 1


@kernel
def keep_affordable(
    limit: PricedLimit, lines: _Floats, corners: Steps, memory: Array, overhead: Array
) -> int:
    """Copy the corners of a sub-chain that leave enough to stages outside of it.

    Args:
        limit: As everywhere.
        lines: As for `room_within`.
        corners: Of the sub-chain.
        memory: To write to, from the front.
        overhead: Likewise.

    Returns:
        How many there are.
    """
    highest, count = 0, 0
    for corner in range(corners.first, corners.last + 1):
        m = corners.memory[corner]
        while highest + 1 < len(lines) and lines[highest + 1] + limit.step * m >= lines[highest]:
            highest += 1
        spent = corners.overhead[corner] + lines[highest] + highest * limit.step * m
        if spent <= limit.overhead:
            memory[count] = m
            overhead[count] = corners.overhead[corner]
            count += 1
    return count
