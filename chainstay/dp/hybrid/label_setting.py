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

from chainstay.dp.hybrid.labels import Labels, allocate, slot_of
from chainstay.dp.hybrid.recompute_fronts import RecomputeFronts, recompute_cost
from chainstay.dp.hybrid.slot_chain import (
    FINITE,
    INFINITE,
    TINY,
    Rooms,
    SlotChain,
    input_forms,
    input_size,
    passing,
    row_of,
)
from chainstay.dp.jit import kernel

_Floats = NDArray[np.float64]

_COMPARED = 200
"""How many other labels each label is compared with."""


class CompletionBounds(NamedTuple):
    """Lower bounds on what labels cost from here on.

    Attributes:
        multiplier: Cost per slot moved back; where it is not negative, the time of the way back
            counts for the rest only, and costs are lower bounds.
        finer: Steps of `kept` per slot.
        weights: Shape (pairs, 2): weights of moving things away and back.
        to_go: Shape (stages, forms, finer * K + 1, pairs), as filled by `fill_costs_to_go`.
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
        width: The most labels of every stage and form that go on, for a plan, unless it is 0.
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
    form: int
    moved: bool
    cost: float
    kept: float
    leaving: float
    returning: float


@kernel
def _least_to_go(bounds: CompletionBounds, label: NewLabel, enough: float) -> float:
    """Return what a label takes at least from here on, or something of at least `enough`."""
    row = bounds.to_go[label.stage, label.form, int(label.kept * bounds.finer + TINY)]
    least = 0.0
    for pair in range(len(bounds.weights)):
        moving = bounds.weights[pair, 0] * label.leaving + bounds.weights[pair, 1] * label.returning
        least = max(least, row[pair] + moving)
        if least >= enough:
            break
    return float(least)


@kernel
def _add_label(  # noqa: C901  # one decision: enter, merge or reject
    bounds: CompletionBounds, labels: Labels, expansion: Expansion, new: NewLabel
) -> None:
    """Enter a label at its cell, or merge it with the label that is there."""
    stage, form, moved, cost, kept, leaving, returning = new
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
    entered = NewLabel(stage, form, moved, cost, kept, leaving, returning)
    total = cost + _least_to_go(bounds, entered, limit - cost)
    if parent >= 0:
        total = max(total, labels.total[parent])
    if total >= limit:
        return
    cell = labels.first.shape[1] * stage + form
    key = (cell * 65536 + int(kept * cells)) * 65536 + int(leaving * cells)
    key = key * 65536 + int(returning * cells) + 1
    place = slot_of(labels, key)
    if labels.key[place] == 0:
        at = allocate(labels, place, key, stage, form)
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
        for form in range(input_forms(chain, i)):
            found = _promising(labels, labels.first[i, form], best)
            found = _undominated(labels, found, chain.rooms.is_bound)
            if 0 < width < len(found):
                found = found[np.argsort(labels.total[found])[:width]]
            for at in found:
                expansion = Expansion(at, chain.rooms, cells, best)
                total, _ = extend(chain, fronts, bounds, labels, expansion)
                if total < best:
                    best, last = total, at
            if labels.made[0] > len(labels.cost):
                return INFINITE, -2
    return best, last


class LabelMove(NamedTuple):
    """A way from a label to the next stages, and what belongs to it on the way back.

    Attributes:
        stage: The stage that is got to.
        form: The form of its input.
        item: Slots of the input at hand.
        can_stay: Whether that input can stay.
        forward: Time on the way to the turn.
        backward: Time on the way back.
    """

    stage: int
    form: int
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
        stays = NewLabel(move.stage, move.form, False, cost, kept + item, gone, left)
        _add_label(bounds, labels, expansion, stays)
    if item > 0:
        gone = max(0.0, leaving + item - move.forward)
        moves = NewLabel(move.stage, move.form, True, cost, kept, gone, left + item)
        _add_label(bounds, labels, expansion, moves)


@kernel
def extend(
    chain: SlotChain,
    fronts: RecomputeFronts,
    bounds: CompletionBounds,
    labels: Labels,
    expansion: Expansion,
) -> tuple[float, int]:
    """Add all labels that can follow a label; at the loss, return what it takes in all, and how.

    Returns:
        The time in all, infinite before the loss, and the option under which the loss is kept.
    """
    at, limit = expansion.parent, expansion.limit
    i, last = int(labels.stage[at]), len(chain.forward) - 1
    cost, leaving, returning = labels.cost[at], labels.leaving[at], labels.returning[at]
    item = input_size(chain, i, labels.form[at])
    room = chain.rooms.slots - labels.kept[at] - item
    share = 1.0 if bounds.multiplier < 0.0 else 1.0 - bounds.multiplier
    best, chosen, held = INFINITE, -1, chain.gradient[last + 1]
    for option in range(chain.counts[i]):
        forward_need = held + chain.forward_need[i, option]
        backward_need = chain.backward_need[i, option]
        if max(forward_need, backward_need) > room + TINY:
            continue
        forward = chain.keep[i, option] + max(0.0, forward_need - room + leaving)
        backward = chain.backward[i, option] + max(0.0, backward_need - room + returning)
        after = cost + forward + share * backward
        if i < last:
            move = LabelMove(i + 1, option + 1, item, True, forward, backward)
            _add_labels(bounds, labels, expansion, after, move)
            continue
        after += max(0.0, leaving - forward) + max(0.0, returning - backward)
        after = max(after, labels.total[at])
        if after < best:
            best, chosen = after, option
    run, again, wait = 0.0, 0.0, 0.0
    can_stay = True
    for j in range(i, last):
        need = passing(chain, j, i, last)
        if need > room + (item if j > i else 0.0) + TINY:
            break
        can_stay = can_stay and need <= room + TINY
        wait = max(wait, need - run - room + leaving)
        run += chain.forward[j]
        again += chain.least[j]
        if cost + run + share * again + wait >= limit:
            break
        back = recompute_cost(fronts, expansion.rooms, row_of(i, j), room, returning)
        if back > FINITE:
            continue
        move = LabelMove(j + 1, 0, item, can_stay, run + wait, back)
        _add_labels(bounds, labels, expansion, cost + run + wait + share * back, move)
    return best, chosen
