"""Fronts for each position of the moving checkpoint.

For a sub-chain that keeps its own input, ``R(j, k, ·)`` is the front of what runs once the
checkpoint has moved to stage j, whether it stays there or moves on. There is one for each k; as j
falls, R is brought up to date.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chainstay.dp.forward_costs import Array
from chainstay.dp.jit import kernel
from chainstay.dp.step_functions import (
    INFINITE,
    Buffer,
    StepFunction,
    Window,
    merge_shifted,
    new_buffer,
)


class MovingFronts(NamedTuple):
    """The fronts ``R(j, ·)`` for the position j that is being computed.

    Attributes:
        memory: Shape (fronts, capacity), bytes of breakpoints.
        overhead: Shape (fronts, capacity), ns of breakpoints.
        size: Shape (fronts,): how many breakpoints a front has.
        least: Shape (fronts,): bytes from which on a front holds; moving on may need more than
            its first breakpoint.
        best: Shape (fronts,): the last overhead, in ns.
    """

    memory: Array
    overhead: Array
    size: Array
    least: Array
    best: Array


@kernel
def no_fronts(buffer: Buffer) -> MovingFronts:
    """Return fronts without breakpoints; `buffer` has room for some, one row for each front."""
    fronts = len(buffer[0])
    size, best = np.zeros(fronts, dtype=np.int64), np.zeros(fronts, dtype=np.int64)
    return MovingFronts(buffer[0], buffer[1], size, np.full(fronts, INFINITE, dtype=np.int64), best)


@kernel
def front_of(moving: MovingFronts, index: int) -> StepFunction:
    """Return one of the fronts."""
    size = moving.size[index]
    return StepFunction(moving.memory[index], moving.overhead[index], 0, size - 1, 0)


@kernel
def _with_capacity(moving: MovingFronts, size: int) -> MovingFronts:
    """Return `moving`, or a larger copy of it, with room for `size` breakpoints each."""
    capacity = moving.memory.shape[1]
    if size <= capacity:
        return moving
    memory = np.empty((len(moving.size), 2 * size), dtype=np.int64)
    overhead = np.empty_like(memory)
    memory[:, :capacity] = moving.memory
    overhead[:, :capacity] = moving.overhead
    return MovingFronts(memory, overhead, moving.size, moving.least, moving.best)


@kernel
def merge_position(
    moving: MovingFronts, index: int, here: StepFunction, memory: int, spare: Buffer
) -> tuple[MovingFronts, Buffer]:
    """Replace one front, from its `least` on, by its minimum with `here`.

    Args:
        moving: The fronts; a larger copy is made if needed.
        index: Which front to replace.
        here: The front of staying at this position.
        memory: The largest useful number of bytes.
        spare: A buffer to write to; a larger one is made if needed.

    Returns:
        The fronts and the spare buffer.
    """
    count = moving.size[index]
    size = count + here.last - here.first + 1
    moving = _with_capacity(moving, size)
    if 2 * size > len(spare[0]):
        spare = new_buffer(4 * size)
    half = len(spare[0]) // 2
    above = (spare[0][half:], spare[1][half:])
    if count:
        nothing = StepFunction(above[0], above[1], 0, -1, 0)
        front = front_of(moving, index)
        window = Window(moving.least[index], memory, INFINITE)
        count = merge_shifted(nothing, front, 0, window, above)
    moved = StepFunction(above[0], above[1], 0, count - 1, 0)
    count = merge_shifted(moved, here, 0, Window(0, memory, INFINITE), spare)
    moving.memory[index, :count] = spare[0][:count]
    moving.overhead[index, :count] = spare[1][:count]
    moving.size[index] = count
    moving.least[index] = moving.memory[index, 0] if count else INFINITE
    moving.best[index] = moving.overhead[index, count - 1] if count else 0
    return moving, spare
