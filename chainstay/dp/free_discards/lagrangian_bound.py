"""The Lagrangian bound of `chainstay.dp.bounds.lagrangian_bound` for free discards.

The recurrence has two kinds of sub-chains more (saved data of the last stage held, input to be
dropped), so there are more tables; what they mean and why they bound is the same. The proof is in
``docs/derivations/free-discards.md``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.bounds.bound_pruning import MULTIPLIER_COUNT, ROOT_MULTIPLIER
from chainstay.dp.bounds.knapsack_bound import knapsack_multiplier, spared_time
from chainstay.dp.bounds.lagrangian_bound import LagrangianBound
from chainstay.dp.free_discards.sizes import Sizes
from chainstay.dp.jit import kernel
from chainstay.dp.recursion import Array

__all__ = ["FreeDiscardsBound"]

_Floats = NDArray[np.float64]


class FreeDiscardsBound:
    """Lower bounds on the overhead of a whole schedule that contains a given sub-chain.

    Args:
        sizes: Sizes and times of the chain.
        memory: M, the bytes besides the network's input.

    Attributes:
        memory: M, the bytes besides the network's input.
        least: Shape (0, 0): no least memory of a sub-chain is known here.
        rerun_time: Every forward once, in ns.
        root: Lower bound on the overhead of any schedule under free discards, in ns.
        slack: What a first limit lies above `root`, as a share of `rerun_time`.
        step: Ns per byte between two multipliers.
        outside: Shape (2, n, n, multipliers), at [held, s, t, i]: what a schedule spends outside
            of a sub-chain s..t with m bytes is at least ``outside[held, s, t, i] + i * step * m``
            ns.
        dropped: Shape (2, n, n, multipliers): the same for sub-chains that drop their input; m
            bytes besides that input.

    Complexity:
        O(n^2) time and memory for each pair of multipliers.
    """

    slack: float = LagrangianBound.slack

    def __init__(self, sizes: Sizes, memory: int) -> None:
        self.memory = memory
        self.least: Array = np.zeros((0, 0), dtype=np.int64)
        self.rerun_time = int(sizes.elapsed[-1])
        # The multiplier of the knapsack of the whole chain: these schedules come close to that
        # knapsack, and its multiplier is found at once.
        multiplier = knapsack_multiplier(np.diff(sizes.elapsed), sizes.saved, memory)
        self.step = multiplier / ROOT_MULTIPLIER
        relaxed = _relaxed(sizes, memory, self.step, MULTIPLIER_COUNT)
        after = _after(relaxed)
        memory_cost = np.arange(MULTIPLIER_COUNT) * self.step * (memory + sizes.nearest[0])
        self.root = float(np.max(after[0][0] - memory_cost))
        self.outside, self.dropped = _outside(relaxed, _before(relaxed), after)


class _RelaxedSizes(NamedTuple):
    """A chain whose memory costs a multiplier per byte, for all multipliers.

    Attributes:
        sizes: The chain.
        step: Ns per byte between two multipliers.
        memory: M, the bytes besides the network's input.
        stored: Shape (n + 1, multipliers), ns: at [k, i], least cost of what a restart at k stores.
        left: Shape (n, multipliers), ns: least cost of saved data whose input is dropped.
        spared: Shape (n + 1, multipliers), ns: at [k, i], the sum over stages before k of what each
            costs at least in a sub-chain: its saved data, or its forward a second time.
    """

    sizes: Sizes
    step: float
    memory: int
    stored: _Floats
    left: _Floats
    spared: _Floats


Tables = tuple[_Floats, _Floats]
"""Tables of sub-chains that keep their input, and of those that drop it."""


def _relaxed(sizes: Sizes, memory: int, step: float, count: int) -> _RelaxedSizes:
    multipliers: _Floats = step * np.arange(count, dtype=np.float64)
    return _RelaxedSizes(
        sizes=sizes,
        step=step,
        memory=memory,
        stored=sizes.nearest[:, None] * multipliers,
        left=(sizes.saved + sizes.made)[:, None] * multipliers,
        spared=spared_time(sizes.elapsed, sizes.saved[:, None] * multipliers),
    )


@kernel
def _inside(relaxed: _RelaxedSizes, s: int, t: int, held: int, i: int) -> float:
    """Return a bound, in ns, below the overhead of s..t + multiplier * m for every m.

    The saved data held count in m.
    """
    spared = relaxed.spared[t + 1 - held, i] - relaxed.spared[s, i]
    return float(spared + held * i * relaxed.step * relaxed.sizes.saved[t])


@kernel
def _least_restart(
    relaxed: _RelaxedSizes,
    later: Tables,
    start: tuple[int, int],
    besides: float,
    best: float,
) -> float:
    """Return the minimum of `best` and what restarts of s..n-1 cost, in ns."""
    (s, i), sizes = start, relaxed.sizes
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
                inside = _inside(relaxed, s, j - 1 + held, held, i - k)
                value = max(value, table[j, k] + k * besides + inside)
            best = min(best, rerun + value)
    return best


@kernel
def _after(relaxed: _RelaxedSizes) -> Tables:
    """Return a bound below the overhead of s..n-1 + multiplier * m for every m.

    In ns, at [s, i]. Here m are the bytes besides what is kept before ``a^s``, which itself counts
    in m. The shapes are (n + 1, multipliers).
    """
    sizes = relaxed.sizes
    n, count = len(sizes.saved), relaxed.stored.shape[1]
    kept, dropped = np.zeros((n + 1, count)), np.zeros((n + 1, count))
    at_last = relaxed.step * (sizes.gradient[n] + sizes.record[n - 1])
    for s in range(n - 1, -1, -1):
        least_input = relaxed.step * sizes.nearest[s]
        for i in range(count):
            recorded = i * at_last
            if s < n - 1:
                recorded = kept[s + 1, i] - relaxed.stored[s + 1, i] + relaxed.left[s, i]
            besides = sizes.made[s] * relaxed.step * i if s < n - 1 else 0.0
            best = _least_restart(relaxed, (kept, dropped), (s, i), 0.0, recorded - besides)
            kept[s, i] = best + relaxed.stored[s, i]
            dropped[s, i] = _least_restart(relaxed, (kept, dropped), (s, i), least_input, recorded)
    return kept, dropped


@kernel
def _least_before(
    relaxed: _RelaxedSizes, before: Tables, later: tuple[int, int], i: int, best: float
) -> float:
    """Return the minimum of `best` and what restarts cost whose later part is k..n-1, in ns."""
    (k, held), sizes = later, relaxed.sizes
    memory_cost, count = relaxed.step * relaxed.memory, relaxed.stored.shape[1]
    for s in range(k - 1, -1, -1):
        rerun = float(sizes.elapsed[k] - sizes.elapsed[s])
        if rerun >= best:
            break
        for table in range(2 if s > 0 else 1):
            cost = before[1][s] if table else before[0][s]
            fixed = rerun + (relaxed.stored[s, i] if table else 0.0)
            value = cost[i]
            for j in range(1, count - i):
                if fixed + value >= best:
                    break
                inside = _inside(relaxed, s, k - 1 + held, held, j)
                value = max(value, cost[i + j] + inside - j * memory_cost)
            best = min(best, fixed + value)
    return best


@kernel
def _before(relaxed: _RelaxedSizes) -> Tables:
    """Return a bound below the overhead of what precedes k..n-1 + multiplier * (M - m).

    In ns, at [k, i]. The sub-chain k..n-1 starts with m bytes; besides ``a^k`` where it stays,
    otherwise besides what is kept before it. The shapes are (n, multipliers).
    """
    sizes = relaxed.sizes
    n, count = len(sizes.saved), relaxed.stored.shape[1]
    kept, dropped = np.zeros((n, count)), np.full((n, count), np.inf)
    tables = kept, dropped
    for k in range(1, n):
        for i in range(count):
            last, stored = relaxed.left[k - 1, i], relaxed.stored[k, i]
            flat = kept[k - 1, i] - sizes.made[k - 1] * i * relaxed.step
            best = min(flat, dropped[k - 1, i]) + last
            kept[k, i] = stored + _least_before(relaxed, tables, (k, 0), i, best - stored)
            dropped[k, i] = _least_before(relaxed, tables, (k, 1), i, np.inf)
    return kept, dropped


@kernel
def _shared(lines: _Floats, later: _Floats, i: int) -> float:
    """Return a bound with multiplier i split into that of the whole less that of the later part."""
    best = -np.inf
    for j in range(len(lines) - i):
        best = max(best, lines[i + j] + later[j])
    return float(best)


@kernel
def _outside(relaxed: _RelaxedSizes, before: Tables, after: Tables) -> Tables:
    """Return the tables `FreeDiscardsBound.outside` and `FreeDiscardsBound.dropped`."""
    sizes = relaxed.sizes
    n, count, stored = len(sizes.saved), relaxed.stored.shape[1], relaxed.stored
    kept, dropped = np.full((2, n, n, count), np.inf), np.full((2, n, n, count), np.inf)
    passing = np.full((2, n, count), np.inf)  # at [held, t]: on the way to s since a restart
    multipliers = relaxed.step * np.arange(count)
    for s in range(n):
        kept[0, s, n - 1] = before[0][s] - multipliers * relaxed.memory
        dropped[0, s, n - 1] = before[1][s] - multipliers * relaxed.memory
        again = np.full((2, count), np.inf)  # least of s..T that have s..t as the earlier part
        for t in range(n - 1, s - 1, -1):
            for held in range(2):
                if s > 0:
                    time = float(sizes.elapsed[s] - sizes.elapsed[s - 1])
                    for i in range(count):
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
                for i in range(count):
                    best = rerun + _shared(kept[0, s, n - 1], later, i)
                    lower = np.inf
                    if s > 0:
                        last = relaxed.left[s - 1, i]
                        flat = last - sizes.made[s - 1] * multipliers[i]
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
