"""POFO on slots: a plan, and a bound that no plan of its class is below.

The paper rounds all to slots. Here only the rooms in which stages are recomputed are
(`inner`); the ways to the turn are labels with real amounts, of which those in one cell are
merged (`kernels`). Guides (`guides`) say what is left to pay at least: plans are looked for
a little above what they say of the whole, then further; when one is known, only what may
lead below it matters, to better plans and to the bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.hybrid.exact import passed
from chainstay.dp.hybrid.grids import Effort, Grid, Weights, least_time
from chainstay.dp.hybrid.inner import FINITE, INFINITE, Costs, Fronts, found_in
from chainstay.dp.hybrid.kernels import Labels
from chainstay.dp.jit import is_available
from chainstay.profiles import ChainProfile, Link
from chainstay.schedule import Op, OpKind

__all__ = ["SlotPlan", "bracket", "good_plans"]

_Floats: TypeAlias = NDArray[np.float64]

_ABOVE: Final = 1 + 1e-6
"""Of a known plan's cost, up to where others are looked for: floats may be off by less."""
_ROUNDING: Final = 1e-8
"""In slots and stages: more than what fronts leave out (links may be slow, times so short)."""
_FLOATS: Final = 1 - 1e-12
"""Of a bound: more than floats can be wrong by."""
_SHORT: Final = 60
"""Stages up to which rooms are rounded to quarters of slots; beyond, they hardly help."""
_LEVELS: Final = {False: 800, True: 1600}
"""Steps of `kept` in guides, about: for plans, and for bounds."""
_FIRST_SLOTS: Final = 50
_FIRST_LEVELS: Final = 100
_FIRST_FINER: Final = 8.0
_ROUGH_CELLS: Final = 12
_FIRST_CELLS: Final = 25
_CELLS: Final = 800
_LEAST_CELLS: Final = 1600
_EXPANDED: Final = 20_000
"""Labels that go on in a sweep for a plan, about; half of them with either form of input."""
_MOST_LABELS: Final = 2_000_000
_BOUNDING: Final = 5_000_000
"""Labels made for a bound, times the number of stages."""
_FEWEST: Final = 2_000
"""Labels with which a bound is not tried."""
_OVERFLOW: Final = -2
_MIDDLE: Final[Weights] = (0.5, 0.5)


class SlotPlan(NamedTuple):
    """A persistent schedule's computations and what it offloads."""

    ops: tuple[Op, ...]
    moved: frozenset[tuple[str, int]]


def bracket(
    profile: ChainProfile, budget: int, link: Link, slots: int
) -> tuple[list[SlotPlan], Fraction]:
    """Good plans, the best last (none if all were rounded away), and a bound on all plans.

    Complexity:
        O(n^3 s + p + l n) for s slots, p sums of plans that may matter and at most about
        half a million labels l.
    """
    found = _searched(profile, budget, link, slots)
    grid = _grid(found.costs, found.slots, found.limit, is_bound=True)
    weights = found.weights
    if not found.plans:
        weights = grid.climbed(grid.finer / 4, weights, 1 / 4, 1 / 32)
    least = _FLOATS * _bounded(grid.guided(weights), found.limit) - _ROUNDING * len(profile)
    time_unit = Fraction(budget, found.slots) / Fraction(link.bandwidth)
    bound = max(Fraction(max(0.0, least)) * time_unit, Fraction(profile.least_time))
    return found.plans, bound


def good_plans(profile: ChainProfile, budget: int, link: Link, slots: int) -> list[SlotPlan]:
    """The plans of `bracket`, in about half the time."""
    return _searched(profile, budget, link, slots).plans


class _Found(NamedTuple):
    """Plans, and what the search for a bound begins with.

    Attributes:
        plans: The best last.
        limit: What that costs.
        weights: The best for guides.
        costs: In slots.
        slots: So many.
    """

    plans: list[SlotPlan]
    limit: float
    weights: Weights
    costs: Costs
    slots: int


def _searched(profile: ChainProfile, budget: int, link: Link, slots: int) -> _Found:
    """Plans on coarse slots, then better ones on finer slots."""
    parts = 4 if is_available() and len(profile) <= _SHORT else 1
    plans: list[SlotPlan] = []
    limit, weights = INFINITE, _MIDDLE
    for count in dict.fromkeys((min(_FIRST_SLOTS, slots), slots * parts)):
        first = _first(_in_slots(profile, budget, link, count), count)
        if first is not None:
            plans.append(first.plan)
            limit, weights = first.cost * slots * parts / count, first.weights
            break
    costs = _in_slots(profile, budget, link, slots * parts)
    if plans:
        grid = _grid(costs, slots * parts, limit, is_bound=False)
        weights = grid.climbed(grid.finer / 4, weights, 1 / 16, 1 / 32)
        limit = _improved(grid.guided(weights), limit, plans)
    return _Found(plans, limit, weights, costs, slots * parts)


def _in_slots(profile: ChainProfile, budget: int, link: Link, slots: int) -> Costs:
    """Costs in slots, and in what a slot takes on the link."""
    arrays, slot = profile.arrays(), Fraction(budget, slots)
    time_unit = slot / Fraction(link.bandwidth)

    def sizes(column: NDArray[np.int64]) -> _Floats:
        return np.asarray(column / float(slot), dtype=float)

    def times(column: NDArray[np.int64]) -> _Floats:
        return np.asarray(column / float(time_unit), dtype=float)

    return Costs(
        activation=sizes(arrays.activation),
        saved=sizes(arrays.saved),
        gradient=sizes(arrays.gradient),
        forward_overhead=sizes(arrays.forward_overhead),
        backward_overhead=sizes(arrays.backward_overhead),
        forward=times(arrays.forward_time),
        backward=times(arrays.backward_time),
    )


