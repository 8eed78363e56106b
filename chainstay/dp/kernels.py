"""The persistent program's inner loops, compiled: the same recursion as `fronts`."""
# ruff: noqa: PLR0913, PLR0917  # compiled code has no objects to hold what it needs

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from chainstay.dp.jit import kernel
from chainstay.dp.priced_pruning import PricedLimit, keep_affordable, room_within
from chainstay.dp.pruning import Chain, input_bytes, stored_at
from chainstay.dp.recursion import KEEP, Array
from chainstay.dp.sieve import gather, offer_sum, sieve_of, with_entries
from chainstay.dp.steps import Pair, Steps, add_term, buffers, merge_moved, value_at, with_room

__all__ = ["Corners", "choose", "fill"]

_FIRST_CAPACITY: Final = 1024
_BEYOND: Final = 2**61
_LONG: Final = 16
"""Corners from which on a sieve is worth being made."""
_CROWD: Final = 16
"""Corners in one cell with which a sieve would be slow."""


class Corners(NamedTuple):
    """Fronts of all sub-chains.

    Attributes:
        memory: Bytes of all corners of all fronts.
        overhead: ns, likewise.
        first: Shape (n, n), at [s, t]: where the front of s..t starts in both …
        last: … and its last corner; ``first - 1`` when no corner is kept.
    """

    memory: Array
    overhead: Array
    first: Array
    last: Array


class Ends(NamedTuple):
    """First memory (`_BEYOND` without corners) and last overhead of fronts, side by side.

    Attributes:
        least: Shape (n, n), at [s, t]: bytes.
        best: Shape (n, n), at [s, t]: ns.
        stored_least: Shape (n,), at [k]: bytes of k..t and, at least, of a restart at k
            together, for the t at hand.
        stored_best: Shape (n,), at [k]: ns of k..t.
    """

    least: Array
    best: Array
    stored_least: Array
    stored_best: Array


@kernel
def _front(corners: Corners, s: int, t: int, shift: int) -> Steps:
    return Steps(corners.memory, corners.overhead, corners.first[s, t], corners.last[s, t], shift)


@kernel
def _restarts(
    chain: Chain,
    corners: Corners,
    ends: Ends,
    span: tuple[int, int],
    limits: tuple[int, int],
    lowest: Steps,
    spare: Pair,
) -> tuple[Steps, Pair]:
    """The lower of `lowest` and all restarts of a sub-chain.

    Args:
        chain: As everywhere.
        corners: With the fronts of all its sub-chains.
        ends: Of them.
        span: First and last stage.
        limits: The most bytes, and the least ns that is too many.
        lowest: Starts at index 0.
        spare: Memory and overhead to write to.

    Returns:
        The result, in one of the two buffers, and the other one.
    """
    s, t = span
    cap, ceiling = limits
    least, best, transit = ends.least[s], ends.best[s], chain.transit[s]
    gradient, elapsed = chain.gradient[t + 1], chain.elapsed[s]
    for k in range(s + 1, t + 1):
        rerun = chain.elapsed[k] - elapsed
        if rerun >= ceiling:
            break
        # cheap: nowhere does the sum exist and lie below all of `lowest`
        floor = rerun + best[k - 1] + ends.stored_best[k]
        start = max(gradient + transit[k - 1], least[k - 1], ends.stored_least[k])
        if start > cap or floor >= ceiling:
            continue
        if floor >= value_at(lowest, start, ceiling):
            continue
        stored = stored_at(chain, s, k)
        earlier, later = _front(corners, s, k - 1, 0), _front(corners, k, t, stored)
        start = max(start, ends.stored_least[k] - chain.activation[k] + stored)
        lowest, spare = add_term(lowest, earlier, later, rerun, start, limits, spare)
    return lowest, spare


