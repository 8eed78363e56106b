"""Falling step functions of memory, in compiled code: look up a value, add, take the minimum.

A step function is given by its *breakpoints*: from ``memory[i]`` bytes on it is ``overhead[i]`` ns,
until the next breakpoint. Before its first breakpoint it is infinite.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from chainstay.dp.forward_costs import Array
from chainstay.dp.jit import kernel

INFINITE: Final = 2**61
"""Bytes that a front without breakpoints begins at; the sum of two still fits in int64."""
_NO_BREAKPOINT: Final = 2**62
"""Bytes of the breakpoint behind a step function's last one: beyond all, shifted or not."""
FIRST_CAPACITY: Final = 1024
"""Breakpoints that pools and buffers have room for at first."""
_MOST_MISSES: Final = 8
"""Breakpoints of a sum in a row without a gain, after which the next gain is searched for."""


class StepFunction(NamedTuple):
    """Breakpoints ``first .. last`` of two arrays, moved right by `shift` bytes.

    Attributes:
        memory: Bytes, strictly ascending from `first` to `last`.
        overhead: Ns, strictly descending from `first` to `last`; each holds from its memory on.
        first: Index of the first breakpoint.
        last: Index of the last breakpoint; ``first - 1`` if there is none.
        shift: Bytes to add to every memory.
    """

    memory: Array
    overhead: Array
    first: int
    last: int
    shift: int


class StepSum(NamedTuple):
    """The sum of two step functions and a constant.

    Attributes:
        one: First term.
        other: Second term.
        constant: Third term, in ns.
    """

    one: StepFunction
    other: StepFunction
    constant: int


class Cutoff(NamedTuple):
    """Breakpoints outside of these limits are of no use.

    Attributes:
        memory: The largest useful number of bytes.
        overhead: The least useless overhead, in ns.
    """

    memory: int
    overhead: int


class Window(NamedTuple):
    """The memory in which a sum counts, and the overhead below which it has to lie.

    Attributes:
        start: Bytes from which on it counts; both terms are finite there.
        stop: Bytes up to which it counts.
        ceiling: Ns below which it has to lie.
    """

    start: int
    stop: int
    ceiling: int


Buffer = tuple[Array, Array]
"""Memory and overhead of equal length, to write breakpoints to."""


class Pool(NamedTuple):
    """The breakpoints of many step functions, one function after another.

    Attributes:
        memory: Bytes; entries from `used` on are free.
        overhead: Ns; entries from `used` on are free.
        used: Number of breakpoints stored.
    """

    memory: Array
    overhead: Array
    used: int


class RunningMinimum(NamedTuple):
    """The minimum of several step functions while they are merged one after another.

    Attributes:
        lowest: The minimum so far; its breakpoints start at index 0, and it is not shifted.
        spare: A buffer to write the next minimum to.
    """

    lowest: StepFunction
    spare: Buffer


@kernel
def new_buffer(size: int) -> Buffer:
    """Return a buffer for `size` breakpoints."""
    return np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)


@kernel
def new_pool() -> Pool:
    """Return a pool with one breakpoint: where nothing is left to do, 0 ns from 0 bytes on."""
    memory, overhead = new_buffer(FIRST_CAPACITY)
    memory[0], overhead[0] = 0, 0
    return Pool(memory, overhead, 1)


