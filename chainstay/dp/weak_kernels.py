"""The weakly persistent program's inner loops, compiled where numba is installed.

The recursion stands in `weak`. Fronts of ``W(s, t, l, ·)`` for all s <= t <= l stand in one
pool; ``row[s, t] + l`` is the number of the front.
"""
# ruff: noqa: PLR0913, PLR0917  # compiled code has no objects to hold what it needs

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.jit import kernel
from chainstay.dp.priced_pruning import PricedLimit, keep_affordable, room_within
from chainstay.dp.pruning import Chain, input_bytes
from chainstay.dp.recursion import KEEP, Array
from chainstay.dp.resting import Resting, arrive, nothing_rests
from chainstay.dp.steps import (
    Pair,
    Steps,
    add_term,
    buffers,
    gain_within,
    merge_moved,
    part_within,
    value_at,
    with_room,
)

__all__ = [
    "MOVE",
    "Floating",
    "WeakCorners",
    "choose_weak",
    "fill_weak",
    "floating_around",
    "least_weak_memory",
]

_BEYOND: Final = 2**61
MOVE: Final = -3
"""The decision to run stage s and drop its input."""

_FIRST_CAPACITY: Final = 1024


class WeakCorners(NamedTuple):
    """Fronts of all W(s, t, l, ·).

    Attributes:
        memory: Bytes of all corners of all fronts.
        overhead: ns, likewise.
        row: Shape (n, n): the number of the front of (s, t, l) is ``row[s, t] + l``.
        first: Shape (fronts,): where a front starts in both …
        size: … and how many corners it has.
        origin: Shape (fronts,): the front of (s, t, l) is that of (origin, t, l), as the
            floating activation has nothing better to do than to move on to there.
    """

    memory: Array
    overhead: Array
    row: Array
    first: Array
    size: Array
    origin: Array


@kernel
def _rows(n: int) -> Array:
    row, count = np.zeros((n, n), dtype=np.int64), 0
    for s in range(n):
        for t in range(s, n):
            row[s, t] = count - t
            count += n - t
    return row


class Draft(NamedTuple):
    """A front in the making.

    Attributes:
        lowest: The front; without shift and from index 0, unless it is that of another state.
        origin: The stage s of the state among whose corners it stands.
        here: Where it stands if it is not that of another state; to write to if it is.
        spare: To write to.
    """

    lowest: Steps
    origin: int
    here: Pair
    spare: Pair


@kernel
def _front(chain: Chain, corners: WeakCorners, s: int, t: int, end: int, shift: int) -> Steps:
    number = corners.row[s, t] + end
    first = corners.first[number]
    last = first + corners.size[number] - 1
    shift += chain.activation[corners.origin[number]] - chain.activation[s]
    return Steps(corners.memory, corners.overhead, first, last, shift)


@kernel
def least_weak_memory(chain: Chain) -> int:
    """Least bytes, besides its input, in which the chain has a weakly persistent schedule."""
    n = len(chain.saved)
    row = _rows(n)
    least = np.full(row[n - 1, n - 1] + n, _BEYOND, dtype=np.int64)
    for end in range(n):
        gradient = chain.gradient[end + 1]
        rest = np.full(n, _BEYOND, dtype=np.int64)
        for s in range(end, -1, -1):
            first_step = gradient + chain.transit[s, s]
            for t in range(s, end + 1):
                best = _BEYOND
                if s == t:
                    best = chain.keep_floor[s, end]
                    if s < end:
                        best = max(best, least[row[s + 1, s + 1] + end] + chain.saved[s])
                else:
                    after = least[row[s + 1, t] + end]
                    moved = after + chain.activation[s + 1] - chain.activation[s]
                    best = max(first_step, moved)
                earlier = least[row[s, t] + t : row[s, t] + end]
                for k in range(t + 1, end + 1):
                    best = min(best, max(first_step, rest[k], earlier[k - 1 - t]))
                least[row[s, t] + end] = best
            moving = first_step + chain.activation[s]
            for t in range(s, end + 1):
                stored = least[row[s, t] + end] + chain.activation[s]
                rest[t] = min(stored, max(rest[t], moving))
    return int(least[row[0, 0] + n - 1])


