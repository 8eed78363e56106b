"""``C_A``, as short lists of plans instead of a table: compiled loops (see `kernels`).

For a fixed way to recompute stages i..j in `room` bytes, what has to come back beside it
makes it wait once at most: its cost is ``base + max(0, D + demand - room)``, where ``base``
is computing alone, and ``demand`` the most by which what an operation needs exceeds what has
come back until then. So ``C_A(i, j, A, ·)`` is a *front*: pairs of a base and a demand, and
only rooms are on a grid (``docs/derivations/hybrid-fronts.md``).
"""

# ruff: noqa: FBT001, PLR0913, PLR0917  # compiled code has no objects to hold what it needs

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.jit import kernel

__all__ = [
    "FINITE",
    "INFINITE",
    "TINY",
    "Costs",
    "Fronts",
    "fill_column",
    "found_in",
    "looked_up",
    "rounded",
]

_Floats = NDArray[np.float64]
_Ints = NDArray[np.int32]

INFINITE = 1e30
FINITE = 1e29
TINY = 1e-9
_RECORDED = -1
_SAME = 1e-9
"""In slots: what no two plans of a front differ by less than."""


class Costs(NamedTuple):
    """A chain in grid units; shapes as in `ChainArrays`."""

    activation: _Floats
    saved: _Floats
    gradient: _Floats
    forward_overhead: _Floats
    backward_overhead: _Floats
    forward: _Floats
    backward: _Floats


class Fronts(NamedTuple):
    """Fronts of stages i..j at row ``j (j + 1) / 2 + i``, for every room of the grid.

    Attributes:
        start: Shape (rows, size + 1): where the plans of a front begin; rooms may share them.
        plans: Likewise: how many there are, bases ascending, demands descending.
        base: Of every plan: what it takes where nothing has to come back.
        demand: Of every plan, as above.
        choice: -1 for ``Fall``, or the last stage that ``Fck`` passes.
        later: The plan of what runs later, if that is part of it.
        sooner: Likewise of what runs sooner.
    """

    start: _Ints
    plans: _Ints
    base: _Floats
    demand: _Floats
    choice: _Ints
    later: _Ints
    sooner: _Ints


@kernel
def found_in(
    fronts: Fronts, row: int, size: int, room: float, returning: float, is_bound: bool
) -> int:
    """The best plan of a row, the room rounded down, or up for a bound; -1 if there is none."""
    if room < -TINY:
        return -1
    at = min(size, math.ceil(room - TINY) if is_bound else math.floor(room + TINY))
    best, found = INFINITE, -1
    first = fronts.start[row, at]
    for plan in range(first, first + fronts.plans[row, at]):
        if fronts.base[plan] >= best:
            break
        cost = fronts.base[plan] + max(0.0, returning + fronts.demand[plan] - room)
        if cost < best:
            best, found = cost, plan
    return found


@kernel
def looked_up(
    fronts: Fronts, row: int, size: int, room: float, returning: float, is_bound: bool
) -> float:
    """``C_A`` of a row, the room rounded down, or up for a bound."""
    plan = found_in(fronts, row, size, room, returning, is_bound)
    if plan < 0:
        return INFINITE
    return float(fronts.base[plan] + max(0.0, returning + fronts.demand[plan] - room))


