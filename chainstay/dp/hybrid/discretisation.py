"""A chain in slots, with all bounds and fronts that a search for plans or for a bound needs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.hybrid.completion_bounds import (
    BoundGrid,
    BoundTables,
    Weights,
    fill_compute_costs,
    fill_cost_caps,
    fill_costs_so_far,
    fill_costs_to_go,
)
from chainstay.dp.hybrid.label_setting import CompletionBounds, SearchLimits, search
from chainstay.dp.hybrid.labels import Labels, no_labels
from chainstay.dp.hybrid.recompute_fronts import (
    FrontLimits,
    FrontPlan,
    RecomputeFronts,
    fill_column,
)
from chainstay.dp.hybrid.slot_chain import FINITE, INFINITE, SlotChain

_Floats: TypeAlias = NDArray[np.float64]

_FIRST_PLANS: Final = 1 << 16
EQUAL: Final = 1e-9
"""In slots: ways to recompute stages that differ by less are equal but for rounding."""
_BESIDE: Final = 1 / 16
"""How far the other pairs of weights are from the best pair."""


class Effort(NamedTuple):
    """The effort that a search may take.

    Attributes:
        cells: Cells of the labels' grid along every dimension, all slots together.
        labels: The most labels.
        width: The most labels of every stage and form that go on, unless it is 0.
    """

    cells: int
    labels: int
    width: int = 0


def least_time(chain: SlotChain) -> float:
    """Return the time of all forwards and backwards, once each, under the quickest options."""
    return float(chain.least.sum())


@dataclass(slots=True)
class DiscretisedChain:
    """A chain in slots with completion bounds and fronts, whose rooms are rounded one way.

    Attributes:
        chain: The chain in slots.
        finer: Steps of `kept` per slot.
        limit: Plans that take longer are of no use.
        tolerance: In slots: two ways to recompute stages that differ by less count as equal.
        compute_costs: As filled by `fill_compute_costs`.
        weights: Pairs of weights for which there are bounds, the best first.
    """

    chain: SlotChain
    finer: float
    limit: float
    tolerance: float = EQUAL
    compute_costs: _Floats = field(init=False)
    weights: list[Weights] = field(init=False, default_factory=list)
    _to_go: _Floats = field(init=False)
    _fronts: RecomputeFronts | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        stages = len(self.chain.forward)
        shape = stages * (stages + 1) // 2, self.chain.rooms.slots + 1
        self.compute_costs = np.full(shape, INFINITE)
        fill_compute_costs(self.chain, self.slack, self.compute_costs)

    @property
    def slack(self) -> float:
        """The most time for running forwards again that is of use."""
        return min(self.limit, INFINITE) - least_time(self.chain)

    @property
    def root(self) -> float:
        """A lower bound on the time of every plan."""
        return float(self._to_go[0, 0, 0].max())

    def costs_to_go(self, weights: Sequence[Weights], finer: float) -> _Floats:
        """Return the table that `fill_costs_to_go` fills."""
        levels = round(self.chain.rooms.slots * finer)
        stages, options = self.chain.saved.shape
        to_go = np.full((stages, options + 1, levels + 1, len(weights)), INFINITE)
        fill_costs_to_go(self.chain, self._grid(finer), np.array(weights), to_go)
        return to_go

    def best_weights(self, finer: float, start: Weights, step: float, least: float) -> Weights:
        """Return the weights with the best lower bound, by pattern search.

        Args:
            finer: Steps of `kept` per slot.
            start: Where to start.
            step: First step.
            least: Last step.
        """
        known: dict[Weights, float] = {}
        best = start
        while step >= least:
            near = [best, *_neighbours(best, step)]
            if new := [weights for weights in near if weights not in known]:
                values = self.costs_to_go(new, finer)[0, 0, 0]
                known.update(zip(new, values.tolist(), strict=True))
            found = max(near, key=known.__getitem__)
            if known[found] > known[best]:
                best = found
            else:
                step /= 2
        return best

    def with_bounds(self, best: Weights) -> Self:
        """Compute bounds for these weights and some beside them; return this chain."""
        self.weights = list(dict.fromkeys((best, *_neighbours(best, _BESIDE))))
        self._to_go = self.costs_to_go(self.weights, self.finer)
        return self

    def completion_bounds(self, *, relaxed: bool = False) -> CompletionBounds:
        """Return the bounds for labels; `relaxed` pays what comes back at the best weight."""
        best = self.weights[0].back
        chosen = [at for at, (_, v) in enumerate(self.weights) if not relaxed or v == best]
        to_go = np.ascontiguousarray(self._to_go[..., chosen])
        weights = np.array([self.weights[at] for at in chosen])
        return CompletionBounds(best if relaxed else -1.0, self.finer, weights, to_go)

    def pessimistic_fronts(self) -> RecomputeFronts:
        """Return fronts by which whatever has to come back is waited for: for a first limit."""
        table = self.compute_costs
        room = np.arange(table.size, dtype=np.int32).reshape(table.shape)
        demand = np.broadcast_to(np.arange(self.chain.rooms.slots + 1.0), table.shape)
        none = np.empty(0, dtype=np.int32)
        count = (table < FINITE).astype(np.int32)
        return RecomputeFronts(room, count, table.ravel(), demand.ravel(), none, none, none)

    @property
    def fronts(self) -> RecomputeFronts:
        """The fronts that `fill_column` fills."""
        if self._fronts is None:
            self._fronts = self._filled(self._cost_caps())
        return self._fronts

    def search(
        self, fronts: RecomputeFronts, bounds: CompletionBounds, limit: float, effort: Effort
    ) -> tuple[float, int, Labels]:
        """Return the least cost of labels that get through, the last of them, and all labels."""
        labels = no_labels(self.chain, effort.labels)
        limits = SearchLimits(effort.cells / self.chain.rooms.slots, limit, effort.width)
        cost, last = search(self.chain, fronts, bounds, limits, labels)
        return float(cost), int(last), labels

    def _grid(self, finer: float) -> BoundGrid:
        return BoundGrid(finer, self.limit, self.slack, self.compute_costs)

    def _cost_caps(self) -> _Floats:
        """Return the table that `fill_cost_caps` fills."""
        grid, weights = self._grid(self.finer), np.array(self.weights)
        so_far = np.full_like(self._to_go, INFINITE)
        fill_costs_so_far(self.chain, grid, weights, self._to_go, so_far)
        caps = np.full_like(self.compute_costs, -INFINITE)
        fill_cost_caps(self.chain, grid, BoundTables(weights, self._to_go, so_far), caps)
        return caps

    def _filled(self, caps: _Floats) -> RecomputeFronts:
        """Return the fronts of all stages but the loss; `caps` are those of `FrontLimits`."""
        limits = FrontLimits(caps, self.tolerance)
        shape = self.compute_costs.shape
        fronts = RecomputeFronts(
            start=np.zeros(shape, np.int32),
            plan_count=np.zeros(shape, np.int32),
            base=np.empty(_FIRST_PLANS),
            demand=np.empty(_FIRST_PLANS),
            choice=np.empty(_FIRST_PLANS, np.int32),
            later=np.empty(_FIRST_PLANS, np.int32),
            sooner=np.empty(_FIRST_PLANS, np.int32),
        )
        made = 0
        for j in range(len(self.chain.forward) - 1):
            while (end := fill_column(self.chain, limits, j, fronts, made)) < 0:
                fronts = _doubled(fronts)
            made = end
        return fronts


def _neighbours(weights: Weights, step: float) -> Iterator[Weights]:
    """Yield the weights beside others, one of the two changed by `step`."""
    w, v = weights
    for near in ((w - step, v), (w + step, v), (w, v - step), (w, v + step)):
        clipped = Weights(min(1.0, max(0.0, near[0])), min(1.0, max(0.0, near[1])))
        if clipped != weights:
            yield clipped


def _doubled(fronts: RecomputeFronts) -> RecomputeFronts:
    """Return `fronts` with room for twice as many plans."""
    return fronts._replace(
        **{name: np.tile(getattr(fronts, name), 2) for name in FrontPlan._fields}
    )