@kernel
def _rest_at(
    chain: Chain, corners: WeakCorners, j: int, end: int, resting: Resting, spare: Pair, cap: int
) -> tuple[Resting, Pair]:
    """R(j, ·, end, ·) from R(j+1, ·, end, ·): the floating activation rests at j or moves on."""
    floor = chain.gradient[end + 1] + chain.transit[j, j] + chain.activation[j]
    for t in range(j, end + 1):
        resting.least[t] = max(resting.least[t], floor)
        here = _front(chain, corners, j, t, end, chain.activation[j])
        # what moves on at once is known from where it goes
        if here.last >= here.first and corners.origin[corners.row[j, t] + end] == j:
            resting, spare = arrive(resting, t, here, cap, spare)
    return resting, spare


@kernel
def _first_case(
    chain: Chain,
    corners: WeakCorners,
    span: tuple[int, int, int],
    limits: tuple[int, int],
    here: Pair,
    spare: Pair,
) -> Draft:
    """Keep stage s (s = t), or move the floating activation from s to s+1 (s < t)."""
    s, t, end = span
    cap, ceiling = limits
    if s == end:
        here[0][0], here[1][0] = chain.keep_floor[s, s], 0
        return Draft(Steps(here[0], here[1], 0, 0, 0), s, here, spare)
    if s == t:
        after = _front(chain, corners, s + 1, s + 1, end, chain.saved[s])
        floor = chain.keep_floor[s, end]
    else:
        shift = chain.activation[s + 1] - chain.activation[s]
        after = _front(chain, corners, s + 1, t, end, shift)
        floor = chain.gradient[end + 1] + chain.transit[s, s]
        after = part_within(after, limits)
        if after.first <= after.last and after.memory[after.first] + after.shift >= floor:
            origin = int(corners.origin[corners.row[s + 1, t] + end])
            return Draft(after, origin, here, spare)
    here = _with_size(here, after.last - after.first + 1)
    nothing = Steps(here[0], here[1], 0, -1, 0)
    size = merge_moved(nothing, after, 0, floor, cap, ceiling, here[0], here[1])
    return Draft(Steps(here[0], here[1], 0, size - 1, 0), s, here, spare)


@kernel
def _with_size(buffer: Pair, size: int) -> Pair:
    """`buffer`, or a larger one, with room for so many corners."""
    return buffer if size <= len(buffer[0]) else buffers(2 * size)


@kernel
def _own(draft: Draft, s: int) -> Draft:
    """A copy for the state of stage s itself."""
    lowest = draft.lowest
    size = lowest.last - lowest.first + 1
    here = _with_size(draft.here, size)
    here[0][:size] = lowest.memory[lowest.first : lowest.last + 1] + lowest.shift
    here[1][:size] = lowest.overhead[lowest.first : lowest.last + 1]
    return Draft(Steps(here[0], here[1], 0, size - 1, 0), s, here, draft.spare)


@kernel
def _restarts(
    chain: Chain,
    corners: WeakCorners,
    span: tuple[int, int, int],
    limits: tuple[int, int],
    ends: Pair,
    resting: Resting,
    draft: Draft,
) -> Draft:
    """The lower of `draft` and, for all k, ``R(s+1, k, l, ·) + W(s, t, k-1, ·)``.

    `ends` are first memory and last overhead of every front; all else as in `add_term`.
    """
    s, t, end = span
    cap, ceiling = limits
    floor = chain.gradient[end + 1] + chain.transit[s, s]
    least, best = ends[0][corners.row[s, t] :], ends[1][corners.row[s, t] :]
    for k in range(t + 1, end + 1):
        rerun = chain.elapsed[k] - chain.elapsed[s]
        if rerun >= ceiling:
            break
        # cheap: nowhere does the sum exist and lie below all of `lowest`
        start = max(floor, least[k - 1], resting.least[k])
        lower = rerun + best[k - 1] + resting.best[k]
        if start > cap or lower >= ceiling or lower >= value_at(draft.lowest, start, ceiling):
            continue
        earlier = _front(chain, corners, s, t, k - 1, 0)
        later = Steps(resting.memory[k], resting.overhead[k], 0, resting.size[k] - 1, 0)
        if draft.origin > s:
            start = gain_within(draft.lowest, earlier, later, rerun, start, limits)[0]
            if start < 0:
                continue
            draft = _own(draft, s)
        lowest, spare = add_term(draft.lowest, earlier, later, rerun, start, limits, draft.spare)
        draft = Draft(lowest, s, (lowest.memory, lowest.overhead), spare)
    return draft


