"""The recursion's sizes and times as compiled code takes them, and the least memory from them.

`chainstay.dp.chain.least_memory` computes the same in numpy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chainstay.dp.jit import kernel
from chainstay.dp.recursion import Array, Recursion

__all__ = [
    "RecursionArrays",
    "input_bytes",
    "least_memory_table",
    "recursion_arrays",
    "stored_at",
]


class RecursionArrays(NamedTuple):
    """A `Recursion` for compiled code, where every array of an argument costs a little.

    Attributes:
        elapsed: Shape (n + 1,), ns: forward time of stages ``0..i-1``.
        activation: Shape (n + 1,), at [k]: bytes that a restart at k stores; with skips, the
            least that it stores, and `fresh` tells how much.
        fresh: Shape (n, n + 1), at [s, k], bytes of ``a^k`` that are no part of ``a^s``; of
            shape (0, 0) for chains without skips.
        saved: Shape (n,), bytes of saved data.
        gradient: Shape (n + 1,), bytes of gradients.
        keep_floor: Shape (n, n), at [s, t]: least bytes for ``Fa`` and ``B`` of stage s.
        transit: Shape (n, n), at [s, k-1]: bytes that running ``s..k-1`` needs besides ``δ``.
    """

    elapsed: Array
    activation: Array
    fresh: Array
    saved: Array
    gradient: Array
    keep_floor: Array
    transit: Array


def recursion_arrays(recursion: Recursion) -> RecursionArrays:
    """Return the arrays of `recursion` that compiled code needs."""
    return RecursionArrays(
        elapsed=recursion.elapsed,
        activation=recursion.nearest,
        fresh=recursion.fresh if recursion.has_skips else np.empty((0, 0), dtype=np.int64),
        saved=recursion.saved,
        gradient=recursion.gradient,
        keep_floor=recursion.keep_floor,
        transit=recursion.transit,
    )


@kernel
def stored_at(chain: RecursionArrays, s: int, k: int) -> int:
    """Return the bytes that a restart at k stores besides ``a^s``."""
    return int(chain.fresh[s, k] if len(chain.fresh) else chain.activation[k])


@kernel
def input_bytes(chain: RecursionArrays, s: int) -> int:
    """Return the bytes that the input of stage s takes at least: by itself, or in saved data."""
    return min(chain.activation[s], chain.saved[s - 1]) if s > 0 else 0


@kernel
def least_memory_table(chain: RecursionArrays) -> Array:
    """Return `LeastMemory.table`, computed column by column."""
    n = len(chain.saved)
    least = np.zeros((n, n), dtype=np.int64)
    stored = np.zeros(n, dtype=np.int64)  # at [k]: of k..t and a restart there from s
    has_skips = len(chain.fresh) > 0
    for t in range(n):
        for s in range(t, -1, -1):
            best = chain.keep_floor[s, t]
            if s < t:
                best = max(best, least[s + 1, t] + chain.saved[s])
            row, transit, gradient = least[s], chain.transit[s], chain.gradient[t + 1]
            if has_skips:  # from here a restart stores more than from s + 1
                for k in range(s + 2, t + 1):
                    stored[k] += chain.fresh[s, k] - chain.fresh[s + 1, k]
            for k in range(s + 1, t + 1):
                best = min(best, max(stored[k], row[k - 1], gradient + transit[k - 1]))
            row[t] = best
            stored[s] = best + chain.activation[s]
    return least
