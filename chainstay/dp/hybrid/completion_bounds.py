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

from chainstay.dp.hybrid.slot_chain import (
    FINITE,
    INFINITE,
    PLAIN,
    TINY,
    SlotChain,
    column_of,
    input_forms,
    input_size,
    passing,
    rounded,
    row_of,
)
from chainstay.dp.jit import kernel

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
        form: The form of that input, an `InputForm`.
        kept: Steps of the grid that stay on the device until after the turn.
    """

    i: int
    form: int
    kept: int


class BoundTables(NamedTuple):
    """Bounds for several pairs of weights.

    Attributes:
        weights: Shape (pairs, 2): w and v.
        to_go: Shape (stages, forms, finer * slots + 1, pairs), as filled by `fill_costs_to_go`.
        so_far: Shape (stages, forms, finer * slots + 1, pairs), as filled by `fill_costs_so_far`.
    """

    weights: _Floats
    to_go: _Floats
    so_far: _Floats


class Moves(NamedTuple):
    """Ways from a state to the next ones on the way to the turn, in columns.

    Attributes:
        stage: The stage that is got to.
        form: The form of its input.
        forward: Time on the way to the turn.
        backward: Time on the way back where nothing has to come back.
        stay: Steps of the grid that are kept if the input at hand stays; -1 if it cannot.
    """

    stage: NDArray[np.int64]
    form: NDArray[np.int64]
    forward: _Floats
    backward: _Floats
    stay: NDArray[np.int64]


class Detour(NamedTuple):
    """A move by forwards of which only the input of the first stays, or leaves.

    Attributes:
        stage: The stage that is got to.
        forward: Time of the forwards.
        item: Slots of the input.
        stay: Steps of the grid that are kept if the input stays; -1 if it cannot.
    """

    stage: int
    forward: float
    item: float
    stay: int


@kernel
def _no_moves(chain: SlotChain) -> Moves:
    """Return columns with room for the moves from any state."""
    most = len(chain.forward) + chain.saved.shape[1]
    whole = np.empty((3, most), dtype=np.int64)
    return Moves(whole[0], whole[1], np.empty(most), np.empty(most), whole[2])


@kernel
def _write_moves(
    chain: SlotChain, grid: BoundGrid, state: GridState, moves: Moves
) -> tuple[float, int]:
    """Write the ways from a state to the next ones; return its input's slots, and their number.

    Those to saved forms record stage i: at the loss they lead to the stage after the last.
    """
    i, form, kept = state
    last = len(chain.forward) - 1
    item = input_size(chain, i, form)
    room = chain.rooms.slots - kept / grid.finer - item
    if room < -TINY:
        return item, 0
    full, count = kept + math.floor(item * grid.finer + TINY), 0
    held = chain.gradient[last + 1]
    for option in range(chain.counts[i]):
        need = max(held + chain.forward_need[i, option], chain.backward_need[i, option])
        if need > room + TINY:
            continue
        moves.stage[count], moves.form[count], moves.stay[count] = i + 1, option + 1, full
        moves.forward[count] = chain.keep[i, option]
        moves.backward[count] = chain.backward[i, option]
        count += 1
    at = column_of(chain.rooms, room)
    run, can_stay = 0.0, True
    for j in range(i, last):
        run += chain.forward[j]
        need = passing(chain, j, i, last)
        if run > grid.slack or need > room + (item if j > i else 0.0) + TINY:
            break
        can_stay = can_stay and need <= room + TINY
        back = grid.compute_costs[row_of(i, j), at]
        if back > FINITE:
            continue
        moves.stage[count], moves.form[count] = j + 1, PLAIN
        moves.stay[count] = full if can_stay else -1
        moves.forward[count], moves.backward[count] = run, back
        count += 1
    return item, count


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
    best, slots, held = table[row_of(i, j)], chain.rooms.slots, chain.gradient[j + 1]
    for option in range(chain.counts[i]):
        own = chain.keep[i, option] + chain.backward[i, option]
        need = max(held + chain.forward_need[i, option], chain.backward_need[i, option])
        floor = math.ceil(max(0.0, need) - TINY)
        if i == j:
            best[floor:] = np.minimum(best[floor:], own)
            continue
        less = rounded(chain.rooms, chain.saved[i, option])
        rest = table[row_of(i + 1, j)]
        for room in range(max(floor, less), slots + 1):
            best[room] = min(best[room], own + rest[room - less])
    run, most = 0.0, 0.0
    for k in range(i, j):
        run += chain.forward[k]
        most = max(most, passing(chain, k, i, j))
        if run > slack:
            break
        less = rounded(chain.rooms, chain.activation[k + 1])
        later, sooner = table[row_of(i, k)], table[row_of(k + 1, j)]
        for room in range(max(less, math.ceil(most - TINY)), slots + 1):
            best[room] = min(best[room], run + later[room] + sooner[room - less])


@kernel
def fill_costs_to_go(chain: SlotChain, grid: BoundGrid, weights: _Floats, to_go: _Floats) -> None:
    """Fill in what states cost at least from here on.

    Args:
        chain: The chain.
        grid: The grid of `to_go`.
        weights: Shape (pairs, 2): w and v.
        to_go: Shape (stages, forms, finer * slots + 1, pairs): by stage, form of its input, what
            is kept, and weights.
    """
    moves = _no_moves(chain)
    for i in range(len(chain.forward) - 1, -1, -1):
        for form in range(input_forms(chain, i)):
            for kept in range(round(chain.rooms.slots * grid.finer) + 1):
                item, count = _write_moves(chain, grid, GridState(i, form, kept), moves)
                best = to_go[i, form, kept]
                best[:] = INFINITE
                for at in range(count):
                    stage, stay = moves.stage[at], moves.stay[at]
                    forward, backward = moves.forward[at], moves.backward[at]
                    for pair in range(len(weights)):
                        w, v = weights[pair, 0], weights[pair, 1]
                        cost = (1.0 - w) * forward + (1.0 - v) * backward
                        if stage < len(chain.forward):
                            row = to_go[stage, moves.form[at]]
                            rest = (w + v) * item + row[kept, pair]
                            cost += min(rest, row[stay, pair]) if stay >= 0 else rest
                        best[pair] = min(best[pair], cost)


@kernel
def fill_costs_so_far(
    chain: SlotChain, grid: BoundGrid, weights: _Floats, to_go: _Floats, so_far: _Floats
) -> None:
    """Fill in what it takes at least to get to states that keep so much or less.

    Args:
        chain: The chain.
        grid: The grid of `to_go`.
        weights: Shape (pairs, 2): w and v.
        to_go: As filled by `fill_costs_to_go`.
        so_far: Shape of `to_go`, all infinite.
    """
    so_far[0, 0, 0] = 0.0
    levels, moves = round(chain.rooms.slots * grid.finer) + 1, _no_moves(chain)
    for i in range(len(chain.forward) - 1):
        for form in range(input_forms(chain, i)):
            for kept in range(levels):
                state = GridState(i, form, kept)
                if not _useful_pairs(grid.limit, so_far, to_go, state):
                    continue
                item, count = _write_moves(chain, grid, state, moves)
                for at in range(count):
                    stage, stay = moves.stage[at], moves.stay[at]
                    for pair in range(len(weights)):
                        w, v = weights[pair, 0], weights[pair, 1]
                        cost = so_far[i, form, kept, pair]
                        if cost + to_go[i, form, kept, pair] > grid.limit:
                            continue
                        cost += (1.0 - w) * moves.forward[at] + (1.0 - v) * moves.backward[at]
                        row = so_far[stage, moves.form[at]]
                        if stay >= 0:
                            row[stay, pair] = min(row[stay, pair], cost)
                        row[kept, pair] = min(row[kept, pair], cost + (w + v) * item)
            for kept in range(1, levels):
                least = np.minimum(so_far[i, form, kept], so_far[i, form, kept - 1])
                so_far[i, form, kept] = least


@kernel
def _useful_pairs(limit: float, so_far: _Floats, to_go: _Floats, state: GridState) -> int:
    """Return by how many weights a state can be part of a plan below a limit."""
    i, form, kept = state
    spent, left, count = so_far[i, form, kept], to_go[i, form, kept], 0
    for pair in range(len(spent)):
        count += spent[pair] + left[pair] <= limit
    return count


@kernel
def fill_cost_caps(chain: SlotChain, grid: BoundGrid, bounds: BoundTables, caps: _Floats) -> None:
    """Fill in the most that ``C_A`` may cost so that all around it stays below the limit.

    Args:
        chain: The chain.
        grid: The grid of `bounds`.
        bounds: What must be spent before and after.
        caps: Shape of ``grid.compute_costs``, all minus infinity.
    """
    _raise_outermost(chain, grid, bounds, caps)
    if chain.rooms.is_bound:  # merged labels have more room than what they stand for
        for cap in caps:
            for room in range(1, chain.rooms.slots + 1):
                cap[room] = max(cap[room], cap[room - 1])
    last = len(chain.forward) - 1
    for length in range(last, 0, -1):
        for i in range(last - length + 1):
            _raise_parts(chain, grid, caps, i, i + length - 1)


@kernel
def _raise_outermost(chain: SlotChain, grid: BoundGrid, bounds: BoundTables, caps: _Floats) -> None:
    """Raise the caps of what is recomputed on the way back, not inside something else."""
    moves = _no_moves(chain)
    for i in range(len(chain.forward) - 1):
        for form in range(input_forms(chain, i)):
            for kept in range(round(chain.rooms.slots * grid.finer) + 1):
                state = GridState(i, form, kept)
                useful = _useful_pairs(grid.limit, bounds.so_far, bounds.to_go, state)
                if useful < len(bounds.weights):
                    continue
                item, count = _write_moves(chain, grid, state, moves)
                room = chain.rooms.slots - kept / grid.finer - item
                low = column_of(chain.rooms, max(0.0, room - 1.0 / grid.finer))
                for at in range(count):
                    if moves.form[at] != PLAIN:  # recording recomputes nothing
                        continue
                    detour = Detour(moves.stage[at], moves.forward[at], item, moves.stay[at])
                    cap = _left_for(grid.limit, bounds, state, detour)
                    row = row_of(i, detour.stage - 1)
                    for column in range(low, column_of(chain.rooms, room) + 1):
                        caps[row, column] = max(caps[row, column], cap)


@kernel
def _left_for(limit: float, bounds: BoundTables, state: GridState, detour: Detour) -> float:
    """Return what the limit leaves for the way back over a detour, by all weights."""
    cap, kept = INFINITE, state.kept
    so_far, to_go = bounds.so_far[state.i, state.form, kept], bounds.to_go[detour.stage, PLAIN]
    for pair in range(len(bounds.weights)):
        w, v = bounds.weights[pair, 0], bounds.weights[pair, 1]
        cost = (w + v) * detour.item + to_go[kept, pair]
        if detour.stay >= 0:
            cost = min(cost, to_go[detour.stay, pair])
        left = limit - so_far[pair] - (1.0 - w) * detour.forward - cost
        if left < 0.0:
            return -1.0
        if v < 1.0:
            cap = min(cap, left / (1.0 - v))
    return float(cap)


@kernel
def _raise_parts(chain: SlotChain, grid: BoundGrid, caps: _Floats, i: int, j: int) -> None:
    """Raise the caps of the parts that stages i..j can be made of."""
    cap, slots = caps[row_of(i, j)], chain.rooms.slots
    for option in range(chain.counts[i] if i < j else 0):
        less = rounded(chain.rooms, chain.saved[i, option])
        part = caps[row_of(i + 1, j)]
        own = chain.keep[i, option] + chain.backward[i, option]
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