class Floating(NamedTuple):
    """What is spent outside of W(s, t, l, m) with s < t, so that a^s may still move on.

    It is at least ``min(born, elapsed[l+1] - elapsed[s] + cut) + price * (m + a[s])``.

    Attributes:
        born: Shape (n, n, prices), at [t, l, i]: when (·, t, l) is the later part of a restart.
        cut: Likewise, when it is the earlier part of one.
    """

    born: NDArray[np.float64]
    cut: NDArray[np.float64]


@kernel
def floating_around(
    chain: Chain, around: NDArray[np.float64], restarted: NDArray[np.float64]
) -> Floating:
    """The tables, from those of `PriceBound`."""
    n, _, rungs = around.shape
    born, cut = np.full((n, n, rungs), np.inf), np.full((n, n, rungs), np.inf)
    for t in range(1, n):
        time = chain.elapsed[t] - chain.elapsed[t - 1]
        born[t] = np.minimum(born[t - 1], around[t - 1]) + time
        again = np.full(rungs, np.inf)
        for end in range(n - 2, t - 1, -1):
            rerun = chain.elapsed[end + 1] - chain.elapsed[t]
            for i in range(rungs):
                best = -np.inf
                for j in range(rungs - i):
                    best = max(best, born[t, n - 1, i + j] + restarted[end + 1, j])
                cut[t, end, i] = min(best, again[i])
                again[i] = min(again[i], born[t, end, i], rerun + best)
    return Floating(born, cut)


@kernel
def _floating_lines(
    chain: Chain,
    limit: PricedLimit,
    floating: Floating,
    span: tuple[int, int, int],
    needed: int,
    lines: NDArray[np.float64],
) -> bool:
    """Write the lines of (s, t, end), s < t, to `lines` unless with `needed` bytes none matters."""
    s, t, end = span
    rerun = chain.elapsed[end + 1] - chain.elapsed[s]
    for i in range(len(lines) - 1, -1, -1):
        spent = min(floating.born[t, end, i], rerun + floating.cut[t, end, i])
        lines[i] = spent + i * limit.step * chain.activation[s]
        if lines[i] + i * limit.step * needed > limit.overhead:
            return False
    return True


@kernel
def _stored(
    limit: PricedLimit, lines: NDArray[np.float64], draft: Draft, s: int, pool: Pair, used: int
) -> tuple[Pair, int, int]:
    """Where `draft` stands in the pool, and its size: for a new one, of what can matter of it."""
    size = draft.lowest.last - draft.lowest.first + 1
    if draft.origin > s:
        return pool, draft.lowest.first, size
    pool = with_room(pool, used, size)
    return pool, used, keep_affordable(limit, lines, draft.lowest, pool[0][used:], pool[1][used:])


