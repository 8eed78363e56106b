"""What a sub-chain's surroundings must cost at least: the bound that prunes the exact program.

A stage's forward runs once only if its first run was ``Fa`` and its saved data then stayed
until its backward. All such stages are in memory together when the loss runs, so the time
they spare is at most a fractional knapsack of forward times over saved bytes. The proof is
in ``docs/derivations/outside-bound.md``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.recursion import Array, Recursion

__all__ = ["OutsideBound"]

_Floats = NDArray[np.float64]


class OutsideBound:
    """Lower bounds on the overhead of a whole schedule that contains a given sub-chain.

    Args:
        recursion: In bytes and ns.
        memory: M, the bytes besides the network's input.

    Attributes:
        root: Lower bound on the overhead of any schedule.
        around: Shape (n, n): at [s, t], overhead outside s..t plus, unless t is the loss,
            one rerun of s..t, which a sub-chain that ends before the loss is.

    Complexity:
        O(n^3) time in n^2 array operations, O(n^2) memory.
    """

    root: float
    around: _Floats

    def __init__(self, recursion: Recursion, memory: int) -> None:
        n = recursion.stages
        self._memory = memory
        self._elapsed = recursion.elapsed.astype(np.float64)
        time, size = np.diff(self._elapsed), recursion.saved.astype(np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            worth = np.where(size > 0, time / size, np.inf)
        order = np.argsort(-worth, kind="stable")
        self._prefix_size, self._prefix_time = [], []
        order = order[time[order] > 0]
        for s in range(n + 1):
            chosen = order[order < s]
            self._prefix_size.append(np.concatenate([[0.0], np.cumsum(size[chosen])]))
            self._prefix_time.append(np.concatenate([[0.0], np.cumsum(time[chosen])]))
        self.root = max(0.0, self._elapsed[n] - float(self._spared(n, np.array(float(memory)))))
        self.around = self._around(order, time, size)

    def before(self, s: int, memory: Array) -> _Floats:
        """Least overhead of stages before s when stages from s on take `memory` bytes."""
        spared = self._spared(s, (self._memory - memory).astype(np.float64))
        return np.asarray(self._elapsed[s] - spared)

    def largest_memory(self, s: int, slack: float) -> int:
        """The most bytes that stages from s on may take if ``before(s, ·) <= slack``."""
        needed = self._elapsed[s] - slack
        if needed <= 0:
            return self._memory
        size, time = self._prefix_size[s], self._prefix_time[s]
        if time[-1] < needed:
            return -1
        least_size = np.interp(needed, time, size)
        return int(self._memory - least_size) + 1

    def _spared(self, s: int, memory: _Floats) -> _Floats:
        """Fractional knapsack of the forward times of stages before s into `memory` bytes."""
        return np.asarray(np.interp(memory, self._prefix_size[s], self._prefix_time[s]))

    def _around(self, order: Array, time: _Floats, size: _Floats) -> _Floats:
        n = len(time)
        around = np.zeros((n, n))
        for s in range(n - 1):
            ends = np.arange(s, n - 1)
            outside = (order[None, :] < s) | (order[None, :] > ends[:, None])
            sizes = np.where(outside, size[order], 0.0)
            times = np.where(outside, time[order], 0.0)
            around[s, ends] = times.sum(axis=1) - self._knapsacks(sizes, times)
            around[s, ends] += self._elapsed[ends + 1] - self._elapsed[s]
        return np.maximum(around, 0.0)

    def _knapsacks(self, sizes: _Floats, times: _Floats) -> _Floats:
        """Time spared by each row's items, taken in order, the last one in part."""
        if not sizes.shape[1]:
            return np.zeros(len(sizes))
        filled = np.cumsum(sizes, axis=1)
        whole = filled <= self._memory
        room = self._memory - np.where(whole, sizes, 0.0).sum(axis=1)
        spared: _Floats = np.where(whole, times, 0.0).sum(axis=1)
        cut = np.argmin(whole, axis=1)[:, None]
        cut_size = np.take_along_axis(sizes, cut, axis=1)[:, 0]
        cut_time = np.take_along_axis(times, cut, axis=1)[:, 0]
        share = room / np.where(cut_size > 0, cut_size, 1.0)
        part: _Floats = np.where(whole.all(axis=1), 0.0, cut_time * share)
        return spared + part
