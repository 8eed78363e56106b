"""A chain as compiled code takes it, and the least memory of its sub-chains.

`LeastMemory` says the same in numpy.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chainstay.dp.jit import kernel
from chainstay.dp.recursion import Array

__all__ = ["Chain", "input_bytes", "least_memory", "stored_at"]


class Chain(NamedTuple):
    """`Recursion` as compiled code takes it: every array costs each call a little.

    Attributes:
        elapsed: As in `Recursion`.
        activation: Shape (n + 1,), at [k]: bytes that restarting at k stores; with skips, that
            it stores at least, and `fresh` tells how much.
        fresh: As in `Recursion`; of shape (0, 0) for chains without skips.
        saved: As in `Recursion`.
        gradient: Likewise.
        keep_floor: Likewise.
        transit: Likewise.
    """

    elapsed: Array
    activation: Array
    fresh: Array
    saved: Array
    gradient: Array
    keep_floor: Array
    transit: Array


@kernel
def stored_at(chain: Chain, s: int, k: int) -> int:
    """Bytes that restarting at k stores besides ``a^s``."""
    return int(chain.fresh[s, k] if len(chain.fresh) else chain.activation[k])


@kernel
def input_bytes(chain: Chain, s: int) -> int:
    """Bytes, at least, that the input of stage s takes: by itself, or in saved data."""
    return min(chain.activation[s], chain.saved[s - 1]) if s > 0 else 0


@kernel
def least_memory(chain: Chain) -> Array:
    """Table of `LeastMemory`, column by column."""
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
