# ruff: noqa: FBT001, FBT003  # compiled code takes arguments by position only
"""The way to the turn, by label setting with real amounts: compiled loops.

Everything is in units of K to the budget, times included: a time is what the link moves in
it (`exact` has the names of the amounts). `search` is ``OC``, forwards: labels, each a way to get
to a stage with real `kept`, `leaving` and `returning` and what that took. Labels of one cell of a
grid are merged:

* for a plan, the most promising one goes on, and all that it counts can be had;
* for a bound (`Rooms.is_bound`), the least of each number goes on, so that no plan is below it.

A wait of d units turns d more units to move into none more: so ``OC`` and ``C_A`` grow by at
most one per unit of `leaving` or `returning`, and never fall. That is why a label is dropped
(dominated) when another one is as good.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.hybrid.recompute_fronts import RecomputeFronts, recompute_cost
from chainstay.dp.hybrid.slot_chain import (
    FINITE,
    INFINITE,
    TINY,
    Rooms,
    SlotChain,
    backing,
    passing,
    recording,
    row_of,
)
from chainstay.dp.jit import kernel

__all__ = ["CompletionBounds", "Labels", "SearchLimits", "search"]

_Floats = NDArray[np.float64]

_COMPARED = 200
"""How many other labels each label is compared with."""


class Labels(NamedTuple):
    """Ways to get to stages, in columns.

    Attributes:
        cost: Time that it took so far.
        kept: ``A``, slots that stay on the device until after the turn.
        leaving: ``D_F``, slots that have to leave.
        returning: ``D_B``, slots that have to come back.
        total: Time that it takes at least in all.
        parent: The label before, -1 for the first.
        stage: The stage that it has got to.
        is_saved: Whether the stage's input is part of saved data.
        moved: Whether the input of the parent's stage was offloaded.
        following: The next label of the same stage and kind, -1 after the last.
        first: Shape (stages, 2): the first label of a stage and kind, or -1.
        made: Shape (1,): how many labels there are.
        key: The hash table's cells, 0 for none.
        label: The hash table's labels of these cells.
    """

    cost: _Floats
    kept: _Floats
    leaving: _Floats
    returning: _Floats
    total: _Floats
    parent: NDArray[np.int32]
    stage: NDArray[np.int16]
    is_saved: NDArray[np.bool_]
    moved: NDArray[np.bool_]
    following: NDArray[np.int32]
    first: NDArray[np.int32]
    made: NDArray[np.int64]
    key: NDArray[np.int64]
    label: NDArray[np.int32]


class CompletionBounds(NamedTuple):
    """Lower bounds on what labels cost from here on.

    Attributes:
        multiplier: Cost per slot moved back; where it is not negative, the time of the way back
            counts for the rest only, and costs are lower bounds.
        finer: Steps of `kept` per slot.
        weights: Shape (pairs, 2): weights of moving things away and back.
        to_go: Shape (stages, 2, finer * K + 1, pairs), as filled by `fill_costs_to_go`.
    """

    multiplier: float
    finer: float
    weights: _Floats
    to_go: _Floats


class SearchLimits(NamedTuple):
    """The limits of a search.

    Attributes:
        cells: Cells of the labels' grid per slot, along every dimension.
        limit: Labels that lead to more time are of no use.
        width: The most labels of every stage and kind that go on, for a plan, unless it is 0.
    """

    cells: float
    limit: float
    width: int


class Expansion(NamedTuple):
    """A label that is extended.

    Attributes:
        parent: The label, -1 for none.
        rooms: The budget in slots, and what labels are for.
        cells: Cells of the labels' grid per slot, along every dimension.
        limit: Labels that lead to more time are of no use.
    """

    parent: int
    rooms: Rooms
    cells: float
    limit: float


class NewLabel(NamedTuple):
    """A label to enter; the fields are the columns of `Labels`."""

    stage: int
    is_saved: int
    moved: bool
    cost: float
    kept: float
    leaving: float
    returning: float


@kernel
def _least_to_go(bounds: CompletionBounds, label: NewLabel, enough: float) -> float:
    """Return what a label takes at least from here on, or something of at least `enough`."""
    row = bounds.to_go[label.stage, label.is_saved, int(label.kept * bounds.finer + TINY)]
    least = 0.0
    for pair in range(len(bounds.weights)):
        moving = bounds.weights[pair, 0] * label.leaving + bounds.weights[pair, 1] * label.returning
        least = max(least, row[pair] + moving)
        if least >= enough:
            break
    return float(least)


@kernel
def _slot_of(labels: Labels, key: int) -> int:
    """Return where a cell is in the hash table, or should be."""
    mask = len(labels.key) - 1
    at = ((key * 0x9E3779B97F4A7C1) >> 20) & mask
    while labels.key[at] != 0 and labels.key[at] != key:
        at = (at + 1) & mask
    return at


@kernel
def _allocate(labels: Labels, place: int, key: int, stage: int, is_saved: int) -> int:
    """Return the number of a new label, or -1 if there is no room for it."""
    at = labels.made[0]
    if at >= len(labels.cost):
        labels.made[0] = len(labels.cost) + 1
        return -1
    labels.made[0] = at + 1
    labels.key[place], labels.label[place] = key, at
    labels.stage[at], labels.is_saved[at] = stage, is_saved == 1
    labels.following[at] = labels.first[stage, is_saved]
    labels.first[stage, is_saved] = at
    return int(at)


@kernel
def _add_label(  # noqa: C901  # one decision: enter, merge or reject
    bounds: CompletionBounds, labels: Labels, expansion: Expansion, new: NewLabel
) -> None:
    """Enter a label at its cell, or merge it with the label that is there."""
    stage, is_saved, moved, cost, kept, leaving, returning = new
    parent, rooms, cells, limit = expansion
    room = rooms.slots - kept
    if room < -TINY:
        return
    room = max(0.0, room)
    if leaving > room:  # it waits for that at the latest before the next operation
        cost += leaving - room
        leaving = room
    if returning > room:
        cost += returning - room
        returning = room
    if bounds.multiplier >= 0.0:
        cost += bounds.multiplier * returning
        returning = 0.0
    if cost >= limit:
        return
    kept = min(kept, float(rooms.slots))
    entered = NewLabel(stage, is_saved, moved, cost, kept, leaving, returning)
    total = cost + _least_to_go(bounds, entered, limit - cost)
    if parent >= 0:
        total = max(total, labels.total[parent])
    if total >= limit:
        return
    key = ((2 * stage + is_saved) * 65536 + int(kept * cells)) * 65536 + int(leaving * cells)
    key = key * 65536 + int(returning * cells) + 1
    place = _slot_of(labels, key)
    if labels.key[place] == 0:
        at = _allocate(labels, place, key, stage, is_saved)
        if at < 0:
            return
    else:
        at = labels.label[place]
        if not rooms.is_bound and total >= labels.total[at]:
            return
        if rooms.is_bound:
            kept = min(kept, labels.kept[at])
            leaving = min(leaving, labels.leaving[at])
            returning = min(returning, labels.returning[at])
            cost = min(cost, labels.cost[at])
            total = min(total, labels.total[at])
    labels.cost[at], labels.kept[at] = cost, kept
    labels.leaving[at], labels.returning[at] = leaving, returning
    labels.total[at], labels.parent[at], labels.moved[at] = total, parent, moved


@kernel
def _promising(labels: Labels, first: int, limit: float) -> NDArray[np.int64]:
    """Return the labels of a chain that may lead to less than `limit`, the cheapest first."""
    count, at = 0, first
    while at >= 0:
        count += labels.total[at] < limit
        at = labels.following[at]
    found, costs = np.empty(count, dtype=np.int64), np.empty(count)
    count, at = 0, first
    while at >= 0:
        if labels.total[at] < limit:
            found[count], costs[count] = at, labels.cost[at]
            count += 1
        at = labels.following[at]
    return found[np.argsort(costs)]


@kernel
def _undominated(labels: Labels, found: NDArray[np.int64], is_bound: bool) -> NDArray[np.int64]:
    """Return those of these labels, cheapest first, that no other one is known to dominate.

    A merged label can be as good as one whose plans take less than those merged in it: what
    it takes at least in all goes down to that of the label that goes.
    """
    kept = 0
    for at in found:
        is_new = True
        for place in range(max(0, kept - _COMPARED), kept):
            if _is_as_good(labels, found[place], at):
                if is_bound:
                    least = min(labels.total[found[place]], labels.total[at])
                    labels.total[found[place]] = least
                is_new = False
                break
        if is_new:
            found[kept] = at
            kept += 1
    return found[:kept]


@kernel
def _is_as_good(labels: Labels, one: int, other: int) -> bool:
    """Return whether waiting a little makes of `one` all that `other` is."""
    if labels.kept[one] > labels.kept[other]:
        return False
    excess = max(0.0, labels.leaving[one] - labels.leaving[other])
    excess += max(0.0, labels.returning[one] - labels.returning[other])
    return bool(labels.cost[one] + excess <= labels.cost[other])


@kernel
def search(
    chain: SlotChain,
    fronts: RecomputeFronts,
    bounds: CompletionBounds,
    limits: SearchLimits,
    labels: Labels,
) -> tuple[float, int]:
    """Return the least cost of all labels that get through, and the last of them.

    Args:
        chain: The chain.
        fronts: As filled by `fill_column`, for the same chain.
        bounds: Lower bounds, for the same chain.
        limits: What the search may take; the cost is at most ``limits.limit``.
        labels: Filled here; the hash table is empty.
    """
    cells, best, width = limits
    last = -1
    origin = NewLabel(0, 0, False, 0.0, 0.0, 0.0, 0.0)
    _add_label(bounds, labels, Expansion(-1, chain.rooms, cells, best), origin)
    for i in range(len(chain.forward)):
        for is_saved in range(2):
            found = _promising(labels, labels.first[i, is_saved], best)
            found = _undominated(labels, found, chain.rooms.is_bound)
            if 0 < width < len(found):
                found = found[np.argsort(labels.total[found])[:width]]
            for at in found:
                expansion = Expansion(at, chain.rooms, cells, best)
                total = _extend(chain, fronts, bounds, labels, expansion)
                if total < best:
                    best, last = total, at
            if labels.made[0] > len(labels.cost):
                return INFINITE, -2
    return best, last


class LabelMove(NamedTuple):
    """A way from a label to the next stages, and what belongs to it on the way back.

    Attributes:
        stage: The stage that is got to.
        is_saved: 1 if its input is part of saved data, else 0.
        item: Slots of the input at hand.
        can_stay: Whether that input can stay.
        forward: Time on the way to the turn.
        backward: Time on the way back.
    """

    stage: int
    is_saved: int
    item: float
    can_stay: bool
    forward: float
    backward: float


@kernel
def _add_labels(
    bounds: CompletionBounds, labels: Labels, expansion: Expansion, cost: float, move: LabelMove
) -> None:
    """Enter what a move leads to, at this cost: the input at hand stays, or leaves."""
    at, item = expansion.parent, move.item
    kept, leaving, returning = labels.kept[at], labels.leaving[at], labels.returning[at]
    left = max(0.0, returning - move.backward)
    if move.can_stay:
        gone = max(0.0, leaving - move.forward)
        stays = NewLabel(move.stage, move.is_saved, False, cost, kept + item, gone, left)
        _add_label(bounds, labels, expansion, stays)
    if item > 0:
        gone = max(0.0, leaving + item - move.forward)
        moves = NewLabel(move.stage, move.is_saved, True, cost, kept, gone, left + item)
        _add_label(bounds, labels, expansion, moves)


@kernel
def _extend(
    chain: SlotChain,
    fronts: RecomputeFronts,
    bounds: CompletionBounds,
    labels: Labels,
    expansion: Expansion,
) -> float:
    """Add all labels that can follow a label; return what it takes in all if it is at the loss."""
    at, limit = expansion.parent, expansion.limit
    i, last = int(labels.stage[at]), len(chain.forward) - 1
    cost, leaving, returning = labels.cost[at], labels.leaving[at], labels.returning[at]
    item = chain.saved[i - 1] if labels.is_saved[at] else chain.activation[i]
    room = chain.rooms.slots - labels.kept[at] - item
    share = 1.0 if bounds.multiplier < 0.0 else 1.0 - bounds.multiplier
    forward_need, backward_need = recording(chain, i, last), backing(chain, i)
    if max(forward_need, backward_need) <= room + TINY:
        forward = chain.forward[i] + max(0.0, forward_need - room + leaving)
        backward = chain.backward[i] + max(0.0, backward_need - room + returning)
        after = cost + forward + share * backward
        if i == last:
            after += max(0.0, leaving - forward) + max(0.0, returning - backward)
            return float(max(after, labels.total[at]))
        move = LabelMove(i + 1, 1, item, True, forward, backward)
        _add_labels(bounds, labels, expansion, after, move)
    run, wait = 0.0, 0.0
    can_stay = True
    for j in range(i, last):
        need = passing(chain, j, i, last)
        if need > room + (item if j > i else 0.0) + TINY:
            break
        can_stay = can_stay and need <= room + TINY
        wait = max(wait, need - run - room + leaving)
        run += chain.forward[j]
        if cost + (1.0 + share) * run + wait >= limit:
            break
        back = recompute_cost(fronts, expansion.rooms, row_of(i, j), room, returning)
        if back > FINITE:
            continue
        move = LabelMove(j + 1, 0, item, can_stay, run + wait, back)
        _add_labels(bounds, labels, expansion, cost + run + wait + share * back, move)
    return INFINITE
