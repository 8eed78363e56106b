"""Least overhead outside of a sub-chain, by a knapsack: the bound that prunes the numpy engine.

A stage's forward runs once only if its first run was ``Fa`` and its saved data then stayed
until its backward. All such stages are in memory together when the loss runs, so the time
they spare is at most a fractional knapsack of forward times over saved bytes. The proof is
in ``docs/derivations/outside-bound.md``.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.recursion import Array, Recursion

__all__ = ["KnapsackBound", "OverheadLimit"]

_Floats = NDArray[np.float64]


class KnapsackBound:
    """Lower bounds on the overhead of a whole schedule that contains a given sub-chain.

    Args:
        recursion: Sizes in bytes, times in ns.
        memory: M, the bytes besides the network's input.

    Attributes:
        memory: M, the bytes besides the network's input.
        elapsed: Shape (n + 1,), ns: forward time of the stages before.
        root: Lower bound on the overhead of any schedule, in ns.
        outside: Shape (n, n), ns: at [s, t], overhead outside s..t plus, unless t is the loss,
            one rerun of s..t, which a sub-chain that ends before the loss is.
        prefix_size: Shape (n + 1, n + 1): row s has the breakpoints of the fractional knapsack
            of the stages before s, in bytes, ascending.
        prefix_time: Shape (n + 1, n + 1): the ns spared at each of these breakpoints.

    Complexity:
        O(n^2) time and memory.
    """

    def __init__(self, recursion: Recursion, memory: int) -> None:
        n = recursion.stages
        self.memory = memory
        self.elapsed = recursion.elapsed
        time, size = np.diff(recursion.elapsed), recursion.saved
        with np.errstate(divide="ignore", invalid="ignore"):
            worth = np.where(size > 0, time / size, np.where(time > 0, np.inf, 0.0))
        order = np.argsort(-worth, kind="stable").astype(np.int64)
        is_before = order[None, :] < np.arange(n + 1)[:, None]
        self.prefix_size = _running_sum(np.where(is_before, size[order], 0))
        self.prefix_time = _running_sum(np.where(is_before, time[order], 0))
        self.root = max(0.0, float(self.elapsed[n]) - float(self._spared(n, np.array(memory))))
        outside = self.elapsed[n] - _spared_outside(order, size, time, memory)
        outside[:, -1] = 0.0
        self.outside = np.maximum(outside, 0.0)

    def before(self, s: int, memory: Array) -> _Floats:
        """Return the least ns of overhead before stage s if the others take `memory` bytes."""
        return np.asarray(self.elapsed[s] - self._spared(s, self.memory - memory))

    def largest_memory(self, s: int, slack: float) -> int:
        """Return the most bytes that stages from s on may take if ``before(s, ·) <= slack``."""
        needed = self.elapsed[s] - slack
        if needed <= 0:
            return self.memory
        size, time = self.prefix_size[s], self.prefix_time[s]
        if time[-1] < needed:
            return -1
        corner = int(np.searchsorted(time, needed))
        share = (needed - time[corner - 1]) / (time[corner] - time[corner - 1])
        least_size = size[corner - 1] + share * (size[corner] - size[corner - 1])
        return int(self.memory - least_size) + 1

    def _spared(self, s: int, memory: Array) -> _Floats:
        """Return the ns spared by stages before s in `memory` bytes, a fractional knapsack."""
        return np.asarray(np.interp(memory, self.prefix_size[s], self.prefix_time[s]))


class OverheadLimit:
    """A limit on the overhead of whole schedules, and what it leaves to sub-chains.

    Attributes:
        overhead: Ns; a little more than the limit, to cover the rounding of the bounds, which are
            sums of doubles.
        bound: The bound for the memory that is solved for.
    """

    _ROUNDING: Final = 2.0**-40

    def __init__(self, overhead: int, bound: KnapsackBound) -> None:
        self.overhead = overhead * (1 + self._ROUNDING) + 1.0
        self.bound = bound

    def largest_overhead(self, s: int, t: int) -> float:
        """Return the most overhead, in ns, that stages s..t may have, whatever their memory."""
        return float(self.overhead - self.bound.outside[s, t])

    def largest_memory(self, s: int, t: int) -> int:
        """Return the most memory, in bytes, that stages s..t may have, whatever their overhead."""
        return self.bound.largest_memory(s, self.overhead - self._rerun(s, t))

    def before(self, s: int, t: int, memory: Array) -> _Floats:
        """Return the most overhead of stages s..t, in ns, given what stages before s must cost."""
        slack: _Floats = self.overhead - self._rerun(s, t) - self.bound.before(s, memory)
        return slack

    def _rerun(self, s: int, t: int) -> float:
        """Return the ns of one rerun of stages s..t, 0 if they end at the loss."""
        elapsed = self.bound.elapsed
        return float(elapsed[t + 1] - elapsed[s]) if t < len(elapsed) - 2 else 0.0


def _spared_outside(order: Array, size: Array, time: Array, memory: int) -> _Floats:
    """Return the fractional knapsacks of all stages but s..t into `memory` bytes, at [s, t].

    Taking stage t out of the knapsack for s..t-1 frees room, so that the item which is cut
    moves on through `order` only: n steps for each s. `order` is by falling worth.
    """
    n = len(order)
    spared = np.zeros((n, n))
    rank = np.argsort(order)
    for s in range(n):
        whole_size, whole_time, cut = 0, 0, 0
        for t in range(s - 1, n):
            if t >= s and rank[t] < cut:
                whole_size -= size[t]
                whole_time -= time[t]
            while cut < n:
                item = order[cut]
                if not s <= item <= t:
                    if whole_size + size[item] > memory:
                        break
                    whole_size += size[item]
                    whole_time += time[item]
                cut += 1
            if t >= s:
                spared[s, t] = whole_time
                if cut < n:
                    spared[s, t] += time[order[cut]] * ((memory - whole_size) / size[order[cut]])
    return spared


def _running_sum(rows: Array) -> Array:
    sums: Array = np.pad(np.cumsum(rows, axis=1), ((0, 0), (1, 0)))
    return sums
