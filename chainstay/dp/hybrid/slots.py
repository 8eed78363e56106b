"""POFO on slots: plans, and a bound that no plan of its class is below.

The paper rounds all to slots. Here only the rooms in which stages are recomputed are
(`recompute_fronts`); the ways to the turn are labels with real amounts, of which those in one cell
are merged (`label_setting`). Completion bounds (`completion_bounds`) say what is left to pay at
least: plans are looked for a little above what they say of the whole, then further; when one is
known, only what may lead below it is of use, to better plans and to the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.hybrid.completion_bounds import Weights
from chainstay.dp.hybrid.discretisation import EQUAL, DiscretisedChain, Effort, least_time
from chainstay.dp.hybrid.label_setting import Expansion, extend
from chainstay.dp.hybrid.labels import Labels
from chainstay.dp.hybrid.recompute_fronts import RecomputeFronts, best_plan
from chainstay.dp.hybrid.slot_chain import (
    FINITE,
    INFINITE,
    PLAIN,
    Rooms,
    SlotChain,
    input_size,
    row_of,
)
from chainstay.dp.jit import is_available
from chainstay.dp.table import require_table
from chainstay.profiles import ChainProfile, Link
from chainstay.profiles.stage import StageOption, undominated
from chainstay.schedule import Item, Op, OpKind, forwards_dropping_inputs

_Floats: TypeAlias = NDArray[np.float64]

_ABOVE: Final = 1 + 1e-6
"""Search margin above the cost of the best plan known; it covers the rounding of floats."""
_ROUNDING: Final = 1e-8
"""In slots and stages: more than what fronts leave out (links may be slow, times so short)."""
_FLOATS: Final = 1 - 1e-12
"""Factor of a bound: more than floats can be wrong by."""
_SHORT: Final = 60
"""Stages up to which rooms are rounded to quarters of slots; beyond, they hardly help."""
_BOUNDS: Final = 10
"""Completion bounds by form of an input: for five pairs of weights, of both ways."""
_LEVELS: Final = {False: 800, True: 1600}
"""Steps of `kept` in completion bounds, about: for plans, and for bounds."""
_FIRST_SLOTS: Final = 50
_FIRST_LEVELS: Final = 100
_FIRST_FINER: Final = 8.0
_ROUGH_CELLS: Final = 12
_FIRST_CELLS: Final = 25
_NEAR_TOLERANCE: Final = 1 / 400
_FAR_TOLERANCE: Final = 1 / 30
"""Tolerances of fronts for a first plan, as shares of the limit less the least time: with a limit
near the bound on the whole, and far from it."""
_TOLERANCES: Final = (1 / 100, 1 / 400)
"""The same, round by round, where better plans are looked for."""
_CELLS: Final = (100, 800)
_LEAST_CELLS: Final = 1600
_EXPANDED: Final = 20_000
"""Labels that go on in a search for a plan, about; half of them with either form of input."""
_MOST_LABELS: Final = 2_000_000
_BOUNDING: Final = 5_000_000
"""Labels made for a bound, times the number of stages."""
_FEWEST: Final = 2_000
"""With fewer labels a bound is not tried."""
_OVERFLOW: Final = -2
_MIDDLE: Final = Weights(0.5, 0.5)


class SlotPlan(NamedTuple):
    """A persistent schedule's computations and what it offloads.

    Attributes:
        ops: Forwards and backwards.
        moved: Items that are offloaded.
    """

    ops: tuple[Op, ...]
    moved: frozenset[Item]


def bracket(
    profile: ChainProfile, budget: int, link: Link, slots: int
) -> tuple[list[SlotPlan], Fraction]:
    """Return good plans, the best last, and a lower bound on the time of all plans.

    Args:
        profile: A chain without skips, with options of single stages only.
        budget: Bytes.
        link: A half-duplex link without latency.
        slots: How many slots of memory the budget is divided into.

    Returns:
        There are no plans if all were rounded away.

    Raises:
        InvalidProfileError: The tables would not fit in memory.

    Complexity:
        O(n^3 s + p + l n) for s slots, p sums of plans that may be of use and at most about
        half a million labels l.
    """
    found = _searched(profile, budget, link, slots)
    grid = _discretised(
        found.chain._replace(rooms=found.chain.rooms._replace(is_bound=True)), found.limit
    )
    weights = found.weights
    if not found.plans:
        weights = grid.best_weights(grid.finer / 4, weights, 1 / 4, 1 / 32)
    bound = _FLOATS * _lower_bound(grid.with_bounds(weights), found.limit)
    time_unit = Fraction(budget, found.chain.rooms.slots) / Fraction(link.bandwidth)
    least = Fraction(max(0.0, bound - _ROUNDING * len(profile))) * time_unit
    return found.plans, max(least, Fraction(profile.least_time))


def good_plans(profile: ChainProfile, budget: int, link: Link, slots: int) -> list[SlotPlan]:
    """Return the plans of `bracket`, in about half the time."""
    return _searched(profile, budget, link, slots).plans


class _PlansFound(NamedTuple):
    """Plans, and what the search for a bound starts from.

    Attributes:
        plans: The best last.
        limit: The cost of the best plan, in slots.
        weights: The best weights for completion bounds.
        chain: The chain in slots.
    """

    plans: list[SlotPlan]
    limit: float
    weights: Weights
    chain: SlotChain


def _searched(profile: ChainProfile, budget: int, link: Link, slots: int) -> _PlansFound:
    """Return plans on coarse slots, then better ones on finer slots."""
    stages = len(profile)
    parts = 4 if is_available() and stages <= _SHORT else 1
    forms = sum(1 + len(stage.all_options) for stage in profile.stages)
    rows = stages * (stages + 1) // 2 + forms * _BOUNDS
    require_table(rows * parts * (slots + 1), f"a chain of {stages} stages", slots)
    plans: list[SlotPlan] = []
    limit, weights = INFINITE, _MIDDLE
    for count in dict.fromkeys((min(_FIRST_SLOTS, slots), slots * parts)):
        first = _first_plan(_in_slots(profile, budget, link, count))
        if first is not None:
            plans.append(first.plan)
            limit, weights = first.cost * slots * parts / count, first.weights
            break
    chain = _in_slots(profile, budget, link, slots * parts)
    for share in _TOLERANCES if plans else ():
        grid = _discretised(chain, limit, share * (limit - least_time(chain)))
        weights = grid.best_weights(grid.finer / 4, weights, 1 / 16, 1 / 32)
        limit = _improve(grid.with_bounds(weights), limit, plans)
    plans[1:-1] = []
    numbers = _option_numbers(profile)
    return _PlansFound([_renumbered(plan, numbers) for plan in plans], limit, weights, chain)


def _option_numbers(profile: ChainProfile) -> list[list[int]]:
    """Return, by stage, the numbers of the options that count: those that no other replaces."""
    return [undominated(stage.all_options) for stage in profile.stages]


def _renumbered(plan: SlotPlan, numbers: list[list[int]]) -> SlotPlan:
    """Return a plan that calls options by their numbers in the profile."""
    ops = (
        replace(op, option=numbers[op.stage][op.option])
        if op.kind is OpKind.FORWARD_KEEP_ALL
        else op
        for op in plan.ops
    )
    return plan._replace(ops=tuple(ops))


def _in_slots(profile: ChainProfile, budget: int, link: Link, slots: int) -> SlotChain:
    """Return the chain in slots, its times in what a slot takes on the link."""
    arrays, slot = profile.arrays(), Fraction(budget, slots)
    time_unit = slot / Fraction(link.bandwidth)
    options = [
        [stage.all_options[number] for number in numbers]
        for stage, numbers in zip(profile.stages, _option_numbers(profile), strict=True)
    ]
    counts = np.array([len(row) for row in options], dtype=np.int64)

    def sizes(column: NDArray[np.int64]) -> _Floats:
        return np.asarray(column / float(slot), dtype=float)

    def times(column: NDArray[np.int64]) -> _Floats:
        return np.asarray(column / float(time_unit), dtype=float)

    def by_option(quantity: Callable[[StageOption], int]) -> NDArray[np.int64]:
        table = np.zeros((len(options), counts.max()), dtype=np.int64)
        for i, row in enumerate(options):
            table[i, : len(row)] = list(map(quantity, row))
        return table

    saved = by_option(lambda option: option.saved_bytes)
    keep = times(by_option(lambda option: option.first.time))
    backward = times(by_option(lambda option: option.first.backward_time))
    least = [min((keep[i] + backward[i])[:count]) for i, count in enumerate(counts)]
    return SlotChain(
        activation=sizes(arrays.activation),
        gradient=sizes(arrays.gradient),
        forward_overhead=sizes(arrays.forward_overhead),
        forward=times(arrays.forward_time),
        counts=counts,
        saved=sizes(saved),
        forward_need=sizes(saved + by_option(lambda option: option.first.overhead_bytes)),
        backward_need=sizes(saved + by_option(lambda option: option.backward_overhead_bytes))
        + sizes(arrays.gradient[:-1] + arrays.gradient[1:])[:, np.newaxis],
        keep=keep,
        backward=backward,
        least=np.array(least),
        rooms=Rooms(slots, is_bound=False),
    )


def _discretised(chain: SlotChain, limit: float, tolerance: float = EQUAL) -> DiscretisedChain:
    """Return the chain with as many steps of `kept` as it should have."""
    finer = float(max(1, _LEVELS[chain.rooms.is_bound] // chain.rooms.slots))
    return DiscretisedChain(chain, finer, limit * _ABOVE, tolerance)


class _FirstPlan(NamedTuple):
    """A plan, its cost in slots, and the best weights for completion bounds."""

    plan: SlotPlan
    cost: float
    weights: Weights


def _first_plan(chain: SlotChain) -> _FirstPlan | None:
    """Return a plan, if any is found: a little above the bound on the whole, then further."""
    least, coarser = least_time(chain), min(1.0, _FIRST_LEVELS / chain.rooms.slots)
    grid = DiscretisedChain(chain, _FIRST_FINER, INFINITE)
    weights = grid.best_weights(coarser, _MIDDLE, 1 / 4, 1 / 32)
    root = grid.with_bounds(weights).root
    if root > FINITE:
        return None
    rough = Effort(_ROUGH_CELLS, _MOST_LABELS, _width(chain) // 4)
    pessimistic = grid.pessimistic_fronts()
    whole, _, _ = grid.search(pessimistic, grid.completion_bounds(), INFINITE, rough)
    near = root + (root - least) / 10 + least / 100 + _ROUNDING
    far = whole + (whole - least) / 20 + _ROUNDING
    searches = (
        (near, _NEAR_TOLERANCE, _width(chain) // 4),
        (far, _FAR_TOLERANCE, _width(chain)),
    )
    for limit, share, width in searches:
        if limit > FINITE:
            break
        tolerance = share * (limit - least)
        grid = DiscretisedChain(chain, _FIRST_FINER, limit, tolerance).with_bounds(weights)
        effort = Effort(_FIRST_CELLS, _MOST_LABELS, width)
        cost, last, labels = grid.search(grid.fronts, grid.completion_bounds(), limit, effort)
        if last >= 0:
            return _FirstPlan(_plan(grid, labels, last), cost, weights)
    return None


def _width(chain: SlotChain) -> int:
    """Return how many labels go on to a plan, by stage and form of input."""
    return max(4, _EXPANDED // len(chain.forward))


def _improve(grid: DiscretisedChain, limit: float, plans: list[SlotPlan]) -> float:
    """Append better plans, if any are found; return the cost of the best one.

    Large cells let labels of many kinds go on; small ones then tell more of them apart.
    """
    bounds = grid.completion_bounds()
    for cells in _CELLS:
        effort = Effort(cells, _MOST_LABELS, _width(grid.chain))
        cost, last, labels = grid.search(grid.fronts, bounds, limit, effort)
        if last >= 0:
            plans.append(_plan(grid, labels, last))
            limit = cost
    return limit


def _lower_bound(grid: DiscretisedChain, limit: float) -> float:
    """Return a bound on all plans, at most `limit`: by labels, nearer and nearer to it."""
    least = grid.root
    if limit > FINITE:
        return least
    for relaxed in (True, False):
        bounds = grid.completion_bounds(relaxed=relaxed)
        left = _BOUNDING // len(grid.chain.forward)
        share = 1 / 4
        while least * _ABOVE < limit and left > _FEWEST:
            below = least + share * (limit - least)
            effort = Effort(_LEAST_CELLS, left // 2)
            found, last, labels = grid.search(grid.fronts, bounds, below, effort)
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


def _plan(grid: DiscretisedChain, labels: Labels, last: int) -> SlotPlan:
    """Return computations and moved items, from the last label back to the first.

    Options are counted among those that count, as in the chain in slots.
    """
    chain, path = grid.chain, [last]
    while (parent := int(labels.parent[path[-1]])) >= 0:
        path.append(parent)
    path.reverse()
    ops: list[Op] = []
    ends: list[tuple[Op, ...]] = []
    moved = set()
    for at, following in pairwise(path):
        i, after = int(labels.stage[at]), int(labels.stage[following])
        if labels.moved[following]:
            moved.add(Item("a", i) if labels.form[at] == PLAIN else Item("b", i - 1))
        if labels.form[following] != PLAIN:
            option = int(labels.form[following]) - 1
            ops.append(Op(OpKind.FORWARD_KEEP_ALL, i, option=option))
            ends.append((Op(OpKind.BACKWARD, i),))
            continue
        ops += forwards_dropping_inputs(i, after - 1)
        item = input_size(chain, i, int(labels.form[at]))
        room = float(chain.rooms.slots - labels.kept[at] - item)
        returning = float(labels.returning[at])
        found = best_plan(grid.fronts, chain.rooms, row_of(i, after - 1), room, returning)
        ends.append(tuple(_recomputation(grid.fronts, i, after - 1, int(found))))
    final = len(chain.forward) - 1
    at_loss = Expansion(last, chain.rooms, 0.0, INFINITE)
    _, option = extend(chain, grid.fronts, grid.completion_bounds(), labels, at_loss)
    ops += (Op(OpKind.FORWARD_KEEP_ALL, final, option=option), Op(OpKind.BACKWARD, final))
    for end in reversed(ends):
        ops += end
    return SlotPlan(tuple(ops), frozenset(moved))


def _recomputation(fronts: RecomputeFronts, i: int, j: int, plan: int) -> Iterator[Op]:
    """Yield the operations of a plan of stages i..j."""
    k, later, sooner = (
        int(column[plan]) for column in (fronts.choice, fronts.later, fronts.sooner)
    )
    if k < 0:
        yield Op(OpKind.FORWARD_KEEP_ALL, i, option=-1 - k)
        if i < j:
            yield from _recomputation(fronts, i + 1, j, sooner)
        yield Op(OpKind.BACKWARD, i)
        return
    yield from forwards_dropping_inputs(i, k)
    yield from _recomputation(fronts, k + 1, j, sooner)
    yield from _recomputation(fronts, i, k, later)
