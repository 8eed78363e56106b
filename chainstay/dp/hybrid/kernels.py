# ruff: noqa: FBT001, FBT003, PLR0913, PLR0917  # compiled code has no objects to hold what it needs
"""POFO's recurrences in real numbers on a grid: compiled loops (see `exact` for the names).

Everything is in units of K to the budget, times included: a time is what the link moves in
it. `inner_table` is ``C_A`` at grid points, by the recurrences; between grid points it is
rounded one way or the other. `sweep` is ``OC``, forwards: labels, each a way to get to a
stage with real `kept`, `leaving` and `returning` and what that took. Labels of one cell of
a coarser grid are merged:

* for a plan, the one that took least goes on, and all that it counts can be had;
* for a bound (`is_bound`), the least of each number goes on, so that no plan is below it.

A wait of d units turns d more units to move into none more: so ``OC`` and ``C_A`` grow by at
most one per unit of `leaving` or `returning`, and never fall. That is what rounding between
grid points rests on, and what lets a label go that another one is as good as.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.hybrid.inner import INFINITE, TINY, Costs, looked_up
from chainstay.dp.jit import kernel

__all__ = ["Labels", "sweep"]

_Floats = NDArray[np.float64]

_COMPARED = 2000
"""How many other labels each label is held against."""


class Labels(NamedTuple):
    """Ways to get to stages, in columns.

    Attributes:
        cost: What it took so far.
        kept: ``A``.
        leaving: ``D_F``.
        returning: ``D_B``.
        parent: The label before, -1 for the first.
        stage: Where it is.
        is_saved: Whether the stage's input is part of saved data.
        moved: Whether the input of the parent's stage was offloaded.
        alive: Whether it may be part of what is looked for.
        following: The next label of the same stage and kind, -1 after the last.
        first: Shape (stages, 2): one more than the first of these.
        made: Shape (1,): how many there are.
    """

    cost: _Floats
    kept: _Floats
    leaving: _Floats
    returning: _Floats
    parent: NDArray[np.int32]
    stage: NDArray[np.int16]
    is_saved: NDArray[np.bool_]
    moved: NDArray[np.bool_]
    alive: NDArray[np.bool_]
    following: NDArray[np.int32]
    first: NDArray[np.int32]
    made: NDArray[np.int64]


@kernel
def _least_rest(
    labels: Labels, at: int, size: int, weights: _Floats, guides: _Floats, enough: float
) -> float:
    """What a label takes at least from here on, or something of at least `enough`."""
    row = guides[labels.stage[at], int(labels.is_saved[at]), min(size, int(labels.kept[at] + TINY))]
    leaving, returning = labels.leaving[at], labels.returning[at]
    least = 0.0
    for pair in range(len(weights)):
        least = max(least, row[pair] + weights[pair, 0] * leaving + weights[pair, 1] * returning)
        if least >= enough:
            break
    return least


@kernel
def _cell(cells: int, ratio: float, kept: float, leaving: float, returning: float) -> int:
    """Number of the cell of a state: by `kept`, then squares of the other two."""
    a = min(cells, int(kept / ratio))
    width = cells - a + 1
    f = min(width - 1, int(leaving / ratio))
    b = min(width - 1, int(returning / ratio))
    # sum of (cells + 1 - q)^2 for q < a
    top = cells + 1
    before = top * (top + 1) * (2 * top + 1) // 6 - width * (width + 1) * (2 * width + 1) // 6
    return before + f * width + b


@kernel
def _push(
    labels: Labels,
    index: NDArray[np.int32],
    size: int,
    cells: int,
    is_bound: bool,
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
    if leaving > room:  # it waits for that at the latest before the next operation
        cost += leaving - room
        leaving = room
    if returning > room:
        cost += returning - room
        returning = room
    cell = _cell(cells, size / cells, kept, leaving, returning)
    at = index[stage, is_saved, cell] - 1
    if at < 0:
        at = labels.made[0]
        if at >= len(labels.cost):
            labels.made[0] = len(labels.cost) + 1
            return
        labels.made[0] = at + 1
        index[stage, is_saved, cell] = at + 1
        labels.stage[at], labels.is_saved[at], labels.alive[at] = stage, is_saved == 1, True
        labels.following[at] = labels.first[stage, is_saved] - 1
        labels.first[stage, is_saved] = at + 1
    elif is_bound:
        kept = min(kept, labels.kept[at])
        leaving = min(leaving, labels.leaving[at])
        returning = min(returning, labels.returning[at])
        cost = min(cost, labels.cost[at])
    elif cost >= labels.cost[at]:
        return
    labels.cost[at], labels.kept[at] = cost, kept
    labels.leaving[at], labels.returning[at] = leaving, returning
    labels.parent[at], labels.moved[at] = parent, moved


@kernel
def _promising(
    labels: Labels, first: int, size: int, weights: _Floats, guides: _Floats, limit: float
) -> NDArray[np.int64]:
    """The labels of a chain that may lead to less than `limit`, the cheapest first."""
    count, at = 0, first
    while at >= 0:
        cost = labels.cost[at]
        if cost + _least_rest(labels, at, size, weights, guides, limit - cost) < limit:
            count += 1
        else:
            labels.alive[at] = False
        at = labels.following[at]
    found, costs = np.empty(count, dtype=np.int64), np.empty(count)
    count, at = 0, first
    while at >= 0:
        if labels.alive[at]:
            found[count], costs[count] = at, labels.cost[at]
            count += 1
        at = labels.following[at]
    return found[np.argsort(costs)]


@kernel
def _undominated(labels: Labels, found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of these labels, cheapest first, those that no other one is known to be as good as."""
    kept = 0
    for at in found:
        is_new = True
        for place in range(max(0, kept - _COMPARED), kept):
            if _is_as_good(labels, found[place], at):
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
    cells: int,
    is_bound: bool,
    table: NDArray[np.float32],
    weights: _Floats,
    guides: _Floats,
    limit: float,
    labels: Labels,
    index: NDArray[np.int32],
) -> tuple[float, int]:
    """The least cost of all labels that get through, at most `limit`, and the last of them.

    Args:
        of: Costs.
        size: K.
        cells: Of the coarser grid, along every dimension.
        is_bound: What the labels are for.
        table: As filled by `inner_table`, rounded likewise.
        weights: As `guides` were filled with.
        guides: As filled by `guide`.
        limit: Labels that lead to more are of no interest.
        labels: Filled here.
        index: Shape (stages, 2, cells), zeros; one more than the label of every cell.
    """
    stages = len(of.forward)
    best, last = limit, -1
    _push(labels, index, size, cells, is_bound, -1, 0, 0, False, 0.0, 0.0, 0.0, 0.0)
    for i in range(stages):
        for is_saved in range(2):
            first = int(labels.first[i, is_saved]) - 1
            found = _promising(labels, first, size, weights, guides, best)
            for at in _undominated(labels, found):
                total = _advance(of, size, cells, is_bound, table, labels, index, at, best)
                if total < best:
                    best, last = total, at
            if labels.made[0] > len(labels.cost):
                return INFINITE, -2
    return best, last