@kernel
def fill_column(
    of: Costs, size: int, is_bound: bool, caps: _Floats, j: int, fronts: Fronts, made: int
) -> int:
    """Fill in the fronts of stages i..j for all i.

    Args:
        of: Costs.
        size: K.
        is_bound: Whether rooms are rounded up.
        caps: Shape (rows, size + 1): bases above that matter to no one.
        j: Last stage.
        fronts: Those of smaller j are there; `plans` is zero elsewhere.
        made: How many plans there are.

    Returns:
        How many there are now, or -1 if there is no place for them.
    """
    most = len(fronts.base)
    work = Fronts(
        fronts.start, fronts.plans, np.empty(most), np.empty(most), np.empty(most, np.int32),
        np.empty(most, np.int32), np.empty(most, np.int32),
    )  # fmt: skip
    passings, needs = np.empty(j + 1), np.empty(j + 1)
    for i in range(j, -1, -1):
        row, length = j * (j + 1) // 2 + i, 0
        if caps[row].max() < of.forward[i] + of.backward[i]:
            continue
        _passings(of, i, j, passings, needs)
        for room in range(size + 1):
            cap = caps[row, room]
            while length > 0 and work.base[length - 1] > cap:
                length -= 1
            length, is_new = _front(
                of, is_bound, caps, i, j, room, fronts, passings, needs, work, length
            )
            if length < 0 or made + length > len(fronts.base):
                return -1
            if is_new:
                fronts.start[row, room] = made
                for at in range(length):
                    _copy(work, at, fronts, made)
                    made += 1
            elif room > 0:
                fronts.start[row, room] = fronts.start[row, room - 1]
            fronts.plans[row, room] = length
    return made


@kernel
def _passings(of: Costs, i: int, j: int, passings: _Floats, needs: _Floats) -> None:
    """For every k what forwards i..k need at most, and what counting what came back since."""
    most, need = 0.0, -INFINITE
    for k in range(i, j):
        passing = of.gradient[j + 1] + of.activation[k + 1] + of.forward_overhead[k]
        if k > i:
            passing += of.activation[k]
        most = max(most, passing)
        need = max(need - of.forward[k], passing)
        passings[k], needs[k] = most, need


