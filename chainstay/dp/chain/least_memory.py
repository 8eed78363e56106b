"""The least memory in which each sub-chain can run at all: the recursion without time.

With ``max`` in place of ``+`` and no time, Theorem 4.8 of [BEHJS24] becomes an O(n^3)
program over all sub-chains. It answers "what is the least feasible budget" at once, and
tells the exact program which sub-chains it need not look at.
"""

from __future__ import annotations

import numpy as np

from chainstay.dp.chain.recursion_arrays import RecursionArrays, recursion_arrays
from chainstay.dp.jit import kernel
from chainstay.dp.recursion import KEEP, Array, Recursion

__all__ = ["LeastMemory"]


class LeastMemory:
    """The least bytes, besides their input, in which stages s..t have a schedule.

    Args:
        recursion: Sizes in bytes, times in ns.
        compiled: Whether to wait for compiled code, as `chainstay.dp.chain.fronts` advises.

    Attributes:
        table: Shape (n, n), at [s, t], bytes; entries below the diagonal are 0 and mean nothing.

    Complexity:
        O(n^3) time in n array operations, O(n^2) memory.
    """

    def __init__(self, recursion: Recursion, *, compiled: bool = False) -> None:
        self._recursion = recursion
        self.table: Array = (
            _least_by_loops(recursion_arrays(recursion)) if compiled else _least(recursion)
        )

    @property
    def root(self) -> int:
        """The least memory of the whole chain, in bytes."""
        return int(self.table[0, -1])

    def decide(self, s: int, t: int, m: int) -> int:
        """Return a decision for stages s..t that fits in m >= ``table[s, t]`` bytes."""
        recursion = self._recursion
        if m >= recursion.keep_floor[s, t] and (
            s == t or m >= self.table[s + 1, t] + recursion.saved[s]
        ):
            return KEEP
        restarts = np.arange(s + 1, t + 1)
        needs = np.maximum(
            self.table[restarts, t] + recursion.fresh[s, restarts], self.table[s, s:t]
        )
        return s + 1 + int(np.argmin(np.maximum(needs, recursion.restart_floor(s, t))))


def _least(recursion: Recursion) -> Array:
    n = recursion.stages
    # The same values twice, by distance d = t - s: from_start[s, d] and from_end[t, d],
    # so that all splits of all sub-chains of one length are two rectangles.
    from_start = np.zeros((n, n), dtype=np.int64)
    from_end = np.zeros((n, n), dtype=np.int64)
    transit, keep_floor = _by_distance(recursion.transit), _by_distance(recursion.keep_floor)
    fresh = _by_distance(recursion.fresh[:, :n])
    from_start[:, 0] = from_end[:, 0] = keep_floor[:, 0]
    for d in range(1, n):
        rows = n - d
        kept = from_start[1 : rows + 1, d - 1] + recursion.saved[:rows]
        later = from_end[d:, :d][:, ::-1] + fresh[:rows, 1 : d + 1]
        floor = recursion.gradient[d + 1 : n + 1, None] + transit[:rows, :d]
        restarted = np.maximum(np.maximum(later, from_start[:rows, :d]), floor).min(axis=1)
        least = np.minimum(np.maximum(keep_floor[:rows, d], kept), restarted)
        from_start[:rows, d] = from_end[d:, d] = least
    least_of = np.zeros((n, n), dtype=np.int64)
    for d in range(n):
        np.fill_diagonal(least_of[:, d:], from_start[: n - d, d])
    return least_of


def _by_distance(square: Array) -> Array:
    """Return the array whose entry [s, d] is ``square[s, s + d]`` (0 beyond the last column)."""
    n = len(square)
    padded = np.pad(square, ((0, 0), (0, n)))
    starts = np.arange(n)[:, None]
    by_distance: Array = padded[starts, starts + np.arange(n)[None, :]]
    return by_distance


@kernel
def _least_by_loops(chain: RecursionArrays) -> Array:
    """Return what `_least` returns, column by column: much faster on long chains, once compiled."""
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
