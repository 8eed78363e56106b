"""The lower envelope of many sums of step functions at once, inside compiled code.

Merging one sum after another walks over all that is known once per sum, though few corners
of a sum gain. A sieve cuts memory into cells of equal width, and knows for each an overhead
from which on no corner in it can matter: with it, rejecting a corner is one comparison. What
passes is compared with the corners of its own cell only.
"""
# ruff: noqa: PLR0913, PLR0917  # compiled code has no objects to hold what it needs

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.jit import kernel
from chainstay.dp.priced_pruning import PricedLimit
from chainstay.dp.recursion import Array
from chainstay.dp.steps import Steps, corner_at

__all__ = ["Sieve", "gather", "offer_sum", "sieve_of", "with_entries"]

_LEAST_CELLS: Final = 4096
_CELLS_PER_CORNER: Final = 4
_FIRST_ENTRIES: Final = 1024


class Sieve(NamedTuple):
    """Corners by cells of memory.

    Attributes:
        start: Bytes at which the first cell starts.
        bits: A cell is ``2**bits`` bytes wide.
        too_many: Shape (cells + 1,), ns: with as much or more, no corner in this cell matters,
            since it costs the rest of the chain too much or one at or before the cell's start
            is as good; -1 at the end.
        head: Shape (cells,): an entry of the cell, or -1.
        memory: At [entry]: bytes.
        overhead: At [entry]: ns.
        link: At [entry]: the next one of its cell, or -1.
        longest: How many corners one cell was given at most when it was made.
    """

    start: int
    bits: int
    too_many: Array
    head: NDArray[np.int32]
    memory: Array
    overhead: Array
    link: NDArray[np.int32]
    longest: int


@kernel
def sieve_of(
    limit: PricedLimit,
    lines: NDArray[np.float64],
    lowest: Steps,
    limits: tuple[int, int],
    start: int,
) -> Sieve:
    """A sieve that holds the corners of `lowest` as its first entries.

    Args:
        limit: What can matter.
        lines: As in `room_within`.
        lowest: Starts at index 0, not shifted, with no corner beyond the most bytes.
        limits: The most bytes that matter, and the least ns that is too many.
        start: No corner has less memory.
    """
    cap, ceiling = limits
    cells, bits = max(_LEAST_CELLS, _CELLS_PER_CORNER * (lowest.last + 1)), 0
    while ((cap - start) >> bits) >= cells:
        bits += 1
    cells = ((cap - start) >> bits) + 1
    too_many, head = np.empty(cells + 1, dtype=np.int64), np.empty(cells, dtype=np.int32)
    room = 2 * (lowest.last + 1) + _FIRST_ENTRIES
    memory, overhead = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    link = np.empty(room, dtype=np.int32)
    highest, corner, longest = 0, 0, 0
    for cell in range(cells):
        m = start + (cell << bits)
        while highest + 1 < len(lines) and lines[highest + 1] + limit.step * m >= lines[highest]:
            highest += 1
        left = limit.overhead - (lines[highest] + highest * limit.step * m)
        too_many[cell] = min(ceiling, int(np.floor(left)) + 1)
        if corner > 0:
            too_many[cell] = min(too_many[cell], lowest.overhead[corner - 1])
        entry, first, end = -1, corner, m + (1 << bits)
        while corner <= lowest.last and lowest.memory[corner] < end:
            memory[corner], overhead[corner] = lowest.memory[corner], lowest.overhead[corner]
            link[corner] = entry
            entry = corner
            corner += 1
        head[cell] = entry
        longest = max(longest, corner - first)
    too_many[cells] = -1
    return Sieve(start, bits, too_many, head, memory, overhead, link, longest)


@kernel
def with_entries(sieve: Sieve, used: int, more: int) -> Sieve:
    """`sieve`, or a copy of it with its first `used` entries, with room for `more`."""
    if used + more <= len(sieve.memory):
        return sieve
    room = 2 * (used + more)
    memory, overhead = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    link = np.empty(room, dtype=np.int32)
    memory[:used] = sieve.memory[:used]
    overhead[:used] = sieve.overhead[:used]
    link[:used] = sieve.link[:used]
    start, bits, longest = sieve.start, sieve.bits, sieve.longest
    return Sieve(start, bits, sieve.too_many, sieve.head, memory, overhead, link, longest)


@kernel
def _insert(sieve: Sieve, used: int, m: int, value: int) -> int:
    """Enter a corner unless its cell has one as good; returns the new number of entries."""
    cell = (m - sieve.start) >> sieve.bits
    entry = sieve.head[cell]
    while entry >= 0:
        if sieve.memory[entry] <= m:
            if sieve.overhead[entry] <= value:
                return used
            if sieve.memory[entry] == m:
                sieve.overhead[entry] = value
                break
        elif sieve.overhead[entry] >= value:
            sieve.memory[entry], sieve.overhead[entry] = m, value
            break
        entry = sieve.link[entry]
    if entry < 0:
        sieve.memory[used], sieve.overhead[used], sieve.link[used] = m, value, sieve.head[cell]
        sieve.head[cell] = used
        used += 1
    cell += 1
    while sieve.too_many[cell] > value:
        sieve.too_many[cell] = value
        cell += 1
    return used


@kernel
def offer_sum(
    sieve: Sieve, used: int, one: Steps, other: Steps, constant: int, start: int, cap: int
) -> int:
    """Enter the corners of a sum that counts from `start` to `cap` bytes.

    Args:
        sieve: With room for all corners of the sum.
        used: Number of entries so far.
        one: First term; a corner of it holds at `start`. Better the one with fewer corners.
        other: Second term, likewise.
        constant: Third term.
        start: Bytes, at least the start of the sieve.
        cap: Bytes, at most what the sieve was made for.

    Returns:
        The new number of entries.
    """
    start_of_cells, bits, too_many = sieve.start, sieve.bits, sieve.too_many
    memory, overhead, shift = other.memory, other.overhead, other.shift
    i, j, here = corner_at(one, start), corner_at(other, start), start
    while here <= cap:
        base = constant + one.overhead[i]
        after = one.memory[i + 1] + one.shift if i < one.last else cap + 1
        until = corner_at(other, min(after - 1, cap))
        for c in range(j, until + 1):
            m = max(memory[c] + shift, here)
            if base + overhead[c] < too_many[(m - start_of_cells) >> bits]:
                used = _insert(sieve, used, m, base + overhead[c])
        j, i, here = until, i + 1, after
    return used


@kernel
def gather(sieve: Sieve, memory: Array, overhead: Array) -> int:
    """Write the lower envelope of all entries; returns the number of its corners."""
    size = 0
    for cell in range(len(sieve.head)):
        first, entry = size, sieve.head[cell]
        while entry >= 0:  # few: insertion sorts them
            place = size
            while place > first and memory[place - 1] > sieve.memory[entry]:
                memory[place], overhead[place] = memory[place - 1], overhead[place - 1]
                place -= 1
            memory[place], overhead[place] = sieve.memory[entry], sieve.overhead[entry]
            size += 1
            entry = sieve.link[entry]
        kept = first
        for corner in range(first, size):
            if kept == 0 or overhead[corner] < overhead[kept - 1]:
                if kept > first and memory[corner] == memory[kept - 1]:
                    kept -= 1
                memory[kept], overhead[kept] = memory[corner], overhead[corner]
                kept += 1
        size = kept
    return size