@kernel
def fill_weak(chain: Chain, limit: PricedLimit, floating: Floating) -> WeakCorners:
    """Fronts of all W(s, t, l, ·) within the limit: l ascending, s descending."""
    n = len(chain.saved)
    row = _rows(n)
    fronts = row[n - 1, n - 1] + n
    first, count = np.zeros(fronts, dtype=np.int64), np.zeros(fronts, dtype=np.int32)
    origin = np.zeros(fronts, dtype=np.int64)
    ends = np.full(fronts, _BEYOND, dtype=np.int64), np.zeros(fronts, dtype=np.int64)
    pool, used = buffers(_FIRST_CAPACITY), 0
    here, spare = buffers(_FIRST_CAPACITY), buffers(_FIRST_CAPACITY)
    rests = np.empty((n, 16), dtype=np.int64), np.empty((n, 16), dtype=np.int64)
    moving = np.zeros(limit.around.shape[2])
    for end in range(n):
        resting = nothing_rests(rests)
        for s in range(end, -1, -1):
            if end < n - 1 and chain.elapsed[end + 1] - chain.elapsed[s] > limit.overhead:
                break
            corners = WeakCorners(pool[0], pool[1], row, first, count, origin)
            if s < end:
                resting, spare = _rest_at(chain, corners, s + 1, end, resting, spare, limit.memory)
            for t in range(s, end + 1):
                needed = chain.gradient[end + 1] + chain.transit[s, s]
                if s == t:
                    needed, lines = min(needed, chain.keep_floor[s, end]), limit.around[s, end]
                elif _floating_lines(chain, limit, floating, (s, t, end), needed, moving):
                    lines = moving
                else:
                    continue
                cap, ceiling = room_within(limit, lines, input_bytes(chain, s), needed)
                if cap < needed or ceiling <= 0:
                    continue
                corners = WeakCorners(pool[0], pool[1], row, first, count, origin)
                draft = _first_case(chain, corners, (s, t, end), (cap, ceiling), here, spare)
                draft = _restarts(chain, corners, (s, t, end), (cap, ceiling), ends, resting, draft)
                pool, start, size = _stored(limit, lines, draft, s, pool, used)
                here, spare, number = draft.here, draft.spare, row[s, t] + end
                first[number], count[number], origin[number] = start, size, draft.origin
                used = max(used, start + size)
                if size:
                    ends[0][number] = pool[0][start] + draft.lowest.shift
                    ends[1][number] = pool[1][start + size - 1]
        rests = (resting.memory, resting.overhead)
    return WeakCorners(pool[0][:used], pool[1][:used], row, first, count, origin)


@kernel
def _choose_restart(
    chain: Chain, corners: WeakCorners, span: tuple[int, int, int], m: int, target: int
) -> tuple[int, int]:
    s, t, end = span
    gradient = chain.gradient[end + 1]
    for k in range(t + 1, end + 1):
        rest = target - (chain.elapsed[k] - chain.elapsed[s])
        if rest < 0:
            break
        rest -= value_at(_front(chain, corners, s, t, k - 1, 0), m, target + 1)
        if rest < 0:
            continue
        for j in range(k, s, -1):
            if m >= gradient + chain.transit[s, j - 1]:
                later = _front(chain, corners, j, k, end, chain.activation[j])
                if value_at(later, m, -1) == rest:
                    return k, j
    return -2, 0


@kernel
def choose_weak(
    chain: Chain, corners: WeakCorners, s: int, t: int, end: int, m: int
) -> tuple[int, int]:
    """The optimal decision for (s, t, end) with `m` bytes.

    Returns:
        ``(k, j)`` for restarting at k with the floating activation resting at j; or
        `KEEP` or -3 (move) and 0; or (-2, 0) where there is none.
    """
    target = value_at(_front(chain, corners, s, t, end, 0), m, -1)
    if s == t and m >= chain.keep_floor[s, end]:
        after = 0
        if s < end:
            after = value_at(_front(chain, corners, s + 1, s + 1, end, chain.saved[s]), m, -1)
        if after == target:
            return KEEP, 0
    gradient = chain.gradient[end + 1]
    if s < t and m >= gradient + chain.transit[s, s]:
        shift = chain.activation[s + 1] - chain.activation[s]
        if value_at(_front(chain, corners, s + 1, t, end, shift), m, -1) == target:
            return MOVE, 0
    return _choose_restart(chain, corners, (s, t, end), m, target)
