"""A simple bound by prices: what stages outside of a sub-chain cost if memory has one.

The knapsacks of ``docs/derivations/outside-bound.md``, each relaxed by a price per byte. It
needs to know nothing of the decisions around a sub-chain, so it holds for programs that have
more kinds of them than the tables of `prices`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.recursion import Array

__all__ = ["KnapsackPrices", "knapsack_price"]

_Floats = NDArray[np.float64]

_RUNGS: Final = 17
_ROOT_RUNG: Final = 12


def knapsack_price(time: Array, saved: Array, memory: int) -> float:
    """What a byte is worth, in ns, in the fractional knapsack of forward times into `memory`.

    At this price memory for the saved data of all stages, or else their forwards a second
    time, cost the most in excess of what `memory` is worth. Positive, also where all fits.

    Args:
        time: Shape (n,), ns.
        saved: Shape (n,), bytes.
        memory: Bytes.
    """
    worth = time / np.maximum(saved, 1)
    order = np.argsort(-worth, kind="stable")
    cut = int(np.searchsorted(np.cumsum(saved[order]), memory, side="right"))
    if cut < len(order) and worth[order[cut]] > 0:
        return float(worth[order[cut]])
    return max(1, int(time.sum())) / max(1, memory, int(saved.sum()))


class KnapsackPrices:
    """Lower bounds on the overhead of a whole schedule that contains a given sub-chain.

    Args:
        elapsed: Shape (n + 1,), ns: forward time of the stages before.
        saved: Shape (n,), bytes.
        memory: M, the bytes besides the network's input.

    Attributes:
        memory: As given.
        least: No stages: of no sub-chain a least memory is known.
        rerun_time: Every forward once, ns.
        root: Lower bound on the overhead of any schedule, ns.
        step: Between two prices, ns per byte.
        around: Shape (n + 1, n + 1, prices), at [s, t + 1, i]: what a schedule spends outside of
            stages s..t, which get m bytes, is at least ``around[s, t + 1, i] + i * step * m``.

    Complexity:
        O(n^2) time and memory for each price.
    """

    def __init__(self, elapsed: Array, saved: Array, memory: int) -> None:
        self.memory = memory
        self.least: Array = np.zeros((0, 0), dtype=np.int64)
        self.rerun_time = int(elapsed[-1])
        self.step = knapsack_price(np.diff(elapsed), saved, memory) / _ROOT_RUNG
        prices: _Floats = self.step * np.arange(_RUNGS, dtype=np.float64)
        cheaper = np.minimum(np.diff(elapsed)[:, None], saved[:, None] * prices)
        spared = np.concatenate([np.zeros((1, _RUNGS)), np.cumsum(cheaper, axis=0)])
        rent = prices * memory
        self.root = float((spared[-1] - rent).max())
        # all stages outside share M; those before s share what s..t leave of it
        outside = (spared[:, None] + spared[-1] - spared[None, :] - rent).max(axis=2)
        around = np.repeat((spared - rent)[:, None], len(elapsed), axis=1)
        around[:, :, 0] = outside
        rerun = elapsed[None, :] - elapsed[:, None]
        rerun[:, -1] = 0  # stages up to the loss are no rerun
        self.around: _Floats = np.asarray(around + rerun[:, :, None], dtype=np.float64)
