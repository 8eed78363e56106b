"""POFO on slots: a plan, and a bound that no plan of its class is below.

The paper rounds all to slots. Here (`kernels`) only ``C_A`` is a table; the ways to the turn
are labels with real amounts, of which those in one cell are merged. A first plan with few
cells gives a limit; then a better plan, and the bound, look only at what may lead below it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.hybrid.exact import passed
from chainstay.dp.hybrid.guides import guide
from chainstay.dp.hybrid.inner import INFINITE, Costs, choose_inner, inner_table, looked_up
from chainstay.dp.hybrid.kernels import Labels, sweep
from chainstay.profiles import ChainProfile, Link
from chainstay.schedule import Op, OpKind

__all__ = ["SlotPlan", "bracket"]

_Floats: TypeAlias = NDArray[np.float64]

_FIRST_CELLS: Final = 20
_MOST_LABELS: Final = 4_000_000
_WEIGHTS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
_ABOVE: Final = 1.0001
"""Of a known plan's cost, up to where others are looked for: floats may be off by less."""
_ROUNDING: Final = 1e-4
"""In slots and stages: more than float32 tables can be wrong by."""


class SlotPlan(NamedTuple):
    """A persistent schedule's computations and what it offloads."""

    ops: tuple[Op, ...]
    moved: frozenset[tuple[str, int]]


