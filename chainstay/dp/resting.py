"""Where a floating activation rests: the factored half of the programs that let it float.

For a sub-chain that keeps its own input, ``R(j, k, ·)`` is the front of what runs once the
activation has floated to stage j, whether it rests there or moves on. There is one for each k
(`weak`), or each k and what is left behind (`detached`); j falls, and R is brought up to date.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from chainstay.dp.jit import kernel
from chainstay.dp.recursion import Array
from chainstay.dp.steps import Pair, Steps, buffers, merge_moved

__all__ = ["Resting", "arrive", "nothing_rests"]

_BEYOND: Final = 2**61


class Resting(NamedTuple):
    """All R for the j at hand.

    Attributes:
        memory: Shape (fronts, capacity), bytes.
        overhead: Likewise, ns.
        size: Shape (fronts,), corners.
        least: From how many bytes on it holds: moving on may need more than its corners.
        best: Last overhead.
    """

    memory: Array
    overhead: Array
    size: Array
    least: Array
    best: Array


@kernel
def nothing_rests(buffer: Pair) -> Resting:
    """No corners yet; `buffer` has room for some, one row for each front."""
    fronts = len(buffer[0])
    size, best = np.zeros(fronts, dtype=np.int64), np.zeros(fronts, dtype=np.int64)
    return Resting(buffer[0], buffer[1], size, np.full(fronts, _BEYOND, dtype=np.int64), best)


@kernel
def _with_capacity(resting: Resting, size: int) -> Resting:
    """`resting`, or a larger copy of it, with room for `size` corners each."""
    capacity = resting.memory.shape[1]
    if size <= capacity:
        return resting
    memory = np.empty((len(resting.size), 2 * size), dtype=np.int64)
    overhead = np.empty_like(memory)
    memory[:, :capacity] = resting.memory
    overhead[:, :capacity] = resting.overhead
    return Resting(memory, overhead, resting.size, resting.least, resting.best)


@kernel
def arrive(
    resting: Resting, index: int, here: Steps, cap: int, spare: Pair
) -> tuple[Resting, Pair]:
    """The lower of one R, from its `least` on, and `here`."""
    count = resting.size[index]
    size = count + here.last - here.first + 1
    resting = _with_capacity(resting, size)
    if 2 * size > len(spare[0]):
        spare = buffers(4 * size)
    half = len(spare[0]) // 2
    above = (spare[0][half:], spare[1][half:])
    moved = Steps(resting.memory[index], resting.overhead[index], 0, count - 1, 0)
    if count:
        nothing = Steps(above[0], above[1], 0, -1, 0)
        floor = resting.least[index]
        count = merge_moved(nothing, moved, 0, floor, cap, _BEYOND, above[0], above[1])
    moved = Steps(above[0], above[1], 0, count - 1, 0)
    count = merge_moved(moved, here, 0, 0, cap, _BEYOND, spare[0], spare[1])
    resting.memory[index, :count] = spare[0][:count]
    resting.overhead[index, :count] = spare[1][:count]
    resting.size[index] = count
    resting.least[index] = resting.memory[index, 0] if count else _BEYOND
    resting.best[index] = resting.overhead[index, count - 1] if count else 0
    return resting, spare