@kernel
def with_room(pool: Pool, size: int) -> Pool:
    """Return `pool`, or a larger copy of it, with room for `size` breakpoints more."""
    memory, overhead, used = pool
    if used + size <= len(memory):
        return pool
    larger = new_buffer(max(used + size, len(memory) * 3 // 2))
    larger[0][:used] = memory[:used]
    larger[1][:used] = overhead[:used]
    return Pool(larger[0], larger[1], used)


@kernel
def breakpoint_at(steps: StepFunction, m: int) -> int:
    """Return the index of the breakpoint that holds at `m` bytes, ``first - 1`` if none does."""
    low, high = steps.first - 1, steps.last
    while low < high:
        middle = (low + high + 1) >> 1
        if steps.memory[middle] + steps.shift <= m:
            low = middle
        else:
            high = middle - 1
    return low


@kernel
def value_at(steps: StepFunction, m: int, otherwise: int) -> int:
    """Return the value at `m` bytes, or `otherwise` where the function is infinite."""
    index = breakpoint_at(steps, m)
    return steps.overhead[index] if index >= steps.first else otherwise


@kernel
def _first_gain(lowest: StepFunction, total: StepSum, window: Window) -> int:
    """Return the least memory in the window where a sum lies below `lowest`, or -1."""
    one, other, constant = total.one, total.other, total.constant
    here, stop = window.start, window.stop
    i, j, p = breakpoint_at(one, here), breakpoint_at(other, here), breakpoint_at(lowest, here)
    last_i, last_j = breakpoint_at(one, stop), breakpoint_at(other, stop)
    leap = 15
    while here <= stop:
        while p < lowest.last and lowest.memory[p + 1] + lowest.shift <= here:
            p += 1
        target = lowest.overhead[p] if p >= lowest.first else window.ceiling
        if constant + one.overhead[i] + other.overhead[j] < target:
            return here
        # `lowest` falls, so there is no gain before the sum falls below today's target:
        # leap over breakpoints while it does not, twice as far each time, else less far.
        far_i, far_j = min(i + leap, last_i), min(j + leap, last_j)
        if constant + one.overhead[far_i] + other.overhead[far_j] < target:
            leap >>= 1
            continue
        leap = 2 * leap + 1
        after_i = one.memory[far_i + 1] + one.shift if far_i < last_i else _NO_BREAKPOINT
        after_j = other.memory[far_j + 1] + other.shift if far_j < last_j else _NO_BREAKPOINT
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
def _append(target: Buffer, size: int, m: int, value: int) -> int:
    """Append a breakpoint to `target` unless it is no lower; return the new size."""
    memory, overhead = target
    if size and overhead[size - 1] <= value:
        return size
    if size and memory[size - 1] == m:
        size -= 1
    memory[size] = m
    overhead[size] = value
    return size + 1


@kernel
def _append_slice(target: Buffer, size: int, lowest: StepFunction, p: int, end: int) -> int:
    """Append breakpoints ``p .. end - 1`` of `lowest` where they are lower; return the new size."""
    memory, overhead = target
    if size:
        while p < end and lowest.overhead[p] >= overhead[size - 1]:
            p += 1
    if p < end:
        memory[size : size + end - p] = lowest.memory[p:end]
        overhead[size : size + end - p] = lowest.overhead[p:end]
        size += end - p
    return size


@kernel
def _write_minimum(lowest: StepFunction, total: StepSum, window: Window, target: Buffer) -> int:
    """Write the minimum of `lowest` and a sum to `target`; return its number of breakpoints.

    Sums mostly gain in a few places, so between those `lowest` is copied as it is.
    """
    one, other, constant = total.one, total.other, total.constant
    p, size, here = lowest.first, 0, window.start
    while here >= 0:
        before = breakpoint_at(lowest, here - 1) + 1
        size = _append_slice(target, size, lowest, p, before)
        p = before
        i, j = breakpoint_at(one, here), breakpoint_at(other, here)
        misses = 0
        while here <= window.stop and misses < _MOST_MISSES:
            while p <= lowest.last and lowest.memory[p] <= here:
                size = _append(target, size, lowest.memory[p], lowest.overhead[p])
                p += 1
            value = constant + one.overhead[i] + other.overhead[j]
            misses += 1
            if value < window.ceiling and (size == 0 or value < target[1][size - 1]):
                size = _append(target, size, here, value)
                misses = 0
            after_i = one.memory[i + 1] + one.shift if i < one.last else _NO_BREAKPOINT
            after_j = other.memory[j + 1] + other.shift if j < other.last else _NO_BREAKPOINT
            here = min(after_i, after_j)
            if after_i == here:
                i += 1
            if after_j == here:
                j += 1
        if here > window.stop:
            break
        here = _first_gain(lowest, total, Window(here, window.stop, window.ceiling))
    return _append_slice(target, size, lowest, p, lowest.last + 1)


@kernel
def merge_shifted(
    lowest: StepFunction, one: StepFunction, constant: int, window: Window, target: Buffer
) -> int:
    """Write the minimum of `lowest` and ``one + constant``; return its number of breakpoints.

    Args:
        lowest: One function, not shifted.
        one: The other function.
        constant: Ns to add to it.
        window: Where it counts; breakpoints of it before the start count from there on.
        target: Where to write; long enough for all breakpoints of both functions.
    """
    p, size = lowest.first, 0
    for i in range(max(breakpoint_at(one, window.start), one.first), one.last + 1):
        here, value = max(one.memory[i] + one.shift, window.start), one.overhead[i] + constant
        if here > window.stop:
            break
        while p <= lowest.last and lowest.memory[p] <= here:
            size = _append(target, size, lowest.memory[p], lowest.overhead[p])
            p += 1
        if value < window.ceiling:
            size = _append(target, size, here, value)
    while p <= lowest.last:
        size = _append(target, size, lowest.memory[p], lowest.overhead[p])
        p += 1
    return size


@kernel
def merge_one(
    minimum: RunningMinimum, one: StepFunction, constant: int, start: int, cutoff: Cutoff
) -> RunningMinimum:
    """Return the minimum of `minimum` and ``one + constant``, which counts from `start` on.

    Its buffers change places, or the spare one is replaced by a larger one.
    """
    lowest, spare = minimum
    if one.last < one.first:
        return minimum
    here = max(start, one.memory[one.first] + one.shift)
    least = constant + one.overhead[one.last]
    if here > cutoff.memory or least >= value_at(lowest, here, cutoff.overhead):
        return minimum
    more = lowest.last + one.last - one.first + 3
    if more > len(spare[0]):
        spare = new_buffer(2 * more)
    window = Window(start, cutoff.memory, cutoff.overhead)
    size = merge_shifted(lowest, one, constant, window, spare)
    merged = StepFunction(spare[0], spare[1], 0, size - 1, 0)
    return RunningMinimum(merged, (lowest.memory, lowest.overhead))


@kernel
def restricted(steps: StepFunction, cutoff: Cutoff) -> StepFunction:
    """Return the part of a step function inside the cutoff, without copying it."""
    low, high = steps.first, breakpoint_at(steps, cutoff.memory) + 1
    last = high - 1
    while low < high:
        middle = (low + high) >> 1
        if steps.overhead[middle] < cutoff.overhead:
            high = middle
        else:
            low = middle + 1
    return StepFunction(steps.memory, steps.overhead, low, last, steps.shift)


@kernel
def _memory_until(steps: StepFunction, overhead: int) -> int:
    """Return the most memory, in bytes, at which a step function lies above `overhead`."""
    low, high = steps.first, steps.last + 1
    while low < high:
        middle = (low + high) >> 1
        if steps.overhead[middle] <= overhead:
            high = middle
        else:
            low = middle + 1
    return steps.memory[low] + steps.shift - 1 if low <= steps.last else _NO_BREAKPOINT


@kernel
def gain_within(
    lowest: StepFunction, total: StepSum, start: int, cutoff: Cutoff
) -> tuple[int, int]:
    """Return from and up to how many bytes a sum may lie below `lowest`; -1 and 0 if nowhere.

    The arguments are those of `merge_sum`; `lowest` may start anywhere and be shifted.
    """
    # where the constant alone is too much, there is no gain
    stop = min(cutoff.memory, _memory_until(lowest, total.constant))
    if start > stop:
        return -1, 0
    floor = total.constant + value_at(total.one, stop, 0) + value_at(total.other, stop, 0)
    if floor >= value_at(lowest, start, cutoff.overhead):
        return -1, 0
    return _first_gain(lowest, total, Window(start, stop, cutoff.overhead)), stop


@kernel
def merge_sum(
    minimum: RunningMinimum, total: StepSum, start: int, cutoff: Cutoff
) -> RunningMinimum:
    """Return the minimum of `minimum` and a sum.

    Args:
        minimum: The minimum so far; its buffers change places, or are replaced by larger ones.
        total: The sum; both terms are finite at `start`.
        start: Bytes from which on the sum counts.
        cutoff: Breakpoints of the sum outside of it are left out.
    """
    lowest, spare = minimum.lowest, minimum.spare
    gain, stop = gain_within(lowest, total, start, cutoff)
    if gain < 0:
        return minimum
    one, other = total.one, total.other
    size = lowest.last + one.last - one.first + other.last - other.first + 3
    if size > len(spare[0]):
        spare = new_buffer(2 * size)
    size = _write_minimum(lowest, total, Window(gain, stop, cutoff.overhead), spare)
    merged = StepFunction(spare[0], spare[1], 0, size - 1, 0)
    return RunningMinimum(merged, (lowest.memory, lowest.overhead))
