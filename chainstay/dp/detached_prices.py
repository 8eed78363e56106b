"""The bound of `prices` for the program whose saved data may outlive their input.

The recursion of `detached` has two kinds of sub-chains more (saved data of the last stage
held, input to be dropped), so there are more tables; what they mean and why they bound is
the same. The proof is in ``docs/derivations/detached.md``.
"""
# ruff: noqa: PLR0913, PLR0917  # compiled code has no objects to hold what it needs

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.detached_sizes import Sizes
from chainstay.dp.jit import kernel
from chainstay.dp.knapsack_prices import knapsack_price
from chainstay.dp.recursion import Array

__all__ = ["DetachedBound"]

_Floats = NDArray[np.float64]

_RUNGS: Final = 17
_ROOT_RUNG: Final = 12


class DetachedBound:
    """Lower bounds on the overhead of a whole schedule that contains a given sub-chain.

    Args:
        sizes: Of the chain.
        memory: M, the bytes besides the network's input.

    Attributes:
        memory: As given.
        least: No stages: of no sub-chain a least memory is known.
        rerun_time: Every forward once, ns.
        root: Lower bound on the overhead of any schedule of `detached`, ns.
        step: Between two prices, ns per byte.
        around: Shape (2, n, n, prices), at [held, s, t, i]: what a schedule spends outside of a
            sub-chain s..t with m bytes is at least ``around[held, s, t, i] + i * step * m``.
        dropped: Likewise, of sub-chains that drop their input; m bytes besides that input.

    Complexity:
        O(n^2) time and memory for each pair of prices.
    """

    def __init__(self, sizes: Sizes, memory: int) -> None:
        self.memory = memory
        self.least: Array = np.zeros((0, 0), dtype=np.int64)
        self.rerun_time = int(sizes.elapsed[-1])
        # The knapsack of `outside` at the root, as the price of memory there: these schedules come
        # close to it, and it is found at once.
        price = knapsack_price(np.diff(sizes.elapsed), sizes.saved, memory)
        self.step = price / _ROOT_RUNG
        ladder = _priced(sizes, memory, self.step, _RUNGS)
        after = _after(sizes, ladder)
        rent = np.arange(_RUNGS) * self.step * (memory + sizes.nearest[0])
        self.root = float(np.max(after[0][0] - rent))
        self.around, self.dropped = _around(sizes, ladder, _before(sizes, ladder), after)


class _Priced(NamedTuple):
    """A chain with memory at each price of a ladder.

    Attributes:
        step: Between two prices, ns per byte.
        memory: As in `DetachedBound`.
        stored: Shape (n + 1, prices), at [k, i]: least price of what restarting at k stores.
        left: Shape (n, prices): least price of saved data whose input is dropped.
        spared: Shape (n + 1, prices): at [k, i], the sum over stages before k of what each
            costs at least in a sub-chain: its saved data, or its forward a second time.
    """

    step: float
    memory: int
    stored: _Floats
    left: _Floats
    spared: _Floats


Tables = tuple[_Floats, _Floats]
"""Of sub-chains that keep their input, and of those that drop it."""


def _priced(sizes: Sizes, memory: int, step: float, rungs: int) -> _Priced:
    prices: _Floats = step * np.arange(rungs, dtype=np.float64)
    cheaper = np.minimum(np.diff(sizes.elapsed)[:, None], sizes.saved[:, None] * prices)
    return _Priced(
        step=step,
        memory=memory,
        stored=sizes.nearest[:, None] * prices,
        left=(sizes.saved + sizes.made)[:, None] * prices,
        spared=np.concatenate([np.zeros((1, rungs)), np.cumsum(cheaper, axis=0)]),
    )


@kernel
def _inside(sizes: Sizes, priced: _Priced, s: int, t: int, held: int, i: int) -> float:
    """At most the least overhead of s..t + price * m over m, the saved data held counted in m."""
    spared = priced.spared[t + 1 - held, i] - priced.spared[s, i]
    return float(spared + held * i * priced.step * sizes.saved[t])


@kernel
def _least_restart(
    sizes: Sizes,
    priced: _Priced,
    later: Tables,
    start: tuple[int, int],
    besides: float,
    best: float,
) -> float:
    """The lower of `best` and what restarts of s..n-1 cost; `start` is s and the price's rung.

    `besides` is the price per rung of what later parts have to leave alone.
    """
    s, i = start
    n = len(sizes.saved)
    for j in range(s + 1, n):
        rerun = float(sizes.elapsed[j] - sizes.elapsed[s])
        if rerun >= best:
            break
        for held in range(2):
            table = later[1] if held else later[0]
            value = table[j, i] + i * besides
            for k in range(i):
                if rerun + value >= best:
                    break
                inside = _inside(sizes, priced, s, j - 1 + held, held, i - k)
                value = max(value, table[j, k] + k * besides + inside)
            best = min(best, rerun + value)
    return best


