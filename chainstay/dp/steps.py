"""Falling step functions of memory, inside compiled code: look up, add, take the lowest."""
# ruff: noqa: PLR0913, PLR0917  # compiled code has no objects to hold what it needs

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from chainstay.dp.jit import kernel
from chainstay.dp.recursion import Array

__all__ = [
    "Pair",
    "Steps",
    "add_term",
    "buffers",
    "corner_at",
    "gain_within",
    "merge_moved",
    "part_within",
    "value_at",
    "with_room",
]

_BEYOND: Final = 2**62
_IDLE: Final = 8
"""Corners of a sum without a gain after which it is worth looking for the next gain."""


class Steps(NamedTuple):
    """Corners ``first .. last`` of two arrays, moved right by `shift` bytes.

    Attributes:
        memory: Bytes, strictly ascending from `first` to `last`.
        overhead: ns, strictly descending likewise; it holds from its memory on.
        first: Index of the first corner.
        last: Index of the last corner; ``first - 1`` if there is none.
        shift: Bytes to add to every memory.
    """

    memory: Array
    overhead: Array
    first: int
    last: int
    shift: int


Pair = tuple[Array, Array]
"""Memory and overhead of equal length, to write corners to."""


@kernel
def buffers(size: int) -> Pair:
    """Room for `size` corners."""
    return np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)