@kernel
def _advance(
    of: Costs,
    size: int,
    cells: int,
    is_bound: bool,
    table: NDArray[np.float32],
    labels: Labels,
    index: NDArray[np.int32],
    at: int,
    limit: float,
) -> float:
    """Push all that can follow a label; what it takes in all, where it is at the loss."""
    i, last = int(labels.stage[at]), len(of.forward) - 1
    cost, kept = labels.cost[at], labels.kept[at]
    leaving, returning = labels.leaving[at], labels.returning[at]
    item = of.saved[i - 1] if labels.is_saved[at] else of.activation[i]
    room = size - kept - item + TINY
    recording = of.gradient[last + 1] + of.saved[i] + of.forward_overhead[i]
    backing = of.saved[i] + of.gradient[i] + of.gradient[i + 1] + of.backward_overhead[i]
    if recording <= room and backing <= room:
        forward = of.forward[i] + max(0.0, recording - room + leaving)
        backward = of.backward[i] + max(0.0, backing - room + returning)
        after = cost + forward + backward
        if i == last:
            return float(after + max(0.0, leaving - forward) + max(0.0, returning - backward))
        _push(
            labels, index, size, cells, is_bound, at, i + 1, 1, False, after,
            kept + item, max(0.0, leaving - forward), max(0.0, returning - backward),
        )  # fmt: skip
        if item > 0:
            _push(
                labels, index, size, cells, is_bound, at, i + 1, 1, True, after,
                kept, max(0.0, leaving + item - forward), max(0.0, returning - backward) + item,
            )  # fmt: skip
    run, wait = 0.0, 0.0
    can_stay = True
    for j in range(i, last):
        passing = of.gradient[last + 1] + of.activation[j + 1] + of.forward_overhead[j]
        if j > i:
            passing += of.activation[j]
        if passing > room + (item if j > i else 0.0):
            break
        can_stay = can_stay and passing <= room
        wait = max(wait, passing - run - room + leaving)
        run += of.forward[j]
        back = looked_up(table, j * (j + 1) // 2 + i, size, kept + item, returning, is_bound)
        after = cost + run + wait + back
        if after >= limit:
            continue
        left = max(0.0, returning - back)
        if can_stay:
            _push(
                labels, index, size, cells, is_bound, at, j + 1, 0, False, after,
                kept + item, max(0.0, leaving - run - wait), left,
            )  # fmt: skip
        if item > 0:
            _push(
                labels, index, size, cells, is_bound, at, j + 1, 0, True, after,
                kept, max(0.0, leaving + item - run - wait), left + item,
            )  # fmt: skip
    return INFINITE