def bracket(
    profile: ChainProfile, budget: int, link: Link, slots: int
) -> tuple[list[SlotPlan], Fraction]:
    """Good plans, the best last (none if all were rounded away), and a bound on all plans.

    Complexity:
        O(n^3 s^2 + l n) for s slots and l labels, of which there are at most O(n s^3).
    """
    costs, time_unit = _in_slots(profile, budget, link, slots)
    grid = _Grid.of(costs, slots, is_bound=False)
    plans, limit = [], INFINITE
    for cells in dict.fromkeys((min(_FIRST_CELLS, slots), max(1, slots // 2))):
        found = grid.sweep(cells, limit)
        if found is not None:
            limit = found[0] * _ABOVE
            plans.append(found[1])
    least = _Grid.of(costs, slots, is_bound=True).least(slots, limit)
    least = max(0.0, least - _ROUNDING * len(profile))
    return plans, Fraction(least) * time_unit


def _in_slots(profile: ChainProfile, budget: int, link: Link, slots: int) -> tuple[Costs, Fraction]:
    """Costs in slots, and what time a slot takes on the link."""
    arrays, slot = profile.arrays(), Fraction(budget, slots)
    time_unit = slot / Fraction(link.bandwidth)

    def sizes(column: NDArray[np.int64]) -> _Floats:
        return np.asarray(column / float(slot), dtype=float)

    def times(column: NDArray[np.int64]) -> _Floats:
        return np.asarray(column / float(time_unit), dtype=float)

    costs = Costs(
        activation=sizes(arrays.activation),
        saved=sizes(arrays.saved),
        gradient=sizes(arrays.gradient),
        forward_overhead=sizes(arrays.forward_overhead),
        backward_overhead=sizes(arrays.backward_overhead),
        forward=times(arrays.forward_time),
        backward=times(arrays.backward_time),
    )
    return costs, time_unit


@dataclass(frozen=True, slots=True)
class _Grid:
    """A chain with its table and guides, rounded one way."""

    costs: Costs
    slots: int
    is_bound: bool
    table: NDArray[np.float32]
    weights: _Floats
    guides: _Floats

    @classmethod
    def of(cls, costs: Costs, slots: int, *, is_bound: bool) -> _Grid:
        stages = len(costs.forward)
        rows = stages * (stages + 1) // 2
        table = np.empty((rows, slots + 1, slots + 1), dtype=np.float32)
        inner_table(costs, slots, is_bound, table)
        weights = np.array([(w, v) for w in _WEIGHTS for v in _WEIGHTS])
        guides = np.empty((stages, 2, slots + 1, len(weights)))
        guide(costs, slots, table, weights, guides)
        return cls(costs, slots, is_bound, table, weights, guides)

    def least(self, cells: int, limit: float) -> float:
        """A bound on all plans, at most `limit`."""
        while True:
            cost, last, _ = self._labels(cells, limit)
            if last > _OVERFLOW:
                return cost
            cells = cells * 2 // 3

    def sweep(self, cells: int, limit: float) -> tuple[float, SlotPlan] | None:
        """The best plan below `limit`, if any."""
        while True:
            cost, last, labels = self._labels(cells, limit)
            if last > _OVERFLOW:
                break
            cells = cells * 2 // 3
        return None if last < 0 else (cost, self._plan(labels, last))

    def _labels(self, cells: int, limit: float) -> tuple[float, int, Labels]:
        stages = len(self.costs.forward)
        labels = _no_labels(stages)
        count = sum((cells + 1 - q) ** 2 for q in range(cells + 1))
        index = np.zeros((stages, 2, count), dtype=np.int32)
        cost, last = sweep(
            self.costs, self.slots, cells, self.is_bound, self.table, self.weights, self.guides,
            limit, labels, index,
        )  # fmt: skip
        return float(cost), int(last), labels

    def _plan(self, labels: Labels, last: int) -> SlotPlan:
        """Computations and moved items, from the last label back to the first."""
        final, path = len(self.costs.forward) - 1, [last]
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
            costs = self.costs
            item = costs.saved[i - 1] if labels.is_saved[at] else costs.activation[i]
            kept, returning = float(labels.kept[at] + item), float(labels.returning[at])
            ends.append(tuple(self._inner(i, after - 1, kept, returning)))
        ops += (Op(OpKind.FORWARD_KEEP_ALL, final), Op(OpKind.BACKWARD, final))
        for end in reversed(ends):
            ops += end
        return SlotPlan(tuple(ops), frozenset(moved))

    def _inner(self, i: int, j: int, kept: float, returning: float) -> Iterator[Op]:
        """Operations of ``C_A``, decision by decision."""
        costs = self.costs
        _, choice = choose_inner(costs, self.slots, self.table, i, j, kept, returning)
        assert choice > _OVERFLOW, "a label's table entry is finite"
        if choice < 0:
            yield Op(OpKind.FORWARD_KEEP_ALL, i)
            if i < j:
                room = self.slots - kept
                backing = costs.saved[i] + costs.gradient[i : i + 2].sum()
                backing += costs.backward_overhead[i]
                waited = float(costs.backward[i]) + max(0.0, float(backing) - room + returning)
                left = max(0.0, returning - waited)
                yield from self._inner(i + 1, j, kept + float(costs.saved[i]), left)
            yield Op(OpKind.BACKWARD, i)
            return
        yield from passed(i, choice)
        row = choice * (choice + 1) // 2 + i
        later = looked_up(self.table, row, self.slots, kept, returning, False)  # noqa: FBT003 - a kernel
        left = max(0.0, returning - float(later))
        yield from self._inner(choice + 1, j, kept + float(costs.activation[choice + 1]), left)
        yield from self._inner(i, choice, kept, returning)


_OVERFLOW: Final = -2


def _no_labels(stages: int) -> Labels:
    """Room for labels; the system gives memory as they come."""
    size = _MOST_LABELS
    return Labels(
        cost=np.empty(size),
        kept=np.empty(size),
        leaving=np.empty(size),
        returning=np.empty(size),
        parent=np.empty(size, dtype=np.int32),
        stage=np.empty(size, dtype=np.int16),
        is_saved=np.empty(size, dtype=np.bool_),
        moved=np.empty(size, dtype=np.bool_),
        alive=np.empty(size, dtype=np.bool_),
        following=np.empty(size, dtype=np.int32),
        first=np.zeros((stages, 2), dtype=np.int32),
        made=np.zeros(1, dtype=np.int64),
    )
