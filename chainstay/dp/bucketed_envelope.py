"""The lower envelope of many sums of step functions at once, in compiled code.

Merging one sum after another walks over all breakpoints known so far once per sum, though few
breakpoints of a sum gain. Here memory is cut into buckets of equal width, and each bucket knows an
overhead from which on no breakpoint in it is of use: rejecting a breakpoint takes one comparison.
What passes is compared with the breakpoints of its own bucket only.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.bounds.bound_pruning import PruningLimit
from chainstay.dp.forward_costs import Array
from chainstay.dp.jit import kernel
from chainstay.dp.step_functions import Buffer, Cutoff, StepFunction, StepSum, breakpoint_at

_LEAST_BUCKETS: Final = 1024
_BUCKETS_PER_BREAKPOINT: Final = 4
_FIRST_ENTRIES: Final = 1024


class BucketedEnvelope(NamedTuple):
    """Breakpoints in buckets of memory.

    Attributes:
        start: Bytes at which the first bucket starts.
        bits: A bucket is ``2**bits`` bytes wide.
        ceiling: Shape (buckets + 1,), ns: with as much or more, no breakpoint in this bucket is of
            use, since it costs the rest of the chain too much or one at or before the bucket's
            start is as good; -1 at the end.
        head: Shape (buckets,): an entry of the bucket, or -1.
        memory: At [entry]: bytes.
        overhead: At [entry]: ns.
        link: At [entry]: the next entry of its bucket, or -1.
        fullest: The most breakpoints that one bucket was given when it was made.
    """

    start: int
    bits: int
    ceiling: Array
    head: NDArray[np.int32]
    memory: Array
    overhead: Array
    link: NDArray[np.int32]
    fullest: int


@kernel
def bucketed_envelope(
    limit: PruningLimit,
    lines: NDArray[np.float64],
    lowest: StepFunction,
    cutoff: Cutoff,
    start: int,
) -> BucketedEnvelope:
    """Return an envelope that holds the breakpoints of `lowest` as its first entries.

    Args:
        limit: The limit on whole schedules.
        lines: The lines, as for `cutoff_within`.
        lowest: Starts at index 0, not shifted, and ends within the cutoff.
        cutoff: No breakpoint outside of it is of use.
        start: No breakpoint has fewer bytes.
    """
    buckets, bits = max(_LEAST_BUCKETS, _BUCKETS_PER_BREAKPOINT * (lowest.last + 1)), 0
    while ((cutoff.memory - start) >> bits) >= buckets:
        bits += 1
    buckets = ((cutoff.memory - start) >> bits) + 1
    ceiling, head = np.empty(buckets + 1, dtype=np.int64), np.empty(buckets, dtype=np.int32)
    room = 2 * (lowest.last + 1) + _FIRST_ENTRIES
    memory, overhead = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    link = np.empty(room, dtype=np.int32)
    highest, index, fullest = 0, 0, 0
    for bucket in range(buckets):
        m = start + (bucket << bits)
        while highest + 1 < len(lines) and lines[highest + 1] + limit.step * m >= lines[highest]:
            highest += 1
        left = limit.overhead - (lines[highest] + highest * limit.step * m)
        ceiling[bucket] = min(cutoff.overhead, int(np.floor(left)) + 1)
        if index > 0:
            ceiling[bucket] = min(ceiling[bucket], lowest.overhead[index - 1])
        entry, first, end = -1, index, m + (1 << bits)
        while index <= lowest.last and lowest.memory[index] < end:
            memory[index], overhead[index] = lowest.memory[index], lowest.overhead[index]
            link[index] = entry
            entry = index
            index += 1
        head[bucket] = entry
        fullest = max(fullest, index - first)
    ceiling[buckets] = -1
    return BucketedEnvelope(start, bits, ceiling, head, memory, overhead, link, fullest)


@kernel
def with_entries(envelope: BucketedEnvelope, used: int, more: int) -> BucketedEnvelope:
    """Return `envelope`, or a copy of its first `used` entries, with room for `more`."""
    if used + more <= len(envelope.memory):
        return envelope
    room = 2 * (used + more)
    memory, overhead = np.empty(room, dtype=np.int64), np.empty(room, dtype=np.int64)
    link = np.empty(room, dtype=np.int32)
    memory[:used] = envelope.memory[:used]
    overhead[:used] = envelope.overhead[:used]
    link[:used] = envelope.link[:used]
    return BucketedEnvelope(
        envelope.start,
        envelope.bits,
        envelope.ceiling,
        envelope.head,
        memory,
        overhead,
        link,
        envelope.fullest,
    )


@kernel
def _insert(envelope: BucketedEnvelope, used: int, m: int, value: int) -> int:
    """Enter a breakpoint unless its bucket has one as good; return the new number of entries."""
    bucket = (m - envelope.start) >> envelope.bits
    entry = envelope.head[bucket]
    while entry >= 0:
        if envelope.memory[entry] <= m:
            if envelope.overhead[entry] <= value:
                return used
            if envelope.memory[entry] == m:
                envelope.overhead[entry] = value
                break
        elif envelope.overhead[entry] >= value:
            envelope.memory[entry], envelope.overhead[entry] = m, value
            break
        entry = envelope.link[entry]
    if entry < 0:
        envelope.memory[used], envelope.overhead[used] = m, value
        envelope.link[used] = envelope.head[bucket]
        envelope.head[bucket] = used
        used += 1
    bucket += 1
    while envelope.ceiling[bucket] > value:
        envelope.ceiling[bucket] = value
        bucket += 1
    return used


@kernel
def insert_sum(envelope: BucketedEnvelope, used: int, total: StepSum, start: int, stop: int) -> int:
    """Enter the breakpoints of a sum; return the new number of entries.

    Args:
        envelope: An array with room for all breakpoints of the sum.
        used: Number of entries so far.
        total: The sum; its first term should be the one with fewer breakpoints.
        start: Bytes from which on the sum counts, at least the start of the envelope; both
            terms are finite there.
        stop: Bytes up to which it counts, at most what the envelope was made for.
    """
    one, other = total.one, total.other
    start_of_buckets, bits, ceiling = envelope.start, envelope.bits, envelope.ceiling
    memory, overhead, shift = other.memory, other.overhead, other.shift
    i, j, here = breakpoint_at(one, start), breakpoint_at(other, start), start
    while here <= stop:
        base = total.constant + one.overhead[i]
        after = one.memory[i + 1] + one.shift if i < one.last else stop + 1
        until = breakpoint_at(other, min(after - 1, stop))
        for c in range(j, until + 1):
            m = max(memory[c] + shift, here)
            if base + overhead[c] < ceiling[(m - start_of_buckets) >> bits]:
                used = _insert(envelope, used, m, base + overhead[c])
        j, i, here = until, i + 1, after
    return used


@kernel
def write_envelope(envelope: BucketedEnvelope, target: Buffer) -> int:
    """Write the lower envelope of all entries to `target`; return its number of breakpoints."""
    memory, overhead = target
    size = 0
    for bucket in range(len(envelope.head)):
        first, entry = size, envelope.head[bucket]
        while entry >= 0:  # few: insertion sorts them
            place = size
            while place > first and memory[place - 1] > envelope.memory[entry]:
                memory[place], overhead[place] = memory[place - 1], overhead[place - 1]
                place -= 1
            memory[place], overhead[place] = envelope.memory[entry], envelope.overhead[entry]
            size += 1
            entry = envelope.link[entry]
        kept = first
        for index in range(first, size):
            if kept == 0 or overhead[index] < overhead[kept - 1]:
                if kept > first and memory[index] == memory[kept - 1]:
                    kept -= 1
                memory[kept], overhead[kept] = memory[index], overhead[index]
                kept += 1
        size = kept
    return size
