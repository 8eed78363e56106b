"""What must be spent before, after and beside something: bounds that drop what cannot matter.

The way to the turn takes at least as long as its forwards, and as moving what leaves; so
with weights w and v it takes (1 - w) of the one and w of the other together, and the way
back (1 - v) and v. For given weights, what is best depends on what is kept alone, on a finer grid
(``docs/derivations/hybrid-fronts.md``).
"""

# ruff: noqa: FBT001, PLR0913, PLR0917  # compiled code has no objects to hold what it needs

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.hybrid.inner import FINITE, INFINITE, TINY, Costs, rounded
from chainstay.dp.jit import kernel

__all__ = ["after", "before", "caps", "computing"]

_Floats = NDArray[np.float64]


@kernel
def computing(of: Costs, size: int, is_bound: bool, slack: float, table: _Floats) -> None:
    """Fill in the least base of stages i..j at row ``j (j + 1) / 2 + i``, for every room.

    Args:
        of: Costs.
        size: K.
        is_bound: Whether rooms are rounded up.
        slack: Of overhead: more matters to no one.
        table: Shape (rows, size + 1), all infinite.
    """
    for j in range(len(of.forward)):
        again = 0.0
        for i in range(j, -1, -1):
            again += of.forward[i]
            if again > slack:
                break
            _computing(of, size, is_bound, slack, i, j, table)


