"""A simple Lagrangian bound: knapsacks of saved data, each relaxed by a multiplier.

A stage's forward runs once only if its first run was ``Fa`` and its saved data then stayed
until its backward. All such stages are in memory together when the loss runs, so the time
they spare is at most a fractional knapsack of forward times over saved bytes. The proof is
in ``docs/derivations/outside-bound.md``; `lagrangian_bound` is tighter, and takes longer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.bounds.bound_pruning import MULTIPLIER_COUNT, ROOT_MULTIPLIER
from chainstay.dp.chain.recursion_arrays import RecursionArrays
from chainstay.dp.recursion import Array

__all__ = ["KnapsackBound", "knapsack_multiplier", "spared_time"]

_Floats = NDArray[np.float64]


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


def spared_time(elapsed: Array, saved: Array, multipliers: _Floats) -> _Floats:
    """Return at [k, i] the least that stages before k cost: saved data, or a second forward.

    Args:
        elapsed: Shape (n + 1,), ns: forward time of the stages before.
        saved: Shape (n,), bytes: saved data.
        multipliers: Shape (multipliers,), ns per byte.

    Returns:
        Shape (n + 1, multipliers), ns.
    """
    cheaper = np.minimum(np.diff(elapsed)[:, None], saved[:, None] * multipliers)
    return np.concatenate([np.zeros((1, len(multipliers))), np.cumsum(cheaper, axis=0)])


class KnapsackBound:
    """Lower bounds on the overhead of a whole schedule that contains a given sub-chain.

    Args:
        chain: Sizes in bytes, times in ns.
        memory: M, the bytes besides the network's input.
        least: Shape (n, n), at [s, t]: bytes that stages s..t need at least.

    Attributes:
        memory: M, the bytes besides the network's input.
        least: Shape (n, n), at [s, t]: bytes that stages s..t need at least.
        rerun_time: Every forward once, in ns.
        root: Lower bound on the overhead of any schedule, in ns.
        slack: What a first limit lies above `root`, as a share of `rerun_time`.
        step: Ns per byte between two multipliers.
        outside: Shape (n, n, multipliers), at [s, t, i]: what a schedule spends outside of stages
            s..t, which get m bytes, is at least ``outside[s, t, i] + i * step * m`` ns.

    Complexity:
        O(n^2) time and memory for each multiplier.
    """

    slack: float = 0.005

    def __init__(self, chain: RecursionArrays, memory: int, least: Array) -> None:
        elapsed, saved = chain.elapsed, chain.saved
        self.memory, self.least = memory, least
        self.rerun_time = int(elapsed[-1])
        self.step = knapsack_multiplier(np.diff(elapsed), saved, memory) / ROOT_MULTIPLIER
        multipliers: _Floats = self.step * np.arange(MULTIPLIER_COUNT, dtype=np.float64)
        spared = spared_time(elapsed, saved, multipliers)
        memory_cost = multipliers * memory
        self.root = float((spared[-1] - memory_cost).max())
        # all stages outside share M; those before s share what s..t leave of it
        all_around = spared[:-1, None] + spared[-1] - spared[None, 1:] - memory_cost
        table = np.repeat((spared[:-1] - memory_cost)[:, None], len(saved), axis=1)
        table[:, :, 0] = all_around.max(axis=2)
        rerun = elapsed[None, 1:] - elapsed[:-1, None]
        rerun[:, -1] = 0  # stages up to the loss are no rerun
        self.outside: _Floats = np.asarray(table + rerun[:, :, None], dtype=np.float64)
