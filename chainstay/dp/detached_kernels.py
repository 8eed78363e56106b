"""The program for detached saved data: its inner loops, compiled where numba is installed.

The recursion stands in `detached`. Fronts of all F stand in one pool.
"""
# ruff: noqa: PLR0913, PLR0917  # compiled code has no objects to hold what it needs

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.detached_sizes import Sizes
from chainstay.dp.jit import kernel
from chainstay.dp.priced_pruning import PricedLimit, keep_affordable, room_within
from chainstay.dp.recursion import Array
from chainstay.dp.steps import Pair, Steps, add_term, buffers, merge_moved, value_at, with_room

__all__ = ["NO_DECISION", "RECORD", "Corners", "Span", "choose", "fill"]

RECORD: Final = -1
"""The decision to record stage s now; any other is the stage at which a restart's sweep ends."""
NO_DECISION: Final = -2

_BEYOND: Final = 2**61
_FIRST_CAPACITY: Final = 1024


class Span(NamedTuple):
    """Which F: from the input of stage s, δ^{end+1} and, if `held`, ā_end.

    Nodes up to n - 1 go to δ^s, others to δ^{s+1} and ā_s; see `Sizes`.
    """

    node: int
    s: int
    end: int
    held: int


class Corners(NamedTuple):
    """Fronts of all F.

    Attributes:
        memory: Bytes of all corners of all fronts.
        overhead: ns, likewise.
        first: Shape (2, nodes, n), at [held, node, end]: where a front starts in the pool …
        size: … how many corners it has …
        least: … its first memory, `_BEYOND` without corners …
        best: … and its last overhead.
    """

    memory: Array
    overhead: Array
    first: Array
    size: Array
    least: Array
    best: Array


@kernel
def _front(corners: Corners, span: Span, shift: int) -> Steps:
    first = corners.first[span.held, span.node, span.end]
    last = first + corners.size[span.held, span.node, span.end] - 1
    return Steps(corners.memory, corners.overhead, first, last, shift)


@kernel
def _record(sizes: Sizes, span: Span) -> tuple[int, int]:
    """From how many bytes on stage s can be recorded and gone back through, and what it takes."""
    node, s, end, held = span
    around = sizes.gradient[end + 1]
    if held and s < end:
        around += sizes.held[s + 1, end]
    taken = sizes.saved[s] - sizes.freed[node]
    if node >= len(sizes.saved):
        return around + sizes.record[s], taken
    if held and s == end:
        return sizes.backward[s], taken
    return max(around + sizes.record[s], sizes.backward[s]), taken


@kernel
def _sweep(sizes: Sizes, span: Span, i: int) -> int:
    """Bytes besides ``a^s`` while stage i runs and keeps nothing but its output."""
    around = sizes.gradient[span.end + 1] + sizes.fresh[span.s, i] + sizes.forward[i]
    return int(around + (sizes.held[i + 1, span.end] if span.held else 0))


@kernel
def _recorded(
    sizes: Sizes, corners: Corners, span: Span, limits: tuple[int, int], here: Pair
) -> tuple[Steps, Pair]:
    """Record stage s; its input stays, or is dropped."""
    floor, taken = _record(sizes, span)
    if span.s == span.end:
        here[0][0], here[1][0] = floor, 0
        return Steps(here[0], here[1], 0, 0, 0), here
    after = _front(corners, Span(span.s + 1, span.s + 1, span.end, span.held), taken)
    if after.last - after.first >= len(here[0]):
        here = buffers(2 * (after.last - after.first + 1))
    nothing = Steps(here[0], here[1], 0, -1, 0)
    count = merge_moved(nothing, after, 0, floor, limits[0], limits[1], here[0], here[1])
    return Steps(here[0], here[1], 0, count - 1, 0), here


@kernel
def _restarts(
    sizes: Sizes,
    corners: Corners,
    span: Span,
    limits: tuple[int, int],
    column: Pair,
    lowest: Steps,
    spare: Pair,
) -> tuple[Steps, Pair]:
    """The lower of `lowest` and all restarts.

    `column` has the first memory and last overhead of all nodes for the end at hand; all else as
    in `add_term`.
    """
    node, s, end, held = span
    cap, ceiling = limits
    floor = 0
    for j in range(s + 1, end + 1):
        rerun = sizes.elapsed[j] - sizes.elapsed[s]
        floor = max(floor, _sweep(sizes, span, j - 1))
        if rerun >= ceiling or floor > cap:
            break
        stored = sizes.fresh[s, j]
        for detached in range(2):
            if detached and held and j == end:
                continue  # its saved data are there already
            stop, after = (j, sizes.node[s, j]) if detached else (j - 1, j)
            # cheap: nowhere does the sum exist and lie below all of `lowest`
            start = max(floor, corners.least[detached, node, stop], column[0][after] + stored)
            lower = rerun + corners.best[detached, node, stop] + column[1][after]
            if start > cap or lower >= ceiling or lower >= value_at(lowest, start, ceiling):
                continue
            later = _front(corners, Span(after, j, end, held), stored)
            earlier = _front(corners, Span(node, s, stop, detached), 0)
            lowest, spare = add_term(lowest, earlier, later, rerun, start, limits, spare)
    return lowest, spare


