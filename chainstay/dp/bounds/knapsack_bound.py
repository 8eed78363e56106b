"""A simple Lagrangian bound: knapsacks of saved data, each relaxed by a multiplier.

A stage's forward runs once only if its first run was ``Fa`` and its saved data then stayed
until its backward. All such stages are in memory together when the loss runs, so the time
they spare is at most a fractional knapsack of forward times over saved bytes. The proof is
in ``docs/derivations/outside-bound.md``; `lagrangian_bound` is tighter, and takes longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.bounds.bound_pruning import MULTIPLIER_COUNT, ROOT_MULTIPLIER
from chainstay.dp.chain.recursion_arrays import ArraysByKind, RecursionArrays, has_options
from chainstay.dp.forward_costs import Array

_Floats = NDArray[np.float64]

_MULTIPLIER_RANGE: Final = 256.0


def knapsack_multiplier(time: Array, saved: Array, memory: int) -> float:
    """Return what a byte is worth, in ns, in the fractional knapsack of forwards into `memory`.

    At this multiplier memory for the saved data of all stages, or else their forwards a second
    time, cost the most in excess of what `memory` is worth. Positive, also where all fits.

    Args:
        time: Shape (n,), ns: forward times.
        saved: Shape (n,), bytes: saved data.
        memory: Bytes of the knapsack.
    """
    worth = time / np.maximum(saved, 1)
    order = np.argsort(-worth, kind="stable")
    cut = int(np.searchsorted(np.cumsum(saved[order]), memory, side="right"))
    if cut < len(order) and worth[order[cut]] > 0:
        return float(worth[order[cut]])
    return max(1, int(time.sum())) / max(1, memory, int(saved.sum()))


def spared_time(elapsed: Array, kept: _Floats) -> _Floats:
    """Return at [k, i] the least that stages before k cost: saved data, or a second forward.

    Args:
        elapsed: Shape (n + 1,), ns: forward time of the stages before.
        kept: Shape (n, multipliers), ns: what saved data cost.

    Returns:
        Shape (n + 1, multipliers), ns.
    """
    cheaper = np.minimum(np.diff(elapsed)[:, None], kept)
    return np.concatenate([np.zeros((1, kept.shape[1])), np.cumsum(cheaper, axis=0)])


class KeptCosts(NamedTuple):
    """Costs of keeping stages where memory has a price: overheads and saved data.

    Attributes:
        spans: Shape (spans,): the numbers of stages that options keep together.
        time: Shape (spans, n, multipliers), ns: at [j, s, i], the least cost of an option that
            keeps ``s .. s + spans[j] - 1``; infinite if there is none that fits.
    """

    spans: Array
    time: _Floats

    def spared(self, elapsed: Array) -> _Floats:
        """Return what `spared_time` says where options may keep several stages.

        The least cost of stages k..n-1, each run again or part of a kept span, is a potential: no
        way through stages s..t costs less than the difference of those at s and at t + 1.
        """
        if self.spans.tolist() == [1]:
            return spared_time(elapsed, self.time[0])
        n, rerun = len(elapsed) - 1, np.diff(elapsed)
        rest = np.zeros((n + 1, self.time.shape[2]))
        for s in range(n - 1, -1, -1):
            rest[s] = rest[s + 1] + rerun[s]
            for span, time in zip(self.spans.tolist(), self.time[:, s], strict=True):
                if s + span <= n:
                    rest[s] = np.minimum(rest[s], rest[s + span] + time)
        spared: _Floats = rest[0] - rest
        return spared


class KeepPrices:
    """The options of a chain, to be priced at one multiplier of memory or another.

    Args:
        chain: Sizes in bytes, times in ns.
        sizes: Shape (options,), bytes to be paid for with each option.
        memory: Of several options, only those are taken that fit in so many bytes.
    """

    def __init__(self, chain: RecursionArrays, sizes: Array, memory: int) -> None:
        n = len(chain.start) - 1
        stage = np.repeat(np.arange(n), np.diff(chain.start))
        span = chain.end - stage
        order = np.lexsort((stage, span))
        if len(order) > n:
            order = order[chain.keep_floor.min(axis=1)[order] <= memory]
        self._extra, self._sizes = chain.extra[order, None], sizes[order, None]
        groups, self._first = np.unique(span[order] * n + stage[order], return_index=True)
        self._spans, span_of_group = np.unique(groups // n, return_inverse=True)
        self._groups = (span_of_group, groups % n)
        self._stages = n

    def at(self, multipliers: _Floats) -> KeptCosts:
        """Return what keeping stages costs at multipliers in ns per byte."""
        time = self._extra + self._sizes * multipliers
        if len(time) == len(self._first) == self._stages and len(self._spans) == 1:  # one each
            return KeptCosts(self._spans, time[None])
        kept = np.full((len(self._spans), self._stages, len(multipliers)), np.inf)
        if len(time):
            kept[self._groups] = np.minimum.reduceat(time, self._first)
        return KeptCosts(self._spans, kept)


def option_multiplier(by_kind: ArraysByKind, memory: int) -> float:
    """Return the multiplier, in ns per byte, at which the knapsack of all options bounds best."""
    chain = _cheaper_kind(by_kind)
    prices = KeepPrices(chain, chain.saved, memory)

    def spared(multiplier: float) -> float:
        return float(prices.at(np.array([multiplier])).spared(chain.elapsed)[-1, 0])

    return best_multiplier(spared, int(chain.elapsed[-1]), memory)


def best_multiplier(spared: Callable[[float], float], time: int, memory: int) -> float:
    """Return the multiplier, in ns per byte, at which what stages cost bounds best.

    Args:
        spared: What all stages cost at least at a multiplier, in ns.
        time: Every forward once, in ns.
        memory: Bytes of the knapsack.
    """
    usual = max(1, time) / max(1, memory)

    def root(multiplier: float) -> float:
        return spared(multiplier) - multiplier * memory

    return maximiser(root, usual / _MULTIPLIER_RANGE, usual * _MULTIPLIER_RANGE, steps=24)


def _cheaper_kind(by_kind: ArraysByKind) -> RecursionArrays:
    """Return arrays in which every time and size is the smaller one of both kinds of forwards.

    What is possible in the chain is possible with them, and costs no more.
    """
    first, again = by_kind
    if first is again:
        return again
    stages = [
        np.repeat(np.arange(len(arrays.start) - 1), np.diff(arrays.start)) for arrays in by_kind
    ]
    order = np.argsort(np.concatenate(stages), kind="stable")

    def both(name: str) -> Array:
        joined: Array = np.concatenate([getattr(arrays, name) for arrays in by_kind])[order]
        return joined

    times = np.minimum(np.diff(first.elapsed), np.diff(again.elapsed))
    return again._replace(
        elapsed=np.concatenate([[0], np.cumsum(times)]),
        gradient=first.gradient,
        transit=np.minimum(first.transit, again.transit),
        start=first.start + again.start,
        end=both("end"),
        saved=both("saved"),
        extra=both("extra"),
        number=both("number"),
        keep_floor=both("keep_floor"),
    )


def maximiser(
    function: Callable[[float], float], low: float, high: float, *, steps: int = 12
) -> float:
    """Return where `function` is largest between two positive numbers.

    By golden sections of logarithms: exact for functions with one peak; others give some point.
    """
    golden = (math.sqrt(5) - 1) / 2
    low, high = math.log(low), math.log(high)
    points = [high - golden * (high - low), low + golden * (high - low)]
    values = [function(math.exp(point)) for point in points]
    for _ in range(steps):
        if values[0] > values[1]:
            high, points[1], values[1] = points[1], points[0], values[0]
            points[0] = high - golden * (high - low)
            values[0] = function(math.exp(points[0]))
        else:
            low, points[0], values[0] = points[0], points[1], values[1]
            points[1] = low + golden * (high - low)
            values[1] = function(math.exp(points[1]))
    return math.exp(points[int(values[1] > values[0])])


class KnapsackBound:
    """The bounds of a `MultiplierBound` by knapsacks of saved data.

    Where first runs and later ones differ, every cost is the smaller of the two: that only makes
    schedules cheaper.

    Args:
        by_kind: Sizes in bytes, times in ns.
        memory: M, the bytes besides the network's input.
        least: Shape (n, n), at [s, t]: bytes that stages s..t need at least.

    Complexity:
        O(n^2) time and memory for each multiplier.
    """

    slack: float = 0.005

    def __init__(self, by_kind: ArraysByKind, memory: int, least: Array) -> None:
        chain = _cheaper_kind(by_kind)
        elapsed = chain.elapsed
        self.memory, self.least = memory, least
        self.rerun_time = max(int(arrays.elapsed[-1]) for arrays in by_kind)
        if has_options(by_kind):
            multiplier = option_multiplier(by_kind, memory)
        else:
            multiplier = knapsack_multiplier(np.diff(elapsed), chain.saved, memory)
        self.step = multiplier / ROOT_MULTIPLIER
        multipliers: _Floats = self.step * np.arange(MULTIPLIER_COUNT, dtype=np.float64)
        spared = KeepPrices(chain, chain.saved, memory).at(multipliers).spared(elapsed)
        memory_cost = multipliers * memory
        self.root = float((spared[-1] - memory_cost).max())
        # all stages outside share M; those before s share what s..t leave of it
        all_around = spared[:-1, None] + spared[-1] - spared[None, 1:] - memory_cost
        table = np.repeat((spared[:-1] - memory_cost)[:, None], len(least), axis=1)
        table[:, :, 0] = all_around.max(axis=2)
        rerun = elapsed[None, 1:] - elapsed[:-1, None]
        rerun[:, -1] = 0  # stages up to the loss are no rerun
        self.outside: _Floats = np.asarray(table + rerun[:, :, None], dtype=np.float64)
