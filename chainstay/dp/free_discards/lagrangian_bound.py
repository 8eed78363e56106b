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
from chainstay.dp.bounds.knapsack_bound import best_multiplier, knapsack_multiplier, spared_time
from chainstay.dp.bounds.lagrangian_bound import SLACK_WITH_OPTIONS, LagrangianBound
from chainstay.dp.forward_costs import Array
from chainstay.dp.free_discards.sizes import HELD, RETURNED, STAYS, Sizes, SizesByKind
from chainstay.dp.jit import kernel

_Floats = NDArray[np.float64]


class FreeDiscardsBound:
    """The bounds of a `MultiplierBound` under free discards; no least memory is known here.

    Args:
        by_kind: Sizes and times of the chain.
        memory: M, the bytes besides the network's input.

    Attributes:
        outside: Shape (2, n, n, multipliers), at [held, s, t, i]: what a schedule spends outside
            of a sub-chain s..t with m bytes is at least ``outside[held, s, t, i] + i * step * m``
            ns.
        dropped: Shape (2, n, n, multipliers): the same for sub-chains that drop their input; m
            bytes besides that input.

    Complexity:
        O(n^2) time and memory for each pair of multipliers.
    """

    slack: float = LagrangianBound.slack

    def __init__(self, by_kind: SizesByKind, memory: int) -> None:
        first = by_kind.first
        self.memory = memory
        self.least: Array = np.zeros((0, 0), dtype=np.int64)
        self.rerun_time = int(max(sizes.elapsed[-1] for sizes in by_kind))
        # The multiplier of the knapsack of the whole chain: these schedules come close to that
        # knapsack, and its multiplier is found at once.
        if len(first.saved) == len(first.node) and not first.extra.any():
            multiplier = knapsack_multiplier(np.diff(first.elapsed), first.saved, memory)
        else:
            self.slack, multiplier = SLACK_WITH_OPTIONS, _option_multiplier(first, memory)
        self.step = multiplier / ROOT_MULTIPLIER
        relaxed = _relaxed(by_kind, memory, self.step, MULTIPLIER_COUNT)
        after = _after(relaxed)
        memory_cost = np.arange(MULTIPLIER_COUNT) * self.step * (memory + first.nearest[0])
        self.root = float(np.max(after[0][0] - memory_cost))
        last = _last_parts(first, after)
        self.outside, self.dropped = _outside(relaxed, _before(relaxed), last)


class _RelaxedSizes(NamedTuple):
    """A chain whose memory costs a multiplier per byte, for all multipliers.

    Attributes:
        sizes: The chain with forwards that run first.
        elapsed: Shape (n + 1,), ns: overhead of running the stages before once more.
        step: Ns per byte between two multipliers.
        memory: M, the bytes besides the network's input.
        stored: Shape (n + 1, multipliers), ns: at [k, i], least cost of what a restart at k stores.
        kept: Shape (options, multipliers), ns: cost of recording a stage in its first run.
        left: Shape (2, n, multipliers), ns: least cost of saved data whose input is dropped, made
            in a first run or in a later one.
        left_held: Shape (n,): the least bytes of saved data that a restart leaves held.
        spared: Shape (n + 1, multipliers), ns: at [k, i], the sum over stages before k of what each
            costs at least in a sub-chain: its saved data, or its forward a second time.
    """

    sizes: Sizes
    elapsed: Array
    step: float
    memory: int
    stored: _Floats
    kept: _Floats
    left: _Floats
    left_held: Array
    spared: _Floats


Tables = tuple[_Floats, _Floats]
"""Tables of sub-chains that keep their input, and of those that drop it.

By stage; those of `_after` that drop it, by option.
"""


def _relaxed(by_kind: SizesByKind, memory: int, step: float, count: int) -> _RelaxedSizes:
    multipliers: _Floats = step * np.arange(count, dtype=np.float64)
    sizes, again = by_kind
    made = sizes.made[:, None] * multipliers
    kept = [kind.extra[:, None] + kind.saved[:, None] * multipliers for kind in by_kind]
    least = [np.minimum.reduceat(costs, sizes.start[:-1]) for costs in kept]
    return _RelaxedSizes(
        sizes=sizes,
        elapsed=again.elapsed,
        step=step,
        memory=memory,
        stored=sizes.nearest[:, None] * multipliers,
        kept=kept[0],
        left=np.stack([least[0] + made, least[1] + made]),
        left_held=np.minimum.reduceat(_left_held(sizes), sizes.start[:-1]),
        spared=spared_time(again.elapsed, least[1]),
    )


def _left_held(sizes: Sizes) -> Array:
    """Return the bytes that a restart leaves held under each option."""
    return np.where(sizes.outlives == HELD, sizes.saved, 0)


def _option_multiplier(sizes: Sizes, memory: int) -> float:
    """Return the multiplier, in ns per byte, at which the knapsack of all options bounds best."""

    def spared(multiplier: float) -> float:
        kept = np.minimum.reduceat(sizes.extra + sizes.saved * multiplier, sizes.start[:-1])
        return float(np.minimum(np.diff(sizes.elapsed), kept).sum())

    return best_multiplier(spared, int(sizes.elapsed[-1]), memory)


@kernel
def _inside(relaxed: _RelaxedSizes, s: int, j: int, held: int, i: int) -> float:
    """Return a bound, in ns, below the overhead of s..j-1 + multiplier * m for every m.

    `held` bytes of saved data count in m.
    """
    return float(relaxed.spared[j, i] - relaxed.spared[s, i] + i * relaxed.step * held)