def _grid(costs: Costs, slots: int, limit: float, *, is_bound: bool) -> Grid:
    finer = float(max(1, _LEVELS[is_bound] // slots))
    return Grid(costs, slots, finer, is_bound, limit * _ABOVE)


class _First(NamedTuple):
    plan: SlotPlan
    cost: float
    weights: Weights


def _first(costs: Costs, slots: int) -> _First | None:
    """A plan, if any is found: little more than the guides say of the whole, then more."""
    least, coarser = least_time(costs), min(1.0, _FIRST_LEVELS / slots)
    grid = Grid(costs, slots, _FIRST_FINER, False, INFINITE)  # noqa: FBT003
    weights = grid.climbed(coarser, _MIDDLE, 1 / 4, 1 / 32)
    root = grid.guided(weights).root
    if root > FINITE:
        return None
    rough = Effort(_ROUGH_CELLS, _MOST_LABELS, _width(costs) // 4)
    whole, _, _ = grid.sweep(grid.pessimistic(), grid.guides(), INFINITE, rough)
    effort = Effort(_FIRST_CELLS, _MOST_LABELS, _width(costs) // 4)
    limits = root + (root - least) / 10 + least / 100, whole + (whole - least) / 20
    for limit in (limit + _ROUNDING for limit in limits if limit < FINITE):
        grid = Grid(costs, slots, _FIRST_FINER, False, limit).guided(weights)  # noqa: FBT003
        cost, last, labels = grid.sweep(grid.fronts, grid.guides(), limit, effort)
        if last >= 0:
            return _First(_plan(grid, labels, last), cost, weights)
    return None


def _width(costs: Costs) -> int:
    """Labels that go on to a plan, by stage and form of input."""
    return max(4, _EXPANDED // len(costs.forward))


def _improved(grid: Grid, limit: float, plans: list[SlotPlan]) -> float:
    """Append a better plan, from small cells, if there is one; what the best one costs."""
    effort = Effort(_CELLS, _MOST_LABELS, _width(grid.costs))
    cost, last, labels = grid.sweep(grid.fronts, grid.guides(), limit, effort)
    if last < 0:
        return limit
    plans.append(_plan(grid, labels, last))
    return cost


def _bounded(grid: Grid, limit: float) -> float:
    """A bound on all plans, at most `limit`: by labels, nearer and nearer to it."""
    least = grid.root
    if limit > FINITE:
        return least
    for relaxed in (True, False):
        guides, left = grid.guides(relaxed=relaxed), _BOUNDING // len(grid.costs.forward)
        share = 1 / 4
        while least * _ABOVE < limit and left > _FEWEST:
            below = least + share * (limit - least)
            effort = Effort(_LEAST_CELLS, left // 2)
            found, last, labels = grid.sweep(grid.fronts, guides, below, effort)
            left -= int(labels.made[0])
            if last == _OVERFLOW:
                share /= 2
                continue
            least = max(least, found)
            if last >= 0:
                break
            share = min(1.0, 2 * share)
        if left <= _FEWEST:  # labels of one number more are no fewer
            break
    return min(least, limit)


def _plan(grid: Grid, labels: Labels, last: int) -> SlotPlan:
    """Computations and moved items, from the last label back to the first."""
    costs, path = grid.costs, [last]
    while (parent := int(labels.parent[path[-1]])) >= 0:
        path.append(parent)
    path.reverse()
    ops: list[Op] = []
    ends: list[tuple[Op, ...]] = []
    moved = set()
    for at, following in pairwise(path):
        i, after = int(labels.stage[at]), int(labels.stage[following])
        if labels.moved[following]:
            moved.add(("b", i - 1) if labels.is_saved[at] else ("a", i))
        if labels.is_saved[following]:
            ops.append(Op(OpKind.FORWARD_KEEP_ALL, i))
            ends.append((Op(OpKind.BACKWARD, i),))
            continue
        ops += passed(i, after - 1)
        item = costs.saved[i - 1] if labels.is_saved[at] else costs.activation[i]
        room, row = float(grid.slots - labels.kept[at] - item), (after - 1) * after // 2 + i
        returning = float(labels.returning[at])
        found = found_in(grid.fronts, row, grid.slots, room, returning, False)  # noqa: FBT003
        ends.append(tuple(_inner(grid.fronts, i, after - 1, int(found))))
    final = len(costs.forward) - 1
    ops += (Op(OpKind.FORWARD_KEEP_ALL, final), Op(OpKind.BACKWARD, final))
    for end in reversed(ends):
        ops += end
    return SlotPlan(tuple(ops), frozenset(moved))


def _inner(fronts: Fronts, i: int, j: int, plan: int) -> Iterator[Op]:
    """Operations of a plan of stages i..j."""
    k, later, sooner = (int(column[plan]) for column in fronts[4:])
    if k < 0:
        yield Op(OpKind.FORWARD_KEEP_ALL, i)
        if i < j:
            yield from _inner(fronts, i + 1, j, sooner)
        yield Op(OpKind.BACKWARD, i)
        return
    yield from passed(i, k)
    yield from _inner(fronts, k + 1, j, sooner)
    yield from _inner(fronts, i, k, later)
