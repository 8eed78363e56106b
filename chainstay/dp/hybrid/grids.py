"""All tables of one chain whose rooms are rounded one way, as far as they matter below a limit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.hybrid.guides import after, before, caps, computing
from chainstay.dp.hybrid.inner import FINITE, INFINITE, Costs, Fronts, fill_column
from chainstay.dp.hybrid.kernels import Guides, Labels, sweep

__all__ = ["Effort", "Grid", "Weights", "least_time"]

_Floats: TypeAlias = NDArray[np.float64]

Weights: TypeAlias = tuple[float, float]

_FIRST_PLANS: Final = 1 << 16
_BESIDE: Final = 1 / 16
"""From the best weights, how far the others are that guides are made for."""


class Effort(NamedTuple):
    """What a sweep may take.

    Attributes:
        cells: Along every dimension, all slots together.
        labels: At most.
        width: As for `kernels.sweep`.
    """

    cells: int
    labels: int
    width: int = 0


def least_time(costs: Costs) -> float:
    """Of all forwards and backwards, once each."""
    return float(costs.forward.sum() + costs.backward.sum())


@dataclass(slots=True)
class Grid:
    """A chain with guides and fronts.

    Attributes:
        costs: In slots.
        slots: K.
        finer: Steps of `kept` per slot.
        is_bound: Whether rooms are rounded up.
        limit: Plans that take more are of no interest.
        table: As filled by `computing`.
    """

    costs: Costs
    slots: int
    finer: float
    is_bound: bool
    limit: float
    table: _Floats = field(init=False)
    weights: list[Weights] = field(init=False, default_factory=list)
    _rests: _Floats = field(init=False)
    _fronts: Fronts | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        stages = len(self.costs.forward)
        self.table = np.full((stages * (stages + 1) // 2, self.slots + 1), INFINITE)
        computing(self.costs, self.slots, self.is_bound, self.slack, self.table)

    @property
    def slack(self) -> float:
        """The most overhead that matters."""
        return min(self.limit, INFINITE) - least_time(self.costs)

    @property
    def root(self) -> float:
        """What everything takes at least, by the guides."""
        return float(self._rests[:, 0, 0, 0].max())

    def rest(self, weights: Weights, finer: float) -> _Floats:
        """As filled by `after`."""
        levels = round(self.slots * finer)
        rest = np.empty((len(self.costs.forward), 2, levels + 1))
        after(self.costs, self.slots, finer, self.is_bound, self.slack, self.table, *weights, rest)
        return rest

    def climbed(self, finer: float, start: Weights, step: float, least: float) -> Weights:
        """Weights for which the guides say most, by pattern search."""
        known: dict[Weights, float] = {}

        def value(weights: Weights) -> float:
            if weights not in known:
                known[weights] = float(self.rest(weights, finer)[0, 0, 0])
            return known[weights]

        best = start
        while step >= least:
            found = max(_around(best, step), key=value)
            if value(found) > value(best):
                best = found
            else:
                step /= 2
        return best

    def guided(self, best: Weights) -> Self:
        """With guides for these weights and some beside them."""
        self.weights = list(dict.fromkeys((best, *_around(best, _BESIDE))))
        self._rests = np.stack([self.rest(weights, self.finer) for weights in self.weights])
        return self

    def guides(self, *, relaxed: bool = False) -> Guides:
        """For labels; `relaxed` where what comes back is paid at the best weight."""
        best = self.weights[0][1]
        chosen = [at for at, (_, v) in enumerate(self.weights) if not relaxed or v == best]
        rest = _pairs_last(self._rests[chosen])
        weights = np.array([self.weights[at] for at in chosen])
        return Guides(best if relaxed else -1.0, self.finer, weights, rest)

    def pessimistic(self) -> Fronts:
        """Fronts by which whatever has to come back is waited for: for a first limit."""
        room = np.arange(self.table.size, dtype=np.int32).reshape(self.table.shape)
        demand = np.broadcast_to(np.arange(self.slots + 1.0), self.table.shape)
        none = np.empty(0, dtype=np.int32)
        count = (self.table < FINITE).astype(np.int32)
        return Fronts(room, count, self.table.ravel(), demand.ravel(), none, none, none)

    @property
    def fronts(self) -> Fronts:
        """As filled by `fill_column`."""
        if self._fronts is None:
            self._fronts = self._filled(self._caps())
        return self._fronts

    def sweep(
        self, fronts: Fronts, guides: Guides, limit: float, effort: Effort
    ) -> tuple[float, int, Labels]:
        """As `kernels.sweep`."""
        labels = _no_labels(len(self.costs.forward), effort.labels)
        cost, last = sweep(
            self.costs, self.slots, effort.cells / self.slots, self.is_bound, fronts, guides,
            limit, effort.width, labels,
        )  # fmt: skip
        return float(cost), int(last), labels

    def _caps(self) -> _Floats:
        """As filled by `caps`."""
        spents = np.full_like(self._rests, INFINITE)
        shared = self.costs, self.slots, self.finer, self.is_bound, self.limit, self.slack
        for weights, rest, spent in zip(self.weights, self._rests, spents, strict=True):
            before(*shared, self.table, *weights, rest, spent)
        most = np.full_like(self.table, -INFINITE)
        rests, spents = _pairs_last(self._rests), _pairs_last(spents)
        caps(*shared, self.table, np.array(self.weights), rests, spents, most)
        return most

    def _filled(self, most: _Floats) -> Fronts:
        shape = self.table.shape
        fronts = Fronts(
            start=np.zeros(shape, np.int32),
            plans=np.zeros(shape, np.int32),
            base=np.empty(_FIRST_PLANS),
            demand=np.empty(_FIRST_PLANS),
            choice=np.empty(_FIRST_PLANS, np.int32),
            later=np.empty(_FIRST_PLANS, np.int32),
            sooner=np.empty(_FIRST_PLANS, np.int32),
        )
        made = 0
        for j in range(len(self.costs.forward) - 1):
            while (
                end := fill_column(self.costs, self.slots, self.is_bound, most, j, fronts, made)
            ) < 0:
                fronts = _doubled(fronts)
            made = end
        return fronts


def _around(weights: Weights, step: float) -> Iterator[Weights]:
    """Weights beside others, one of the two changed."""
    w, v = weights
    for near in ((w - step, v), (w + step, v), (w, v - step), (w, v + step)):
        clipped = min(1.0, max(0.0, near[0])), min(1.0, max(0.0, near[1]))
        if clipped != weights:
            yield clipped


def _pairs_last(rests: _Floats) -> _Floats:
    """By pair of weights within, where what is asked is asked of all."""
    return np.ascontiguousarray(np.moveaxis(rests, 0, -1))


def _doubled(fronts: Fronts) -> Fronts:
    """With room for twice as many plans."""
    return fronts._replace(
        base=np.concatenate([fronts.base, fronts.base]),
        demand=np.concatenate([fronts.demand, fronts.demand]),
        choice=np.concatenate([fronts.choice, fronts.choice]),
        later=np.concatenate([fronts.later, fronts.later]),
        sooner=np.concatenate([fronts.sooner, fronts.sooner]),
    )


def _no_labels(stages: int, most: int) -> Labels:
    """Room for so many labels; the system gives memory as they come."""
    table = 2 << math.ceil(math.log2(most + 1))
    return Labels(
        cost=np.empty(most),
        kept=np.empty(most),
        leaving=np.empty(most),
        returning=np.empty(most),
        total=np.empty(most),
        parent=np.empty(most, dtype=np.int32),
        stage=np.empty(most, dtype=np.int16),
        is_saved=np.empty(most, dtype=np.bool_),
        moved=np.empty(most, dtype=np.bool_),
        following=np.empty(most, dtype=np.int32),
        first=np.full((stages, 2), -1, dtype=np.int32),
        made=np.zeros(1, dtype=np.int64),
        key=np.zeros(table, dtype=np.int64),
        label=np.empty(table, dtype=np.int32),
    )
