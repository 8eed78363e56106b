"""A simple Lagrangian bound: the knapsacks of `knapsack_bound`, each relaxed by a multiplier.

The knapsacks of ``docs/derivations/outside-bound.md``, with memory at so many ns per byte. This
bound needs to know nothing of the decisions around a sub-chain, so it holds for programs that have
more kinds of them than the tables of `lagrangian_bound`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.recursion import Array

__all__ = ["RelaxedKnapsackBound", "knapsack_multiplier"]

_Floats = NDArray[np.float64]

_MULTIPLIER_COUNT: Final = 17
_ROOT_MULTIPLIER: Final = 12


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


class RelaxedKnapsackBound:
    """Lower bounds on the overhead of a whole schedule that contains a given sub-chain.

    Args:
        elapsed: Shape (n + 1,), ns: forward time of the stages before.
        saved: Shape (n,), bytes: saved data.
        memory: M, the bytes besides the network's input.

    Attributes:
        memory: M, the bytes besides the network's input.
        least: Shape (0, 0): no least memory of a sub-chain is known here.
        rerun_time: Every forward once, in ns.
        root: Lower bound on the overhead of any schedule, in ns.
        step: Ns per byte between two multipliers.
        outside: Shape (n + 1, n + 1, multipliers), at [s, t + 1, i]: what a schedule spends
            outside of stages s..t, which get m bytes, is at least
            ``outside[s, t + 1, i] + i * step * m`` ns.

    Complexity:
        O(n^2) time and memory for each multiplier.
    """

    def __init__(self, elapsed: Array, saved: Array, memory: int) -> None:
        self.memory = memory
        self.least: Array = np.zeros((0, 0), dtype=np.int64)
        self.rerun_time = int(elapsed[-1])
        self.step = knapsack_multiplier(np.diff(elapsed), saved, memory) / _ROOT_MULTIPLIER
        multipliers: _Floats = self.step * np.arange(_MULTIPLIER_COUNT, dtype=np.float64)
        cheaper = np.minimum(np.diff(elapsed)[:, None], saved[:, None] * multipliers)
        spared = np.concatenate([np.zeros((1, _MULTIPLIER_COUNT)), np.cumsum(cheaper, axis=0)])
        memory_cost = multipliers * memory
        self.root = float((spared[-1] - memory_cost).max())
        # all stages outside share M; those before s share what s..t leave of it
        outside = (spared[:, None] + spared[-1] - spared[None, :] - memory_cost).max(axis=2)
        table = np.repeat((spared - memory_cost)[:, None], len(elapsed), axis=1)
        table[:, :, 0] = outside
        rerun = elapsed[None, :] - elapsed[:, None]
        rerun[:, -1] = 0  # stages up to the loss are no rerun
        self.outside: _Floats = np.asarray(table + rerun[:, :, None], dtype=np.float64)