@kernel
def _least_restart(
    relaxed: _RelaxedSizes, later: Tables, start: tuple[int, int], besides: float, best: float
) -> float:
    """Return the minimum of `best` and what restarts of s..n-1 cost, in ns."""
    (s, i), sizes = start, relaxed.sizes
    n = len(sizes.node)
    for j in range(s + 1, n):
        rerun = float(sizes.elapsed[j] - sizes.elapsed[s])
        if rerun >= best:
            break
        for o in range(sizes.start[j] - 1, sizes.start[j + 1]):
            is_left = o >= sizes.start[j]
            if is_left and sizes.outlives[o] == STAYS:
                continue
            lines = later[1][o] if is_left else later[0][j]
            held = sizes.saved[o] if is_left and sizes.outlives[o] == HELD else 0
            value = lines[i] + i * besides
            for k in range(i):
                if rerun + value >= best:
                    break
                inside = _inside(relaxed, s, j, held, i - k)
                value = max(value, lines[k] + k * besides + inside)
            best = min(best, rerun + value)
    return best


@kernel
def _after(relaxed: _RelaxedSizes) -> Tables:
    """Return a bound below the overhead of s..n-1 + multiplier * m for every m.

    In ns, at [s, i], or at [o, i] if stage s is recorded under option o and its input dropped. Here
    m are the bytes besides what is kept before ``a^s``, which itself counts in m. The shapes are
    (n + 1, multipliers) and (options, multipliers).
    """
    sizes = relaxed.sizes
    n, count = len(sizes.node), relaxed.stored.shape[1]
    kept, dropped = np.zeros((n + 1, count)), np.zeros((len(sizes.saved), count))
    for s in range(n - 1, -1, -1):
        least_input = relaxed.step * sizes.nearest[s]
        start, end = sizes.start[s], sizes.start[s + 1]
        for i in range(count):
            made = sizes.made[s] * relaxed.step * i if s < n - 1 else 0.0
            for o in range(start, end):
                dropped[o, i] = sizes.extra[o]
                if s == n - 1:
                    dropped[o, i] += i * (relaxed.step * (sizes.gradient[n] + sizes.record[o]))
                else:
                    dropped[o, i] = kept[s + 1, i] - relaxed.stored[s + 1, i]
                    dropped[o, i] += relaxed.kept[o, i] + made
            recorded = dropped[start:end, i]
            best = _least_restart(relaxed, (kept, dropped), (s, i), 0.0, recorded.min() - made)
            kept[s, i] = best + relaxed.stored[s, i]
            most = recorded.max()
            most = _least_restart(relaxed, (kept, dropped), (s, i), least_input, most)
            for o in range(start, end):
                dropped[o, i] = min(dropped[o, i], most)
    return kept, dropped


def _last_parts(sizes: Sizes, after: Tables) -> _Floats:
    """Return what stages from t + 1 on, or t where its saved data are left, cost at least in ns.

    At [0, t, i] if a restart leaves nothing held, at [1, t, i] if it leaves saved data of stage t.
    The shape is (2, n, multipliers).
    """
    kept, dropped = after
    last = np.stack([kept[1:], np.full_like(kept[1:], np.inf)])
    for o, stage in enumerate(np.repeat(np.arange(len(sizes.node)), np.diff(sizes.start))):
        if sizes.outlives[o] == HELD:
            last[1, stage] = np.minimum(last[1, stage], dropped[o])
        if sizes.outlives[o] == RETURNED and stage:
            last[0, stage - 1] = np.minimum(last[0, stage - 1], dropped[o])
    return last


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
                inside = _inside(relaxed, s, k, held * relaxed.left_held[k], j)
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
    n, count = len(sizes.node), relaxed.stored.shape[1]
    kept, dropped = np.zeros((n, count)), np.full((n, count), np.inf)
    tables = kept, dropped
    for k in range(1, n):
        for i in range(count):
            last, stored = relaxed.left[0, k - 1, i], relaxed.stored[k, i]
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
def _outside(relaxed: _RelaxedSizes, before: Tables, last_parts: _Floats) -> Tables:
    """Return the tables `FreeDiscardsBound.outside` and `FreeDiscardsBound.dropped`."""
    sizes, elapsed = relaxed.sizes, relaxed.elapsed
    n, count, stored = len(sizes.node), relaxed.stored.shape[1], relaxed.stored
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
                    time = float(elapsed[s] - elapsed[s - 1])
                    for i in range(count):
                        least = min(
                            passing[held, t, i],
                            kept[held, s - 1, t, i],
                            dropped[held, s - 1, t, i] + stored[s - 1, i],
                        )
                        passing[held, t, i] = least + time
                if t == n - 1 and not held:
                    continue
                rerun = float(elapsed[t + 1 - held] - elapsed[s])
                first_rerun = float(sizes.elapsed[t + 1 - held] - sizes.elapsed[s])
                later = last_parts[held, t]
                for i in range(count):
                    best = first_rerun + _shared(kept[0, s, n - 1], later, i)
                    lower = np.inf
                    if s > 0:
                        last = relaxed.left[1, s - 1, i]
                        flat = last - sizes.made[s - 1] * multipliers[i]
                        best = min(best, kept[held, s - 1, t, i] + flat)
                        best = min(best, dropped[held, s - 1, t, i] + last)
                        best = min(best, passing[held, t, i] + stored[s, i])
                        lower = first_rerun + _shared(dropped[0, s, n - 1], later + stored[s], i)
                        lower = min(lower, passing[held, t, i])
                    kept[held, s, t, i] = min(best, again[0, i] + rerun)
                    dropped[held, s, t, i] = min(lower, again[1, i] + rerun)
                    again[0, i] = min(again[0, i], best)
                    again[1, i] = min(again[1, i], lower)
    for s in range(n):
        dropped[:, s] += stored[s]
    return kept, dropped