@kernel
def _after(sizes: Sizes, priced: _Priced) -> Tables:
    """At [s, i]: at most the least overhead of s..n-1 + price * m over m; shapes (n + 1, prices).

    Here m are the bytes besides what is kept before ``a^s``, which itself counts in m.
    """
    n, rungs = len(sizes.saved), priced.stored.shape[1]
    kept, dropped = np.zeros((n + 1, rungs)), np.zeros((n + 1, rungs))
    at_last = priced.step * (sizes.gradient[n] + sizes.record[n - 1])
    for s in range(n - 1, -1, -1):
        least_input = priced.step * sizes.nearest[s]
        for i in range(rungs):
            recorded = i * at_last
            if s < n - 1:
                recorded = kept[s + 1, i] - priced.stored[s + 1, i] + priced.left[s, i]
            besides = sizes.made[s] * priced.step * i if s < n - 1 else 0.0
            best = _least_restart(sizes, priced, (kept, dropped), (s, i), 0.0, recorded - besides)
            kept[s, i] = best + priced.stored[s, i]
            dropped[s, i] = _least_restart(
                sizes, priced, (kept, dropped), (s, i), least_input, recorded
            )
    return kept, dropped


@kernel
def _least_before(
    sizes: Sizes,
    priced: _Priced,
    before: Tables,
    k: int,
    held: int,
    i: int,
    best: float,
) -> float:
    """The lower of `best` and what restarts cost whose later part is k..n-1, of one kind.

    That part is what stays when `held` tells the kind of the earlier part: up to stage k - 1, or
    up to k with its saved data. Each cost counts what a restart stores, but for ``a^k``.
    """
    rent, rungs = priced.step * priced.memory, priced.stored.shape[1]
    for s in range(k - 1, -1, -1):
        rerun = float(sizes.elapsed[k] - sizes.elapsed[s])
        if rerun >= best:
            break
        for table in range(2 if s > 0 else 1):
            cost = before[1][s] if table else before[0][s]
            fixed = rerun + (priced.stored[s, i] if table else 0.0)
            value = cost[i]
            for j in range(1, rungs - i):
                if fixed + value >= best:
                    break
                inside = _inside(sizes, priced, s, k - 1 + held, held, j)
                value = max(value, cost[i + j] + inside - j * rent)
            best = min(best, fixed + value)
    return best


@kernel
def _before(sizes: Sizes, priced: _Priced) -> Tables:
    """At [k, i]: at most the least overhead of what precedes k..n-1 + price * (M - m).

    The sub-chain k..n-1 starts with m bytes; besides ``a^k`` where it stays, otherwise besides
    what is kept before it. Shapes (n, prices).
    """
    n, rungs = len(sizes.saved), priced.stored.shape[1]
    kept, dropped = np.zeros((n, rungs)), np.full((n, rungs), np.inf)
    tables = kept, dropped
    for k in range(1, n):
        for i in range(rungs):
            last, stored = priced.left[k - 1, i], priced.stored[k, i]
            flat = kept[k - 1, i] - sizes.made[k - 1] * i * priced.step
            best = min(flat, dropped[k - 1, i]) + last
            kept[k, i] = stored + _least_before(sizes, priced, tables, k, 0, i, best - stored)
            dropped[k, i] = _least_before(sizes, priced, tables, k, 1, i, np.inf)
    return kept, dropped


@kernel
def _shared(lines: _Floats, later: _Floats, i: int) -> float:
    """The price i as the difference of two, that of the whole and that of the later part."""
    best = -np.inf
    for j in range(len(lines) - i):
        best = max(best, lines[i + j] + later[j])
    return float(best)


@kernel
def _around(sizes: Sizes, priced: _Priced, before: Tables, after: Tables) -> Tables:
    """The tables `DetachedBound.around` and `DetachedBound.dropped`."""
    n, rungs, stored = len(sizes.saved), priced.stored.shape[1], priced.stored
    kept, dropped = np.full((2, n, n, rungs), np.inf), np.full((2, n, n, rungs), np.inf)
    passing = np.full((2, n, rungs), np.inf)  # at [held, t]: on the way to s since a restart
    prices = priced.step * np.arange(rungs)
    for s in range(n):
        kept[0, s, n - 1] = before[0][s] - prices * priced.memory
        dropped[0, s, n - 1] = before[1][s] - prices * priced.memory
        again = np.full((2, rungs), np.inf)  # least of s..T that have s..t as the earlier part
        for t in range(n - 1, s - 1, -1):
            for held in range(2):
                if s > 0:
                    time = float(sizes.elapsed[s] - sizes.elapsed[s - 1])
                    for i in range(rungs):
                        least = min(
                            passing[held, t, i],
                            kept[held, s - 1, t, i],
                            dropped[held, s - 1, t, i] + stored[s - 1, i],
                        )
                        passing[held, t, i] = least + time
                if t == n - 1 and not held:
                    continue
                rerun = float(sizes.elapsed[t + 1 - held] - sizes.elapsed[s])
                later = after[1][t] if held else after[0][t + 1]
                for i in range(rungs):
                    best = rerun + _shared(kept[0, s, n - 1], later, i)
                    lower = np.inf
                    if s > 0:
                        last = priced.left[s - 1, i]
                        flat = last - sizes.made[s - 1] * prices[i]
                        best = min(best, kept[held, s - 1, t, i] + flat)
                        best = min(best, dropped[held, s - 1, t, i] + last)
                        best = min(best, passing[held, t, i] + stored[s, i])
                        lower = rerun + _shared(dropped[0, s, n - 1], later + stored[s], i)
                        lower = min(lower, passing[held, t, i])
                    kept[held, s, t, i] = min(best, again[0, i] + rerun)
                    dropped[held, s, t, i] = min(lower, again[1, i] + rerun)
                    again[0, i] = min(again[0, i], best)
                    again[1, i] = min(again[1, i], lower)
    for s in range(n):
        dropped[:, s] += stored[s]
    return kept, dropped