@kernel
def _computing(
    of: Costs, size: int, is_bound: bool, slack: float, i: int, j: int, table: _Floats
) -> None:
    best = table[j * (j + 1) // 2 + i]
    recording = of.gradient[j + 1] + of.saved[i] + of.forward_overhead[i]
    backing = of.saved[i] + of.gradient[i] + of.gradient[i + 1] + of.backward_overhead[i]
    own = of.forward[i] + of.backward[i]
    floor = math.ceil(max(0.0, recording, backing) - TINY)
    if i == j:
        best[floor:] = own
    else:
        less = rounded(of.saved[i], is_bound)
        rest = table[j * (j + 1) // 2 + i + 1]
        for room in range(max(floor, less), size + 1):
            best[room] = own + rest[room - less]
    run, most = 0.0, 0.0
    for k in range(i, j):
        run += of.forward[k]
        passing = of.gradient[j + 1] + of.activation[k + 1] + of.forward_overhead[k]
        if k > i:
            passing += of.activation[k]
        most = max(most, passing)
        if run > slack:
            break
        less = rounded(of.activation[k + 1], is_bound)
        later, sooner = table[k * (k + 1) // 2 + i], table[j * (j + 1) // 2 + k + 1]
        for room in range(max(less, math.ceil(most - TINY)), size + 1):
            best[room] = min(best[room], run + later[room] + sooner[room - less])


@kernel
def after(
    of: Costs,
    size: int,
    finer: float,
    is_bound: bool,
    slack: float,
    table: _Floats,
    w: float,
    v: float,
    rest: _Floats,
) -> None:
    """Fill in what states at least cost from here on.

    Args:
        of: Costs.
        size: K.
        finer: Steps of `kept` per slot.
        is_bound: As `table` was filled.
        slack: Of overhead: more matters to no one.
        table: As filled by `computing`.
        w: Weight of moving things away.
        v: Weight of moving things back.
        rest: Shape (stages, 2, finer * size + 1): by stage, form of its input, what is kept.
    """
    for i in range(len(of.forward) - 1, -1, -1):
        for is_saved in range(2):
            for kept in range(round(size * finer) + 1):
                rest[i, is_saved, kept] = _after(
                    of, size, finer, is_bound, slack, table, w, v, rest, i, is_saved, kept
                )


@kernel
def _after(
    of: Costs,
    size: int,
    finer: float,
    is_bound: bool,
    slack: float,
    table: _Floats,
    w: float,
    v: float,
    rest: _Floats,
    i: int,
    is_saved: int,
    kept: int,
) -> float:
    last = len(of.forward) - 1
    item = of.saved[i - 1] if is_saved and i else of.activation[i]
    room = size - kept / finer - item
    full = kept + math.floor(item * finer + TINY)
    if room < -TINY:
        return INFINITE
    best, moving = INFINITE, (w + v) * item
    if _is_recorded(of, i, room):
        best = (1.0 - w) * of.forward[i] + (1.0 - v) * of.backward[i]
        if i < last:
            best += min(rest[i + 1, 1, full], moving + rest[i + 1, 1, kept])
    at = _index(size, room, is_bound)
    run, can_stay = 0.0, True
    for j in range(i, last):
        run += of.forward[j]
        passing = _passing(of, i, j)
        if run > slack or passing > room + (item if j > i else 0.0) + TINY:
            break
        can_stay = can_stay and passing <= room + TINY
        back = table[j * (j + 1) // 2 + i, at]
        if back > FINITE:
            continue
        cost = moving + rest[j + 1, 0, kept]
        if can_stay:
            cost = min(cost, rest[j + 1, 0, full])
        best = min(best, cost + (1.0 - w) * run + (1.0 - v) * back)
    return best


@kernel
def _index(size: int, room: float, is_bound: bool) -> int:
    return min(size, math.ceil(room - TINY) if is_bound else math.floor(room + TINY))


@kernel
def _is_recorded(of: Costs, i: int, room: float) -> bool:
    last = len(of.forward) - 1
    recording = of.gradient[last + 1] + of.saved[i] + of.forward_overhead[i]
    backing = of.saved[i] + of.gradient[i] + of.gradient[i + 1] + of.backward_overhead[i]
    return bool(max(recording, backing) <= room + TINY)


@kernel
def _passing(of: Costs, i: int, j: int) -> float:
    """What the forward of stage j needs on a way from stage i to the turn."""
    passing = of.gradient[len(of.forward)] + of.activation[j + 1] + of.forward_overhead[j]
    return float(passing + of.activation[j] if j > i else passing)


@kernel
def before(
    of: Costs,
    size: int,
    finer: float,
    is_bound: bool,
    limit: float,
    slack: float,
    table: _Floats,
    w: float,
    v: float,
    rest: _Floats,
    spent: _Floats,
) -> None:
    """Fill in what it takes at least to get to states that keep so much or less.

    Args:
        of: Costs.
        size: K.
        finer: As for `after`.
        is_bound: Likewise.
        limit: More than this in all matters to no one.
        slack: Likewise of overhead.
        table: As filled by `computing`.
        w: As for `after`.
        v: As for `after`.
        rest: As filled by `after`.
        spent: Shape of `rest`, all infinite.
    """
    spent[0, 0, 0] = 0.0
    for i in range(len(of.forward)):
        for is_saved in range(2):
            for kept in range(round(size * finer) + 1):
                if spent[i, is_saved, kept] + rest[i, is_saved, kept] <= limit:
                    _onward(of, size, finer, is_bound, slack, table, w, v, spent, i, is_saved, kept)
            for kept in range(1, round(size * finer) + 1):
                least = min(spent[i, is_saved, kept], spent[i, is_saved, kept - 1])
                spent[i, is_saved, kept] = least


@kernel
def _onward(
    of: Costs,
    size: int,
    finer: float,
    is_bound: bool,
    slack: float,
    table: _Floats,
    w: float,
    v: float,
    spent: _Floats,
    i: int,
    is_saved: int,
    kept: int,
) -> None:
    last = len(of.forward) - 1
    item = of.saved[i - 1] if is_saved and i else of.activation[i]
    room = size - kept / finer - item
    full = kept + math.floor(item * finer + TINY)
    if room < -TINY:
        return
    here, moving = spent[i, is_saved, kept], (w + v) * item
    if i < last and _is_recorded(of, i, room):
        cost = here + (1.0 - w) * of.forward[i] + (1.0 - v) * of.backward[i]
        spent[i + 1, 1, full] = min(spent[i + 1, 1, full], cost)
        spent[i + 1, 1, kept] = min(spent[i + 1, 1, kept], cost + moving)
    at = _index(size, room, is_bound)
    run, can_stay = 0.0, True
    for j in range(i, last):
        run += of.forward[j]
        passing = _passing(of, i, j)
        if run > slack or passing > room + (item if j > i else 0.0) + TINY:
            break
        can_stay = can_stay and passing <= room + TINY
        back = table[j * (j + 1) // 2 + i, at]
        if back > FINITE:
            continue
        cost = here + (1.0 - w) * run + (1.0 - v) * back
        if can_stay:
            spent[j + 1, 0, full] = min(spent[j + 1, 0, full], cost)
        spent[j + 1, 0, kept] = min(spent[j + 1, 0, kept], cost + moving)


@kernel
def caps(
    of: Costs,
    size: int,
    finer: float,
    is_bound: bool,
    limit: float,
    slack: float,
    table: _Floats,
    weights: _Floats,
    rests: _Floats,
    spents: _Floats,
    most: _Floats,
) -> None:
    """Fill in the most that ``C_A`` may cost, with what must be spent beside it below `limit`.

    Args:
        of: Costs.
        size: K.
        finer: As for `after`.
        is_bound: Likewise.
        limit: On everything.
        slack: Likewise of overhead.
        table: As filled by `computing`.
        weights: Shape (p, 2): pairs of w and v.
        rests: Shape (stages, 2, finer * size + 1, p), as filled by `after`.
        spents: Likewise by `before`.
        most: Shape of `table`, all minus infinity.
    """
    last = len(of.forward) - 1
    for i in range(last):
        for is_saved in range(2 if i else 1):
            for kept in range(round(size * finer) + 1):
                _outermost(
                    of, size, finer, is_bound, limit, slack, weights, rests, spents, most,
                    i, is_saved, kept,
                )  # fmt: skip
    if is_bound:  # merged labels have more room than what they stand for
        for cap in most:
            for room in range(1, size + 1):
                cap[room] = max(cap[room], cap[room - 1])
    for length in range(last, 0, -1):
        for i in range(last - length + 1):
            _within(of, size, is_bound, slack, table, most, i, i + length - 1)


@kernel
def _outermost(
    of: Costs,
    size: int,
    finer: float,
    is_bound: bool,
    limit: float,
    slack: float,
    weights: _Floats,
    rests: _Floats,
    spents: _Floats,
    most: _Floats,
    i: int,
    is_saved: int,
    kept: int,
) -> None:
    """For what is recomputed on the way back, not inside something else."""
    item = of.saved[i - 1] if is_saved else of.activation[i]
    room = size - kept / finer - item
    if room < -TINY:
        return
    full = kept + math.floor(item * finer + TINY)
    low = _index(size, max(0.0, room - 1.0 / finer), is_bound)
    for pair in range(len(weights)):
        if spents[i, is_saved, kept, pair] + rests[i, is_saved, kept, pair] > limit:
            return
    run, can_stay = 0.0, True
    for j in range(i, len(of.forward) - 1):
        run += of.forward[j]
        passing = _passing(of, i, j)
        if run > slack or passing > room + (item if j > i else 0.0) + TINY:
            break
        can_stay = can_stay and passing <= room + TINY
        stay = full if can_stay else -1
        cap = _left_for(
            limit, weights, spents[i, is_saved, kept], rests[j + 1, 0], run, item, kept, stay
        )
        row = j * (j + 1) // 2 + i
        for at in range(low, _index(size, room, is_bound) + 1):
            most[row, at] = max(most[row, at], cap)


@kernel
def _left_for(
    limit: float,
    weights: _Floats,
    spents: _Floats,
    rests: _Floats,
    run: float,
    item: float,
    away: int,
    stay: int,
) -> float:
    """What is left of the limit for the way back over some stages, by all weights."""
    cap = INFINITE
    for pair in range(len(weights)):
        w, v = weights[pair, 0], weights[pair, 1]
        cost = (w + v) * item + rests[away, pair]
        if stay >= 0:
            cost = min(cost, rests[stay, pair])
        left = limit - spents[pair] - (1.0 - w) * run - cost
        if left < 0.0:
            return -1.0
        if v < 1.0:
            cap = min(cap, left / (1.0 - v))
    return float(cap)


@kernel
def _within(
    of: Costs,
    size: int,
    is_bound: bool,
    slack: float,
    table: _Floats,
    most: _Floats,
    i: int,
    j: int,
) -> None:
    """From stages i..j to the parts that they can be made of."""
    cap = most[j * (j + 1) // 2 + i]
    if i < j:
        less = rounded(of.saved[i], is_bound)
        part = most[j * (j + 1) // 2 + i + 1]
        own = of.forward[i] + of.backward[i]
        for room in range(less, size + 1):
            part[room - less] = max(part[room - less], cap[room] - own)
    run = 0.0
    for k in range(i, j):
        run += of.forward[k]
        if run > slack:
            break
        less = rounded(of.activation[k + 1], is_bound)
        one, other = k * (k + 1) // 2 + i, j * (j + 1) // 2 + k + 1
        later, sooner = table[one], table[other]
        for room in range(less, size + 1):
            most[one, room] = max(most[one, room], cap[room] - run - sooner[room - less])
            most[other, room - less] = max(most[other, room - less], cap[room] - run - later[room])