@kernel
def _front(
    of: Costs,
    is_bound: bool,
    caps: _Floats,
    i: int,
    j: int,
    room: int,
    fronts: Fronts,
    passings: _Floats,
    needs: _Floats,
    work: Fronts,
    length: int,
) -> tuple[int, bool]:
    """Add the plans of stages i..j that need this room to those that need less."""
    recording = of.gradient[j + 1] + of.saved[i] + of.forward_overhead[i]
    backing = of.saved[i] + of.gradient[i] + of.gradient[i + 1] + of.backward_overhead[i]
    own, demand = of.forward[i] + of.backward[i], max(backing, recording - of.backward[i])
    is_new, most = False, caps[j * (j + 1) // 2 + i, room]
    before = most if room == 0 else caps[j * (j + 1) // 2 + i, room - 1]
    if most < own:
        return length, False
    if max(recording, backing) <= room + TINY:
        if i == j:
            length, is_new = _insert(work, length, most, own, demand, _RECORDED, -1, -1)
        left = _left(room, of.saved[i], is_bound)
        if i < j and left >= 0:
            row = j * (j + 1) // 2 + i + 1
            first = fronts.start[row, left]
            for plan in range(first, first + fronts.plans[row, left]):
                base = fronts.base[plan]
                demand = max(
                    backing,
                    fronts.demand[plan] + of.saved[i] - of.backward[i],
                    recording - of.backward[i] - base,
                )
                length, is_added = _insert(
                    work, length, most, own + base, demand, _RECORDED, -1, plan
                )
                is_new = is_new or is_added
    run = 0.0
    for k in range(i, j):
        run += of.forward[k]
        if passings[k] > room + TINY or length < 0:
            break
        left = _left(room, of.activation[k + 1], is_bound)
        one, other = k * (k + 1) // 2 + i, j * (j + 1) // 2 + k + 1
        if left < 0 or fronts.plans[one, room] == 0 or fronts.plans[other, left] == 0:
            continue
        if (
            most <= before
            and left > 0
            and passings[k] <= room - 1 + TINY
            and _is_as_before(fronts, one, room)
            and _is_as_before(fronts, other, left)
        ):
            continue
        length, is_added = _restarted(
            of, most, i, j, k, room, left, run, needs[k], fronts, work, length
        )
        is_new = is_new or is_added
    return length, is_new


@kernel
def _is_as_before(fronts: Fronts, row: int, room: int) -> bool:
    """Whether a front has no plan that it has not with one slot less."""
    return bool(
        fronts.start[row, room] == fronts.start[row, room - 1]
        and fronts.plans[row, room] <= fronts.plans[row, room - 1]
    )


@kernel
def _left(room: int, size: float, is_bound: bool) -> int:
    """What a size leaves of a room, rounded."""
    return room - rounded(size, is_bound)


@kernel
def rounded(amount: float, is_bound: bool) -> int:
    """What a size takes of a room."""
    return math.floor(amount + TINY) if is_bound else math.ceil(amount - TINY)


@kernel
def _restarted(
    of: Costs,
    most: float,
    i: int,
    j: int,
    k: int,
    room: int,
    left: int,
    run: float,
    need: float,
    fronts: Fronts,
    work: Fronts,
    length: int,
) -> tuple[int, bool]:
    """Case ``Fck``: every plan of stages i..k with every one of k+1..j."""
    one, other = k * (k + 1) // 2 + i, j * (j + 1) // 2 + k + 1
    ones, others = fronts.plans[one, room], fronts.plans[other, left]
    one_first, other_first = fronts.start[one, room], fronts.start[other, left]
    least = run + fronts.base[one_first] + fronts.base[other_first]
    if least > most:
        return length, False
    if _is_covered(work, length, least, fronts.demand[one_first + ones - 1]):
        return length, False
    is_new = False
    for later in range(one_first, one_first + ones):
        base, demand = run + fronts.base[later], fronts.demand[later]
        for sooner in range(other_first, other_first + others):
            total = base + fronts.base[sooner]
            if total > most:
                break
            wanted = fronts.demand[sooner] + of.activation[k + 1] - fronts.base[later]
            length, is_added = _insert(
                work, length, most, total,
                max(demand, wanted, need - total + run),
                k, later, sooner,
            )  # fmt: skip
            is_new = is_new or is_added
    return length, is_new


@kernel
def _is_covered(work: Fronts, length: int, base: float, demand: float) -> bool:
    """Whether some plan, waiting, is as good as one of this base and demand.

    Where bases go up, what plans take with waiting goes down: the last that has no larger
    base is as good, or none is.
    """
    at = _count_below(work, length, base + _SAME) - 1
    if at < 0:
        return False
    return bool(work.base[at] + max(0.0, work.demand[at] - demand) < base + _SAME)


@kernel
def _count_below(work: Fronts, length: int, base: float) -> int:
    """How many plans have a smaller base."""
    low, high = 0, length
    while low < high:
        middle = (low + high) // 2
        if work.base[middle] < base:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def _insert(
    work: Fronts,
    length: int,
    most: float,
    base: float,
    demand: float,
    choice: int,
    later: int,
    sooner: int,
) -> tuple[int, bool]:
    """Enter a plan into a front, unless it costs too much or another one is as good."""
    if base > most or length < 0 or _is_covered(work, length, base, demand):
        return length, False
    place = _count_below(work, length, base)
    after = place
    while after < length and base + max(0.0, demand - work.demand[after]) <= work.base[after]:
        after += 1
    if after == place:
        if length == len(work.base):
            return -1, False
        for at in range(length, place, -1):
            _copy(work, at - 1, work, at)
        length += 1
    else:
        for at in range(after, length):
            _copy(work, at, work, at - after + place + 1)
        length -= after - place - 1
    work.base[place], work.demand[place], work.choice[place] = base, demand, choice
    work.later[place], work.sooner[place] = later, sooner
    return length, True


@kernel
def _copy(source: Fronts, at: int, target: Fronts, to: int) -> None:
    target.base[to], target.demand[to] = source.base[at], source.demand[at]
    target.choice[to] = source.choice[at]
    target.later[to], target.sooner[to] = source.later[at], source.sooner[at]
