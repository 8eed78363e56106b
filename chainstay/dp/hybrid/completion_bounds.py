"""Lower bounds on what must be spent before, after and beside a state: they prune the search.

The way to the turn takes at least as long as its forwards, and as moving what leaves; so
with weights w and v it takes (1 - w) of the one and w of the other together, and the way
back (1 - v) and v. For given weights, what is best depends on what is kept alone, on a finer grid
(``docs/derivations/hybrid-fronts.md``).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.hybrid.recompute_fronts import (
    FINITE,
    INFINITE,
    TINY,
    Rooms,
    SlotChain,
    rounded,
    row_of,
)
from chainstay.dp.jit import kernel

__all__ = [
    "BoundGrid",
    "BoundTables",
    "Weights",
    "fill_compute_costs",
    "fill_cost_caps",
    "fill_costs_so_far",
    "fill_costs_to_go",
]

_Floats = NDArray[np.float64]


class Weights(NamedTuple):
    """Weights of moving things, each between 0 and 1.

    Attributes:
        away: w, of moving things to the host, against the forwards.
        back: v, of moving things back, against the backwards.
    """

    away: float
    back: float


class BoundGrid(NamedTuple):
    """The grid on which bounds are computed, and what is of no use.

    Attributes:
        finer: Steps of `kept` per slot.
        limit: Schedules that take longer are of no use.
        slack: More time than this for running forwards again is of no use.
        compute_costs: Shape (rows, slots + 1), as filled by `fill_compute_costs`.
    """

    finer: float
    limit: float
    slack: float
    compute_costs: _Floats


class GridState(NamedTuple):
    """A state on the way to the turn, at stage i.

    Attributes:
        i: The stage whose input has been made.
        is_saved: 1 if that input is part of saved data, else 0.
        kept: Steps of the grid that stay on the device until after the turn.
    """

    i: int
    is_saved: int
    kept: int


class BoundTables(NamedTuple):
    """Bounds for several pairs of weights.

    Attributes:
        weights: Shape (pairs, 2): w and v.
        to_go: Shape (stages, 2, finer * slots + 1, pairs), as filled by `fill_costs_to_go`.
        so_far: Shape (stages, 2, finer * slots + 1, pairs), as filled by `fill_costs_so_far`.
    """

    weights: _Floats
    to_go: _Floats
    so_far: _Floats


class Detour(NamedTuple):
    """Forwards i..j of which only the input stays or leaves.

    Attributes:
        j: Last stage.
        run: Time of the forwards.
        item: Slots of the input.
        stay: Steps of the grid that are kept if the input stays; -1 if it cannot.
    """

    j: int
    run: float
    item: float
    stay: int


@kernel
def fill_compute_costs(chain: SlotChain, slack: float, table: _Floats) -> None:
    """Fill in the least base of stages i..j at row ``j (j + 1) / 2 + i``, for every room.

    Args:
        chain: The chain.
        slack: More time than this for running forwards again is of no use.
        table: Shape (rows, slots + 1), all infinite.
    """
    for j in range(len(chain.forward)):
        again = 0.0
        for i in range(j, -1, -1):
            again += chain.forward[i]
            if again > slack:
                break
            _fill_row(chain, slack, i, j, table)


@kernel
def _fill_row(chain: SlotChain, slack: float, i: int, j: int, table: _Floats) -> None:
    """Fill in the row of stages i..j."""
    best, slots = table[row_of(i, j)], chain.rooms.slots
    recording = chain.gradient[j + 1] + chain.saved[i] + chain.forward_overhead[i]
    backing = (
        chain.saved[i] + chain.gradient[i] + chain.gradient[i + 1] + chain.backward_overhead[i]
    )
    own = chain.forward[i] + chain.backward[i]
    floor = math.ceil(max(0.0, recording, backing) - TINY)
    if i == j:
        best[floor:] = own
    else:
        less = rounded(chain.rooms, chain.saved[i])
        rest = table[row_of(i + 1, j)]
        for room in range(max(floor, less), slots + 1):
            best[room] = own + rest[room - less]
    run, most = 0.0, 0.0
    for k in range(i, j):
        run += chain.forward[k]
        passing = chain.gradient[j + 1] + chain.activation[k + 1] + chain.forward_overhead[k]
        if k > i:
            passing += chain.activation[k]
        most = max(most, passing)
        if run > slack:
            break
        less = rounded(chain.rooms, chain.activation[k + 1])
        later, sooner = table[row_of(i, k)], table[row_of(k + 1, j)]
        for room in range(max(less, math.ceil(most - TINY)), slots + 1):
            best[room] = min(best[room], run + later[room] + sooner[room - less])


@kernel
def fill_costs_to_go(chain: SlotChain, grid: BoundGrid, weights: Weights, to_go: _Floats) -> None:
    """Fill in what states cost at least from here on.

    Args:
        chain: The chain.
        grid: The grid of `to_go`.
        weights: w and v.
        to_go: Shape (stages, 2, finer * slots + 1): by stage, form of its input, what is kept.
    """
    for i in range(len(chain.forward) - 1, -1, -1):
        for is_saved in range(2):
            for kept in range(round(chain.rooms.slots * grid.finer) + 1):
                state = GridState(i, is_saved, kept)
                to_go[i, is_saved, kept] = _cost_to_go(chain, grid, weights, to_go, state)


@kernel
def _cost_to_go(
    chain: SlotChain, grid: BoundGrid, weights: Weights, to_go: _Floats, state: GridState
) -> float:
    """Return what a state costs at least from here on."""
    (i, is_saved, kept), (w, v) = state, weights
    last = len(chain.forward) - 1
    item = chain.saved[i - 1] if is_saved and i else chain.activation[i]
    room = chain.rooms.slots - kept / grid.finer - item
    full = kept + math.floor(item * grid.finer + TINY)
    if room < -TINY:
        return INFINITE
    best, moving = INFINITE, (w + v) * item
    if _can_record(chain, i, room):
        best = (1.0 - w) * chain.forward[i] + (1.0 - v) * chain.backward[i]
        if i < last:
            best += min(to_go[i + 1, 1, full], moving + to_go[i + 1, 1, kept])
    at = _index(chain.rooms, room)
    run, can_stay = 0.0, True
    for j in range(i, last):
        run += chain.forward[j]
        passing = _passing(chain, i, j)
        if run > grid.slack or passing > room + (item if j > i else 0.0) + TINY:
            break
        can_stay = can_stay and passing <= room + TINY
        back = grid.compute_costs[row_of(i, j), at]
        if back > FINITE:
            continue
        cost = moving + to_go[j + 1, 0, kept]
        if can_stay:
            cost = min(cost, to_go[j + 1, 0, full])
        best = min(best, cost + (1.0 - w) * run + (1.0 - v) * back)
    return best


@kernel
def _index(rooms: Rooms, room: float) -> int:
    """Return the column of a room: rounded up for a bound, down for a plan."""
    at = math.ceil(room - TINY) if rooms.is_bound else math.floor(room + TINY)
    return min(rooms.slots, at)


@kernel
def _can_record(chain: SlotChain, i: int, room: float) -> bool:
    """Return whether stage i can be recorded and run backward in a room, on the way to the turn."""
    last = len(chain.forward) - 1
    recording = chain.gradient[last + 1] + chain.saved[i] + chain.forward_overhead[i]
    backing = (
        chain.saved[i] + chain.gradient[i] + chain.gradient[i + 1] + chain.backward_overhead[i]
    )
    return bool(max(recording, backing) <= room + TINY)


@kernel
def _passing(chain: SlotChain, i: int, j: int) -> float:
    """Return the slots that the forward of stage j needs on a way from stage i to the turn."""
    passing = (
        chain.gradient[len(chain.forward)] + chain.activation[j + 1] + chain.forward_overhead[j]
    )
    return float(passing + chain.activation[j] if j > i else passing)


@kernel
def fill_costs_so_far(
    chain: SlotChain, grid: BoundGrid, weights: Weights, to_go: _Floats, so_far: _Floats
) -> None:
    """Fill in what it takes at least to get to states that keep so much or less.

    Args:
        chain: The chain.
        grid: The grid of `to_go`.
        weights: w and v.
        to_go: As filled by `fill_costs_to_go`.
        so_far: Shape of `to_go`, all infinite.
    """
    so_far[0, 0, 0] = 0.0
    levels = round(chain.rooms.slots * grid.finer) + 1
    for i in range(len(chain.forward)):
        for is_saved in range(2):
            for kept in range(levels):
                if so_far[i, is_saved, kept] + to_go[i, is_saved, kept] <= grid.limit:
                    _extend(chain, grid, weights, so_far, GridState(i, is_saved, kept))
            for kept in range(1, levels):
                least = min(so_far[i, is_saved, kept], so_far[i, is_saved, kept - 1])
                so_far[i, is_saved, kept] = least


@kernel
def _extend(
    chain: SlotChain, grid: BoundGrid, weights: Weights, so_far: _Floats, state: GridState
) -> None:
    """Lower `so_far` of all states that can follow a state."""
    (i, is_saved, kept), (w, v) = state, weights
    last = len(chain.forward) - 1
    item = chain.saved[i - 1] if is_saved and i else chain.activation[i]
    room = chain.rooms.slots - kept / grid.finer - item
    full = kept + math.floor(item * grid.finer + TINY)
    if room < -TINY:
        return
    here, moving = so_far[i, is_saved, kept], (w + v) * item
    if i < last and _can_record(chain, i, room):
        cost = here + (1.0 - w) * chain.forward[i] + (1.0 - v) * chain.backward[i]
        so_far[i + 1, 1, full] = min(so_far[i + 1, 1, full], cost)
        so_far[i + 1, 1, kept] = min(so_far[i + 1, 1, kept], cost + moving)
    at = _index(chain.rooms, room)
    run, can_stay = 0.0, True
    for j in range(i, last):
        run += chain.forward[j]
        passing = _passing(chain, i, j)
        if run > grid.slack or passing > room + (item if j > i else 0.0) + TINY:
            break
        can_stay = can_stay and passing <= room + TINY
        back = grid.compute_costs[row_of(i, j), at]
        if back > FINITE:
            continue
        cost = here + (1.0 - w) * run + (1.0 - v) * back
        if can_stay:
            so_far[j + 1, 0, full] = min(so_far[j + 1, 0, full], cost)
        so_far[j + 1, 0, kept] = min(so_far[j + 1, 0, kept], cost + moving)


@kernel
def fill_cost_caps(chain: SlotChain, grid: BoundGrid, bounds: BoundTables, caps: _Floats) -> None:
    """Fill in the most that ``C_A`` may cost so that all around it stays below the limit.

    Args:
        chain: The chain.
        grid: The grid of `bounds`.
        bounds: What must be spent before and after.
        caps: Shape of ``grid.compute_costs``, all minus infinity.
    """
    last = len(chain.forward) - 1
    for i in range(last):
        for is_saved in range(2 if i else 1):
            for kept in range(round(chain.rooms.slots * grid.finer) + 1):
                _raise_outermost(chain, grid, bounds, caps, GridState(i, is_saved, kept))
    if chain.rooms.is_bound:  # merged labels have more room than what they stand for
        for cap in caps:
            for room in range(1, chain.rooms.slots + 1):
                cap[room] = max(cap[room], cap[room - 1])
    for length in range(last, 0, -1):
        for i in range(last - length + 1):
            _raise_parts(chain, grid, caps, i, i + length - 1)


@kernel
def _raise_outermost(
    chain: SlotChain, grid: BoundGrid, bounds: BoundTables, caps: _Floats, state: GridState
) -> None:
    """Raise the caps of what is recomputed on the way back, not inside something else."""
    i, is_saved, kept = state
    item = chain.saved[i - 1] if is_saved else chain.activation[i]
    room = chain.rooms.slots - kept / grid.finer - item
    if room < -TINY:
        return
    full = kept + math.floor(item * grid.finer + TINY)
    low = _index(chain.rooms, max(0.0, room - 1.0 / grid.finer))
    for pair in range(len(bounds.weights)):
        spent = bounds.so_far[i, is_saved, kept, pair] + bounds.to_go[i, is_saved, kept, pair]
        if spent > grid.limit:
            return
    run, can_stay = 0.0, True
    for j in range(i, len(chain.forward) - 1):
        run += chain.forward[j]
        passing = _passing(chain, i, j)
        if run > grid.slack or passing > room + (item if j > i else 0.0) + TINY:
            break
        can_stay = can_stay and passing <= room + TINY
        detour = Detour(j, run, item, full if can_stay else -1)
        cap = _left_for(grid.limit, bounds, state, detour)
        row = row_of(i, j)
        for at in range(low, _index(chain.rooms, room) + 1):
            caps[row, at] = max(caps[row, at], cap)


@kernel
def _left_for(limit: float, bounds: BoundTables, state: GridState, detour: Detour) -> float:
    """Return what the limit leaves for the way back over a detour, by all weights."""
    cap, kept = INFINITE, state.kept
    so_far, to_go = bounds.so_far[state.i, state.is_saved, kept], bounds.to_go[detour.j + 1, 0]
    for pair in range(len(bounds.weights)):
        w, v = bounds.weights[pair, 0], bounds.weights[pair, 1]
        cost = (w + v) * detour.item + to_go[kept, pair]
        if detour.stay >= 0:
            cost = min(cost, to_go[detour.stay, pair])
        left = limit - so_far[pair] - (1.0 - w) * detour.run - cost
        if left < 0.0:
            return -1.0
        if v < 1.0:
            cap = min(cap, left / (1.0 - v))
    return float(cap)


@kernel
def _raise_parts(chain: SlotChain, grid: BoundGrid, caps: _Floats, i: int, j: int) -> None:
    """Raise the caps of the parts that stages i..j can be made of."""
    cap, slots = caps[row_of(i, j)], chain.rooms.slots
    if i < j:
        less = rounded(chain.rooms, chain.saved[i])
        part = caps[row_of(i + 1, j)]
        own = chain.forward[i] + chain.backward[i]
        for room in range(less, slots + 1):
            part[room - less] = max(part[room - less], cap[room] - own)
    run = 0.0
    for k in range(i, j):
        run += chain.forward[k]
        if run > grid.slack:
            break
        less = rounded(chain.rooms, chain.activation[k + 1])
        one, other = row_of(i, k), row_of(k + 1, j)
        later, sooner = grid.compute_costs[one], grid.compute_costs[other]
        for room in range(less, slots + 1):
            caps[one, room] = max(caps[one, room], cap[room] - run - sooner[room - less])
            caps[other, room - less] = max(caps[other, room - less], cap[room] - run - later[room])
