"""The floating program for detached saved data: its inner loops, compiled where numba is installed.

The recursion stands in `floating`. Fronts of all F stand in one pool; those of one (s, t)
that are alike in held and left stand side by side, ends ascending.
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
from chainstay.dp.steps import Pair, Steps, add_term, buffers, merge_moved, value_at, with_room

__all__ = ["DETACH", "MOVE", "RESTART", "Corners", "Needs", "Span", "choose", "fill"]

MOVE: Final = -3
"""The decision to run stage s and drop its input."""
DETACH: Final = -4
"""The decision to record stage s and drop its input."""
RESTART: Final = -5
"""The decision to keep the input of stage s and start there again later."""

_NONE: Final = -2
_BEYOND: Final = 2**61
_FIRST_CAPACITY: Final = 1024


class Span(NamedTuple):
    """Which F: from a^s, δ^{end+1} and, if `held`, ā_end to δ^t and, if `left`, ā_{t-1}."""

    s: int
    t: int
    end: int
    held: int
    left: int


class Needs(NamedTuple):
    """Bytes of single operations.

    Attributes:
        record: Shape (n,): recording a stage, its saved data included.
        backward: Shape (n,): its backward likewise, both gradients included.
        around: Shape (2, n): at [held, end], what is there besides while forwards run:
            δ^{end+1} and, if held, ā_end.
    """

    record: Array
    backward: Array
    around: Array


class Corners(NamedTuple):
    """Fronts of all F.

    Attributes:
        memory: Bytes of all corners of all fronts.
        overhead: ns, likewise.
        row: Shape (n, n + 1): where the fronts of (s, t) start, less their first end.
        first: Shape (4 fronts,): where a front starts in the pool …
        size: … how many corners it has …
        least: … its first memory, `_BEYOND` without corners …
        best: … and its last overhead.
    """

    memory: Array
    overhead: Array
    row: Array
    first: Array
    size: Array
    least: Array
    best: Array


@kernel
def _no_corners(n: int) -> Corners:
    row, fronts = np.zeros((n, n + 1), dtype=np.int64), 0
    for s in range(n):
        for t in range(s, n + 1):
            least_end = max(s, t - 1)
            row[s, t] = fronts - least_end
            fronts += n - least_end
    pool = buffers(_FIRST_CAPACITY)
    return Corners(
        pool[0],
        pool[1],
        row,
        np.zeros(4 * fronts, dtype=np.int64),
        np.zeros(4 * fronts, dtype=np.int64),
        np.full(4 * fronts, _BEYOND, dtype=np.int64),
        np.zeros(4 * fronts, dtype=np.int64),
    )


@kernel
def _number(corners: Corners, span: Span) -> int:
    """The number of a front."""
    fronts = len(corners.first) // 4
    return int(corners.row[span.s, span.t] + span.end + (2 * span.held + span.left) * fronts)


@kernel
def _front(corners: Corners, span: Span, shift: int) -> Steps:
    number = _number(corners, span)
    first = corners.first[number]
    return Steps(corners.memory, corners.overhead, first, first + corners.size[number] - 1, shift)


@kernel
def _all_rest(
    chain: Chain,
    needs: Needs,
    corners: Corners,
    j: int,
    end: int,
    held: int,
    cap: int,
    resting: Resting,
    spare: Pair,
) -> tuple[Resting, Pair]:
    """R(j, ·) from R(j+1, ·): the floating activation rests at j or moves on."""
    floor = needs.around[held, end] + chain.transit[j, j] + chain.activation[j]
    for left in range(2):
        for k in range(j + left, end + 1 + left * (1 - held)):
            index = 2 * k + left
            resting.least[index] = max(resting.least[index], floor)
            here = _front(corners, Span(j, k, end, held, left), chain.activation[j])
            if here.last >= here.first:
                resting, spare = arrive(resting, index, here, cap, spare)
    return resting, spare


@kernel
def _first_step(chain: Chain, needs: Needs, span: Span) -> tuple[int, int, int]:
    """The decision that runs stage s but once; from how many bytes on, and what it takes."""
    s, t, end, held, left = span
    around = needs.around[held, end]
    if s == t:
        if held and s == end:
            return KEEP, needs.backward[s], 0
        return KEEP, max(around + needs.record[s], needs.backward[s]), chain.saved[s]
    if left and t == s + 1:
        return DETACH, around + needs.record[s], chain.saved[s] - chain.activation[s]
    return MOVE, around + chain.transit[s, s], chain.activation[s + 1] - chain.activation[s]


@kernel
def _after(span: Span, decision: int) -> Span:
    """What is to do after the first step."""
    s, t, end, held, left = span
    if decision == MOVE:
        return Span(s + 1, t, end, held, left)
    return Span(s + 1, s + 1, end, held, 0)


@kernel
def _first_case(
    chain: Chain,
    needs: Needs,
    corners: Corners,
    span: Span,
    limits: tuple[int, int],
    here: Pair,
) -> tuple[Steps, Pair]:
    """Keep stage s, detach it, or move the floating activation from s to s+1."""
    decision, floor, size = _first_step(chain, needs, span)
    if span.s == span.end:
        here[0][0], here[1][0] = floor, 0
        return Steps(here[0], here[1], 0, 0, 0), here
    after = _front(corners, _after(span, decision), size)
    if after.last - after.first >= len(here[0]):
        here = buffers(2 * (after.last - after.first + 1))
    nothing = Steps(here[0], here[1], 0, -1, 0)
    count = merge_moved(nothing, after, 0, floor, limits[0], limits[1], here[0], here[1])
    return Steps(here[0], here[1], 0, count - 1, 0), here


@kernel
def _restarts(
    chain: Chain,
    needs: Needs,
    corners: Corners,
    span: Span,
    limits: tuple[int, int],
    resting: Resting,
    lowest: Steps,
    spare: Pair,
) -> tuple[Steps, Pair]:
    """The lower of `lowest` and all restarts; arguments as in `add_term`."""
    s, t, end, held, left = span
    cap, ceiling = limits
    floor = needs.around[held, end] + chain.transit[s, s]
    for detached in range(2):
        first = max(t + 1, s + 1 + detached)
        number = _number(corners, Span(s, t, first - 1, detached, left)) - first
        for k in range(first, end + 1 + detached * (1 - held)):
            rerun = chain.elapsed[k - detached] - chain.elapsed[s]
            if rerun >= ceiling:
                break
            # cheap: nowhere does the sum exist and lie below all of `lowest`
            index = 2 * k + detached
            start = max(floor, corners.least[number + k], resting.least[index])
            lower = rerun + corners.best[number + k] + resting.best[index]
            if start > cap or lower >= ceiling or lower >= value_at(lowest, start, ceiling):
                continue
            earlier = _front(corners, Span(s, t, k - 1, detached, left), 0)
            later = Steps(
                resting.memory[index], resting.overhead[index], 0, resting.size[index] - 1, 0
            )
            lowest, spare = add_term(lowest, earlier, later, rerun, start, limits, spare)
    return lowest, spare


@kernel
def _lines(chain: Chain, limit: PricedLimit, span: Span) -> NDArray[np.float64]:
    """What is spent outside: stages s..t-1 but the one left have their own ``Fa`` to come."""
    stop = (
        span.end + 1 - span.held
    )  # held saved data are outside: their stage may have run but once
    besides = chain.elapsed[span.t - span.left] - chain.elapsed[span.s]
    lines: NDArray[np.float64] = limit.around[span.s, stop] + float(besides)
    return lines


@kernel
def _store(
    limit: PricedLimit,
    lines: NDArray[np.float64],
    corners: Corners,
    span: Span,
    lowest: Steps,
    used: int,
) -> tuple[Corners, int]:
    """Put what can be part of a whole schedule into the pool."""
    pool = with_room((corners.memory, corners.overhead), used, lowest.last + 1)
    size = keep_affordable(limit, lines, lowest, pool[0][used:], pool[1][used:])
    number = _number(corners, span)
    corners.first[number], corners.size[number] = used, size
    if size:
        corners.least[number] = pool[0][used]
        corners.best[number] = pool[1][used + size - 1]
    kept = Corners(
        pool[0],
        pool[1],
        corners.row,
        corners.first,
        corners.size,
        corners.least,
        corners.best,
    )
    return kept, used + size


@kernel
def fill(chain: Chain, needs: Needs, limit: PricedLimit) -> Corners:
    """Fronts of all F within the limit: ends ascending, held first, s descending.

    Args:
        chain: As everywhere.
        needs: Of single operations.
        limit: What prunes; its `around` has shape (n + 1, n + 1, prices), at [s, l + 1] what is
            spent outside of stages s..l.
    """
    n = len(chain.saved)
    corners, used = _no_corners(n), 0
    here, spare = buffers(_FIRST_CAPACITY), buffers(_FIRST_CAPACITY)
    rests = np.empty((2 * n + 2, 16), dtype=np.int64), np.empty((2 * n + 2, 16), dtype=np.int64)
    for end in range(n):
        for held in range(1, -1, -1):
            resting, needed = nothing_rests(rests), needs.around[held, end]
            for s in range(end, -1, -1):
                if limit.around[s, end + 1 - held, 0] > limit.overhead:
                    break
                if s < end:
                    resting, spare = _all_rest(
                        chain, needs, corners, s + 1, end, held, limit.memory, resting, spare
                    )
                for left in range(2):
                    for t in range(s + left, end + 1 + left * (1 - held)):
                        span = Span(s, t, end, held, left)
                        lines = _lines(chain, limit, span)
                        limits = room_within(limit, lines, input_bytes(chain, s), needed)
                        if limits[0] < needed or limits[1] <= 0:
                            break
                        lowest, here = _first_case(chain, needs, corners, span, limits, here)
                        lowest, spare = _restarts(
                            chain, needs, corners, span, limits, resting, lowest, spare
                        )
                        corners, used = _store(limit, lines, corners, span, lowest, used)
                        here = (lowest.memory, lowest.overhead)
            rests = (resting.memory, resting.overhead)
    return corners


@kernel
def _choose_restart(
    chain: Chain, needs: Needs, corners: Corners, span: Span, m: int, target: int
) -> tuple[int, int, int, int]:
    """`choose`, for restarts."""
    s, t, end, held, left = span
    around = needs.around[held, end]
    for detached in range(2):
        for k in range(max(t + 1, s + 1 + detached), end + 1 + detached * (1 - held)):
            rest = target - (chain.elapsed[k - detached] - chain.elapsed[s])
            if rest < 0:
                break
            rest -= value_at(_front(corners, Span(s, t, k - 1, detached, left), 0), m, target + 1)
            if rest < 0:
                continue
            for j in range(k - detached, s, -1):
                if m >= around + chain.transit[s, j - 1]:
                    later = Span(j, k, end, held, detached)
                    if value_at(_front(corners, later, chain.activation[j]), m, -1) == rest:
                        return RESTART, k, j, detached
    return _NONE, 0, 0, 0


@kernel
def choose(
    chain: Chain, needs: Needs, corners: Corners, span: Span, m: int
) -> tuple[int, int, int, int]:
    """The optimal decision with `m` bytes.

    Returns:
        `KEEP`, `MOVE` or `DETACH`, and zeros; or `RESTART`, the stage k down to which the
        first part goes, the stage j at which its floating activation rests, and whether it
        leaves the saved data of stage k - 1. -2 where there is no decision.
    """
    target = value_at(_front(corners, span, 0), m, -1)
    decision, floor, size = _first_step(chain, needs, span)
    if m >= floor:
        after = 0
        if span.s < span.end:
            after = value_at(_front(corners, _after(span, decision), size), m, -1)
        if after == target:
            return decision, 0, 0, 0
    return _choose_restart(chain, needs, corners, span, m, target)
