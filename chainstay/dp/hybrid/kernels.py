# ruff: noqa: C901, FBT001, FBT003, PLR0913, PLR0917  # compiled code has no objects to hold what it needs
"""The way to the turn, as labels with real amounts: compiled loops (see `exact` for the names).

Everything is in units of K to the budget, times included: a time is what the link moves in
it. `sweep` is ``OC``, forwards: labels, each a way to get to a stage with real `kept`,
`leaving` and `returning` and what that took. Labels of one cell of a grid are merged:

* for a plan, the most promising one goes on, and all that it counts can be had;
* for a bound (`is_bound`), the least of each number goes on, so that no plan is below it.

A wait of d units turns d more units to move into none more: so ``OC`` and ``C_A`` grow by at
most one per unit of `leaving` or `returning`, and never fall. That is what lets a label go
that another one is as good as.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.hybrid.inner import FINITE, INFINITE, TINY, Costs, Fronts, looked_up
from chainstay.dp.jit import kernel

__all__ = ["Labels", "sweep"]

_Floats = NDArray[np.float64]

_COMPARED = 200
"""How many other labels each label is held against."""


class Labels(NamedTuple):
    """Ways to get to stages, in columns.

    Attributes:
        cost: What it took so far.
        kept: ``A``.
        leaving: ``D_F``.
        returning: ``D_B``.
        total: What it takes at least in all.
        parent: The label before, -1 for the first.
        stage: Where it is.
        is_saved: Whether the stage's input is part of saved data.
        moved: Whether the input of the parent's stage was offloaded.
        following: The next label of the same stage and kind, -1 after the last.
        first: Shape (stages, 2): the first of these, or -1.
        made: Shape (1,): how many there are.
        key: Of a hash table: what cell, 0 for none.
        label: Of a hash table: the label of that cell.
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


class Guides(NamedTuple):
    """What states at least cost from here on.

    Attributes:
        price: Where not negative, what is moved back is paid at this price, and the time
            of the way back counts for the rest only: a bound on what labels cost.
        finer: Steps of `kept` per slot.
        weights: Shape (p, 2): of moving things away and back.
        rest: Shape (stages, 2, finer * K + 1, p).
    """

    price: float
    finer: float
    weights: _Floats
    rest: _Floats


@kernel
def _least_rest(
    guides: Guides, stage: int, is_saved: int, kept: float, leaving: float, returning: float,
    enough: float,
) -> float:  # fmt: skip
    """What a label takes at least from here on, or something of at least `enough`."""
    row = guides.rest[stage, is_saved, int(kept * guides.finer + TINY)]
    least = 0.0
    for pair in range(len(guides.weights)):
        moving = guides.weights[pair, 0] * leaving + guides.weights[pair, 1] * returning
        least = max(least, row[pair] + moving)
        if least >= enough:
            break
    return float(least)


@kernel
def _slot_of(labels: Labels, key: int) -> int:
    """Where a cell is in the hash table, or should be."""
    mask = len(labels.key) - 1
    at = ((key * 0x9E3779B97F4A7C1) >> 20) & mask
    while labels.key[at] != 0 and labels.key[at] != key:
        at = (at + 1) & mask
    return at