@kernel
def with_room(pool: Pair, used: int, size: int) -> Pair:
    """`pool`, or a larger copy of its first `used` corners, with room for `size` more."""
    if used + size <= len(pool[0]):
        return pool
    larger = buffers(max(used + size, len(pool[0]) * 3 // 2))
    larger[0][:used] = pool[0][:used]
    larger[1][:used] = pool[1][:used]
    return larger


@kernel
def corner_at(steps: Steps, m: int) -> int:
    """Index of the corner that holds at `m` bytes, ``first - 1`` if none does."""
    low, high = steps.first - 1, steps.last
    while low < high:
        middle = (low + high + 1) >> 1
        if steps.memory[middle] + steps.shift <= m:
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def value_at(steps: Steps, m: int, otherwise: int) -> int:
    """Value at `m` bytes, or `otherwise` where no corner holds."""
    corner = corner_at(steps, m)
    return steps.overhead[corner] if corner >= steps.first else otherwise


@kernel
def _first_gain(
    lowest: Steps, one: Steps, other: Steps, constant: int, start: int, stop: int, ceiling: int
) -> int:
    """Least memory from `start` to `stop` where a sum lies below `lowest`, or -1.

    Args:
        lowest: What is to be undercut; it counts as `ceiling` before its first corner.
        one: First term; a corner of it holds at `start`.
        other: Second term, likewise.
        constant: Third term.
        start: Bytes.
        stop: Bytes, at least `start`.
        ceiling: Sums must lie below it anyway.
    """
    i, j, p = corner_at(one, start), corner_at(other, start), corner_at(lowest, start)
    last_i, last_j = corner_at(one, stop), corner_at(other, stop)
    here, leap = start, 15
    while here <= stop:
        while p < lowest.last and lowest.memory[p + 1] + lowest.shift <= here:
            p += 1
        target = lowest.overhead[p] if p >= lowest.first else ceiling
        if constant + one.overhead[i] + other.overhead[j] < target:
            return here
        # `lowest` falls, so there is no gain before the sum falls below today's target:
        # leap over corners while it does not, twice as far each time, else less far.
        far_i, far_j = min(i + leap, last_i), min(j + leap, last_j)
        if constant + one.overhead[far_i] + other.overhead[far_j] < target:
            leap >>= 1
            continue
        leap = 2 * leap + 1
        after_i = one.memory[far_i + 1] + one.shift if far_i < last_i else _BEYOND
        after_j = other.memory[far_j + 1] + other.shift if far_j < last_j else _BEYOND
        here = min(after_i, after_j)
        if here > stop:
            break
        i = far_i + 1 if after_i == here else far_i
        j = far_j + 1 if after_j == here else far_j
        while one.memory[i] + one.shift > here:
            i -= 1
        while other.memory[j] + other.shift > here:
            j -= 1
    return -1


@kernel
def _push(memory: Array, overhead: Array, size: int, m: int, value: int) -> int:
    """Append a corner unless it is no lower; returns the new size."""
    if size and overhead[size - 1] <= value:
        return size
    if size and memory[size - 1] == m:
        size -= 1
    memory[size] = m
    overhead[size] = value
    return size + 1


@kernel
def _copy(lowest: Steps, p: int, end: int, memory: Array, overhead: Array, size: int) -> int:
    """Append corners ``p .. end - 1`` as far as they are lower; returns the new size."""
    if size:
        while p < end and lowest.overhead[p] >= overhead[size - 1]:
            p += 1
    if p < end:
        memory[size : size + end - p] = lowest.memory[p:end]
        overhead[size : size + end - p] = lowest.overhead[p:end]
        size += end - p
    return size


@kernel
def _merge_sum(
    lowest: Steps,
    one: Steps,
    other: Steps,
    constant: int,
    start: int,
    stop: int,
    ceiling: int,
    memory: Array,
    overhead: Array,
) -> int:
    """The lower of `lowest` and a sum that counts from `start` to `stop` bytes.

    Sums mostly gain in a few places, so between those `lowest` is copied as it is.

    Args: as `_first_gain`; the result goes to the front of `memory` and `overhead`, which
    are long enough for all corners of the three.

    Returns:
        The number of corners of the result.
    """
    p, size, here = lowest.first, 0, start
    while here >= 0:
        before = corner_at(lowest, here - 1) + 1
        size = _copy(lowest, p, before, memory, overhead, size)
        p = before
        i, j = corner_at(one, here), corner_at(other, here)
        idle = 0
        while here <= stop and idle < _IDLE:
            while p <= lowest.last and lowest.memory[p] <= here:
                size = _push(memory, overhead, size, lowest.memory[p], lowest.overhead[p])
                p += 1
            value = constant + one.overhead[i] + other.overhead[j]
            idle += 1
            if value < ceiling and (size == 0 or value < overhead[size - 1]):
                size = _push(memory, overhead, size, here, value)
                idle = 0
            after_i = one.memory[i + 1] + one.shift if i < one.last else _BEYOND
            after_j = other.memory[j + 1] + other.shift if j < other.last else _BEYOND
            here = min(after_i, after_j)
            if after_i == here:
                i += 1
            if after_j == here:
                j += 1
        if here > stop:
            break
        here = _first_gain(lowest, one, other, constant, here, stop, ceiling)
    return _copy(lowest, p, lowest.last + 1, memory, overhead, size)


@kernel
def merge_moved(
    lowest: Steps,
    one: Steps,
    constant: int,
    start: int,
    stop: int,
    ceiling: int,
    memory: Array,
    overhead: Array,
) -> int:
    """As `_merge_sum`, of one term: corners of `one` before `start` count from there."""
    p, size = lowest.first, 0
    for i in range(max(corner_at(one, start), one.first), one.last + 1):
        here = max(one.memory[i] + one.shift, start)
        if here > stop:
            break
        while p <= lowest.last and lowest.memory[p] <= here:
            size = _push(memory, overhead, size, lowest.memory[p], lowest.overhead[p])
            p += 1
        value = constant + one.overhead[i]
        if value < ceiling:
            size = _push(memory, overhead, size, here, value)
    while p <= lowest.last:
        size = _push(memory, overhead, size, lowest.memory[p], lowest.overhead[p])
        p += 1
    return size


@kernel
def part_within(steps: Steps, limits: tuple[int, int]) -> Steps:
    """The corners up to some bytes and below some ns, where they stand."""
    cap, ceiling = limits
    low, high = steps.first, corner_at(steps, cap) + 1
    last = high - 1
    while low < high:
        middle = (low + high) >> 1
        if steps.overhead[middle] < ceiling:
            high = middle
        else:
            low = middle + 1
    return Steps(steps.memory, steps.overhead, low, last, steps.shift)


@kernel
def _memory_until(steps: Steps, overhead: int) -> int:
    """The most memory at which the steps lie above `overhead`."""
    low, high = steps.first, steps.last + 1
    while low < high:
        middle = (low + high) >> 1
        if steps.overhead[middle] <= overhead:
            high = middle
        else:
            low = middle + 1
    return steps.memory[low] + steps.shift - 1 if low <= steps.last else _BEYOND


@kernel
def gain_within(
    lowest: Steps,
    one: Steps,
    other: Steps,
    constant: int,
    start: int,
    limits: tuple[int, int],
) -> tuple[int, int]:
    """From and up to how many bytes a sum may lie below `lowest`; -1 and 0 if nowhere.

    Args: as `add_term`, but `lowest` may start anywhere and be shifted.
    """
    cap, ceiling = limits
    stop = min(cap, _memory_until(lowest, constant))  # where the constant alone is too much
    if start > stop:
        return -1, 0
    floor = constant + value_at(one, stop, 0) + value_at(other, stop, 0)
    if floor >= value_at(lowest, start, ceiling):
        return -1, 0
    return _first_gain(lowest, one, other, constant, start, stop, ceiling), stop


@kernel
def add_term(
    lowest: Steps,
    one: Steps,
    other: Steps,
    constant: int,
    start: int,
    limits: tuple[int, int],
    spare: Pair,
) -> tuple[Steps, Pair]:
    """The lower of `lowest` and a sum from `start` bytes on; buffers change places if needed.

    Args:
        lowest: Starts at index 0, not shifted.
        one: First term.
        other: Second term; corners of both hold at `start`.
        constant: Third term.
        start: Bytes.
        limits: The most bytes that matter, and the least ns that is too many.
        spare: To write to.

    Returns:
        The result, in one of the two buffers, and the other one.
    """
    start, stop = gain_within(lowest, one, other, constant, start, limits)
    if start < 0:
        return lowest, spare
    size = lowest.last + one.last - one.first + other.last - other.first + 3
    if size > len(spare[0]):
        spare = buffers(2 * size)
    ceiling = limits[1]
    size = _merge_sum(lowest, one, other, constant, start, stop, ceiling, spare[0], spare[1])
    return Steps(spare[0], spare[1], 0, size - 1, 0), (lowest.memory, lowest.overhead)