@kernel
def _sieved_restarts(
    chain: Chain,
    corners: Corners,
    ends: Ends,
    span: tuple[int, int],
    limits: tuple[int, int],
    limit: PricedLimit,
    lowest: Steps,
    spare: Pair,
) -> tuple[Steps, Pair]:
    """As `_restarts`, by a sieve; quicker for long fronts whose memories do not huddle together."""
    s, t = span
    cap, ceiling = limits
    sieve = sieve_of(limit, limit.around[s, t], lowest, limits, limit.least[s, t])
    used = lowest.last + 1
    if sieve.longest > _CROWD:
        return _restarts(chain, corners, ends, span, limits, lowest, spare)
    least, best, transit = ends.least[s], ends.best[s], chain.transit[s]
    gradient, elapsed = chain.gradient[t + 1], chain.elapsed[s]
    for k in range(s + 1, t + 1):
        rerun = chain.elapsed[k] - elapsed
        if rerun >= ceiling:
            break
        floor = rerun + best[k - 1] + ends.stored_best[k]
        start = max(gradient + transit[k - 1], least[k - 1], ends.stored_least[k], sieve.start)
        if start > cap or floor >= sieve.too_many[(start - sieve.start) >> sieve.bits]:
            continue
        stored = stored_at(chain, s, k)
        earlier, later = _front(corners, s, k - 1, 0), _front(corners, k, t, stored)
        start = max(start, ends.stored_least[k] - chain.activation[k] + stored)
        more = later.last - later.first + earlier.last - earlier.first + 3
        sieve = with_entries(sieve, used, more)
        used = offer_sum(sieve, used, earlier, later, rerun, start, cap)
    if used > len(spare[0]):
        spare = buffers(2 * used)
    size = gather(sieve, spare[0], spare[1])
    return Steps(spare[0], spare[1], 0, size - 1, 0), (lowest.memory, lowest.overhead)


@kernel
def fill(chain: Chain, limit: PricedLimit) -> Corners:
    """Fronts of all sub-chains within the limit, ends ascending, starts descending."""
    n = len(chain.saved)
    pool, used = buffers(_FIRST_CAPACITY), 0
    here, spare = buffers(_FIRST_CAPACITY), buffers(_FIRST_CAPACITY)
    first, last = np.zeros((n, n), dtype=np.int64), np.full((n, n), -1, dtype=np.int64)
    least, best = np.full((n, n), _BEYOND, dtype=np.int64), np.zeros((n, n), dtype=np.int64)
    for t in range(n):
        ends = Ends(least, best, np.full(n, _BEYOND, dtype=np.int64), np.zeros(n, dtype=np.int64))
        for s in range(t, -1, -1):
            # what can matter
            lines, needed = limit.around[s, t], limit.least[s, t]
            cap, ceiling = room_within(limit, lines, input_bytes(chain, s), needed)
            if cap < needed or ceiling <= 0:
                continue
            # keep stage s, or restart it
            corners = Corners(pool[0], pool[1], first, last)
            if s == t:
                here[0][0], here[1][0] = chain.keep_floor[s, t], 0
                lowest = Steps(here[0], here[1], 0, 0, 0)
            else:
                after = _front(corners, s + 1, t, chain.saved[s])
                if after.last - after.first >= len(here[0]):
                    here = buffers(2 * (after.last - after.first + 1))
                nothing = Steps(here[0], here[1], 0, -1, 0)
                floor = chain.keep_floor[s, t]
                size = merge_moved(nothing, after, 0, floor, cap, ceiling, here[0], here[1])
                lowest = Steps(here[0], here[1], 0, size - 1, 0)
                limits = (cap, ceiling)
                if lowest.last >= _LONG:
                    lowest, spare = _sieved_restarts(
                        chain, corners, ends, (s, t), limits, limit, lowest, spare
                    )
                else:
                    lowest, spare = _restarts(chain, corners, ends, (s, t), limits, lowest, spare)
            # store what can be part of a whole schedule
            pool = with_room(pool, used, lowest.last + 1)
            size = keep_affordable(limit, lines, lowest, pool[0][used:], pool[1][used:])
            first[s, t], last[s, t] = used, used + size - 1
            if size:
                least[s, t], best[s, t] = pool[0][used], pool[1][used + size - 1]
                ends.stored_least[s] = least[s, t] + chain.activation[s]
                ends.stored_best[s] = best[s, t]
            used += size
            here = (lowest.memory, lowest.overhead)
    return Corners(pool[0][:used], pool[1][:used], first, last)


@kernel
def choose(chain: Chain, corners: Corners, s: int, t: int, m: int) -> int:
    """The optimal decision for stages s..t with `m` bytes, or -2 where there is none."""
    target = value_at(_front(corners, s, t, 0), m, -1)
    if m >= chain.keep_floor[s, t] and (
        s == t or value_at(_front(corners, s + 1, t, chain.saved[s]), m, -1) == target
    ):
        return KEEP
    for k in range(s + 1, t + 1):
        rest = target - (chain.elapsed[k] - chain.elapsed[s])
        if rest < 0:
            break
        if m < chain.gradient[t + 1] + chain.transit[s, k - 1]:
            continue
        earlier = value_at(_front(corners, s, k - 1, 0), m, target + 1)
        if earlier <= rest:
            later = value_at(_front(corners, k, t, stored_at(chain, s, k)), m, target + 1)
            if earlier + later == rest:
                return k
    return -2