@kernel
def fill(sizes: Sizes, limit: PricedLimit, dropped: NDArray[np.float64]) -> Corners:
    """Fronts of all F within the limit: ends ascending, held first, s descending.

    Args:
        sizes: Of the chain.
        limit: What can be part of a schedule that matters; its `around` is that of
            `DetachedBound`, for nodes that keep ``a^s``.
        dropped: Likewise, for those that drop it.
    """
    n, nodes = len(sizes.saved), len(sizes.freed)
    shape = (2, nodes, n)
    first, count = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    least, best = np.full(shape, _BEYOND, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    pool, used = buffers(_FIRST_CAPACITY), 0
    here, spare = buffers(_FIRST_CAPACITY), buffers(_FIRST_CAPACITY)
    for end in range(n):
        for held in range(1, -1, -1):
            column = np.full(nodes, _BEYOND, dtype=np.int64), np.zeros(nodes, dtype=np.int64)
            for s in range(end, -1, -1):
                least_input = min(sizes.nearest[s], sizes.saved[s - 1]) if s > 0 else 0
                dropping = sizes.first_node[s + 1] - sizes.first_node[s]
                for number in range(1 if held and s == end else 1 + dropping):
                    node = s if number == 0 else sizes.first_node[s] + number - 1
                    span = Span(node, s, end, held)
                    lines = limit.around[held, s, end] if node == s else dropped[held, s, end]
                    needed = _record(sizes, span)[0]
                    if s < end:
                        needed = min(needed, _sweep(sizes, span, s))
                    limits = room_within(limit, lines, least_input, needed)
                    if limits[0] < needed or limits[1] <= 0:
                        continue
                    corners = Corners(pool[0], pool[1], first, count, least, best)
                    lowest, here = _recorded(sizes, corners, span, limits, here)
                    lowest, spare = _restarts(sizes, corners, span, limits, column, lowest, spare)
                    # store what can be part of a whole schedule
                    pool = with_room(pool, used, lowest.last + 1)
                    size = keep_affordable(limit, lines, lowest, pool[0][used:], pool[1][used:])
                    first[held, node, end], count[held, node, end] = used, size
                    if size:
                        column[0][node] = least[held, node, end] = pool[0][used]
                        column[1][node] = best[held, node, end] = pool[1][used + size - 1]
                    used += size
                    here = (lowest.memory, lowest.overhead)
    return Corners(pool[0][:used], pool[1][:used], first, count, least, best)


@kernel
def choose(sizes: Sizes, corners: Corners, span: Span, m: int) -> tuple[int, int]:
    """The optimal decision with `m` bytes.

    Returns:
        `RECORD` and 0; or the stage at which a restart's sweep ends, and whether it leaves that
        stage's saved data; or `NO_DECISION` and 0.
    """
    node, s, end, held = span
    target = value_at(_front(corners, span, 0), m, -1)
    floor, taken = _record(sizes, span)
    if m >= floor:
        after = 0
        if s < end:
            after = value_at(_front(corners, Span(s + 1, s + 1, end, held), taken), m, -1)
        if after == target:
            return RECORD, 0
    for j in range(s + 1, end + 1):
        rerun = sizes.elapsed[j] - sizes.elapsed[s]
        if rerun > target or m < _sweep(sizes, span, j - 1):
            break
        for detached in range(2):
            if detached and held and j == end:
                continue
            stop, after = (j, sizes.node[s, j]) if detached else (j - 1, j)
            rest = target - rerun
            rest -= value_at(_front(corners, Span(node, s, stop, detached), 0), m, target + 1)
            later = _front(corners, Span(after, j, end, held), sizes.fresh[s, j])
            if rest >= 0 and value_at(later, m, -1) == rest:
                return j, detached
    return NO_DECISION, 0