@kernel
def _made(labels: Labels, place: int, key: int, stage: int, is_saved: int) -> int:
    """A new label, or -1 if there is no place for it."""
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
def _push(
    labels: Labels,
    guides: Guides,
    size: int,
    cells: float,
    is_bound: bool,
    limit: float,
    parent: int,
    stage: int,
    is_saved: int,
    moved: bool,
    cost: float,
    kept: float,
    leaving: float,
    returning: float,
) -> None:
    """Enter a label at its cell, or merge it with what is there."""
    room = size - kept
    if room < -TINY:
        return
    room = max(0.0, room)
    if leaving > room:  # it waits for that at the latest before the next operation
        cost += leaving - room
        leaving = room
    if returning > room:
        cost += returning - room
        returning = room
    if guides.price >= 0.0:
        cost += guides.price * returning
        returning = 0.0
    if cost >= limit:
        return
    kept = min(kept, float(size))
    total = cost + _least_rest(guides, stage, is_saved, kept, leaving, returning, limit - cost)
    if parent >= 0:
        total = max(total, labels.total[parent])
    if total >= limit:
        return
    key = ((2 * stage + is_saved) * 65536 + int(kept * cells)) * 65536 + int(leaving * cells)
    key = key * 65536 + int(returning * cells) + 1
    place = _slot_of(labels, key)
    if labels.key[place] == 0:
        at = _made(labels, place, key, stage, is_saved)
        if at < 0:
            return
    else:
        at = labels.label[place]
        if not is_bound and total >= labels.total[at]:
            return
        if is_bound:
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
    """The labels of a chain that may lead to less than `limit`, the cheapest first."""
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
    """Of these labels, cheapest first, those that no other one is known to be as good as.

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
    """Whether waiting a little makes of `one` all that `other` is."""
    if labels.kept[one] > labels.kept[other]:
        return False
    excess = max(0.0, labels.leaving[one] - labels.leaving[other])
    excess += max(0.0, labels.returning[one] - labels.returning[other])
    return bool(labels.cost[one] + excess <= labels.cost[other])


@kernel
def sweep(
    of: Costs,
    size: int,
    cells: float,
    is_bound: bool,
    fronts: Fronts,
    guides: Guides,
    limit: float,
    width: int,
    labels: Labels,
) -> tuple[float, int]:
    """The least cost of all labels that get through, at most `limit`, and the last of them.

    Args:
        of: Costs.
        size: K.
        cells: Of the labels' grid, per slot, along every dimension.
        is_bound: What the labels are for.
        fronts: As filled by `fill_column`, rounded likewise.
        guides: Likewise.
        limit: Labels that lead to more are of no interest.
        width: Only so many of every stage and form go on, for a plan, unless it is 0.
        labels: Filled here; the hash table is empty.
    """
    stages = len(of.forward)
    best, last = limit, -1
    _push(labels, guides, size, cells, is_bound, limit, -1, 0, 0, False, 0.0, 0.0, 0.0, 0.0)
    for i in range(stages):
        for is_saved in range(2):
            found = _promising(labels, labels.first[i, is_saved], best)
            found = _undominated(labels, found, is_bound)
            if 0 < width < len(found):
                found = found[np.argsort(labels.total[found])[:width]]
            for at in found:
                total = _advance(of, size, cells, is_bound, fronts, guides, labels, at, best)
                if total < best:
                    best, last = total, at
            if labels.made[0] > len(labels.cost):
                return INFINITE, -2
    return best, last


@kernel
def _advance(
    of: Costs,
    size: int,
    cells: float,
    is_bound: bool,
    fronts: Fronts,
    guides: Guides,
    labels: Labels,
    at: int,
    limit: float,
) -> float:
    """Push all that can follow a label; what it takes in all, where it is at the loss."""
    i, last = int(labels.stage[at]), len(of.forward) - 1
    cost, kept = labels.cost[at], labels.kept[at]
    leaving, returning = labels.leaving[at], labels.returning[at]
    item = of.saved[i - 1] if labels.is_saved[at] else of.activation[i]
    room = size - kept - item
    share = 1.0 if guides.price < 0.0 else 1.0 - guides.price
    recording = of.gradient[last + 1] + of.saved[i] + of.forward_overhead[i]
    backing = of.saved[i] + of.gradient[i] + of.gradient[i + 1] + of.backward_overhead[i]
    if max(recording, backing) <= room + TINY:
        forward = of.forward[i] + max(0.0, recording - room + leaving)
        backward = of.backward[i] + max(0.0, backing - room + returning)
        after = cost + forward + share * backward
        if i == last:
            after += max(0.0, leaving - forward) + max(0.0, returning - backward)
            return float(max(after, labels.total[at]))
        _push(
            labels, guides, size, cells, is_bound, limit, at, i + 1, 1, False, after,
            kept + item, max(0.0, leaving - forward), max(0.0, returning - backward),
        )  # fmt: skip
        if item > 0:
            _push(
                labels, guides, size, cells, is_bound, limit, at, i + 1, 1, True, after,
                kept, max(0.0, leaving + item - forward), max(0.0, returning - backward) + item,
            )  # fmt: skip
    run, wait = 0.0, 0.0
    can_stay = True
    for j in range(i, last):
        passing = of.gradient[last + 1] + of.activation[j + 1] + of.forward_overhead[j]
        if j > i:
            passing += of.activation[j]
        if passing > room + (item if j > i else 0.0) + TINY:
            break
        can_stay = can_stay and passing <= room + TINY
        wait = max(wait, passing - run - room + leaving)
        run += of.forward[j]
        if cost + (1.0 + share) * run + wait >= limit:
            break
        back = looked_up(fronts, j * (j + 1) // 2 + i, size, room, returning, is_bound)
        if back > FINITE:
            continue
        after = cost + run + wait + share * back
        left = max(0.0, returning - back)
        if can_stay:
            _push(
                labels, guides, size, cells, is_bound, limit, at, j + 1, 0, False, after,
                kept + item, max(0.0, leaving - run - wait), left,
            )  # fmt: skip
        if item > 0:
            _push(
                labels, guides, size, cells, is_bound, limit, at, j + 1, 0, True, after,
                kept, max(0.0, leaving + item - run - wait), left + item,
            )  # fmt: skip
    return INFINITE
