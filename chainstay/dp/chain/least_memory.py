"""The least memory in which each sub-chain can run at all: the recursion without time.

With ``max`` in place of ``+`` and no time, Theorem 4.8 of [BEHJS24] becomes an O(n^3)
program over all sub-chains. It answers "what is the least feasible budget" at once, and
tells the exact program which sub-chains it need not look at.
"""

from __future__ import annotations

import numpy as np

from chainstay.dp.chain.recursion_arrays import ArraysByKind, recursion_arrays
from chainstay.dp.forward_costs import Array, ForwardCosts
from chainstay.dp.jit import kernel
from chainstay.dp.recursion import KEEP, Recursion
from chainstay.dp.step_functions import INFINITE


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
        recursion, costs = self._recursion, self._recursion.costs(t)
        for o in costs.options(s, t):
            end = costs.end[o]
            after = self.table[end, t] if end <= t else 0
            if m >= max(costs.keep_floor[o, t], after + costs.saved[o]):
                return KEEP - int(costs.number[o])
        restarts = np.arange(s + 1, t + 1)
        needs = np.maximum(
            self.table[restarts, t] + recursion.fresh[s, restarts], self.table[s, s:t]
        )
        return s + 1 + int(np.argmin(np.maximum(needs, recursion.restart_floor(s, t))))


def _least(recursion: Recursion) -> Array:
    n = recursion.stages
    # The same values twice, by distance d = t - s: from_start[s, d] and from_end[t, d],
    # so that all splits of all sub-chains of one length are two rectangles.
    from_start = np.zeros((n + 1, n + 1), dtype=np.int64)  # zeros at the end: nothing is left
    from_end = np.zeros((n, n), dtype=np.int64)
    first, again = _KeptStages(recursion.first), _KeptStages(recursion.again)
    transit = _by_distance(recursion.again.transit)
    held = np.append(recursion.again.held[1:-1], recursion.first.held[-1])
    fresh = _by_distance(recursion.fresh[:, :n])
    for d in range(n):
        rows = n - d
        least = first.least(from_start, d, slice(rows - 1, rows))
        if rows > 1:
            others = again.least(from_start, d, slice(0, rows - 1))
            least = np.concatenate([others, least])
        if d:
            later = from_end[d:, :d][:, ::-1] + fresh[:rows, 1 : d + 1]
            running = transit[:rows, :d].copy()
            running[-1] = recursion.first.transit[rows - 1, rows - 1 : -1]
            floor = recursion.gradient[d + 1 : n + 1, None] + held[d:, None] + running
            restarted = np.maximum(np.maximum(later, from_start[:rows, :d]), floor).min(axis=1)
            least = np.minimum(least, restarted)
        from_start[:rows, d] = from_end[d:, d] = least
    least_of = np.zeros((n, n), dtype=np.int64)
    for d in range(n):
        np.fill_diagonal(least_of[:, d:], from_start[: n - d, d])
    return least_of


class _KeptStages:
    """The keep decision for all sub-chains of one length at once.

    Args:
        costs: Costs of one kind of forwards.
    """

    def __init__(self, costs: ForwardCosts) -> None:
        count = np.diff(costs.start)
        # one row an option, one column a stage; a stage with fewer has its last one several times
        self._options = costs.start[:-1] + np.minimum(np.arange(count.max())[:, None], count - 1)
        self._costs = costs

    def least(self, from_start: Array, d: int, stages: slice) -> Array:
        """Return the least bytes to keep stage s of s..s+d, for s in `stages`.

        Args:
            from_start: At [s, d], bytes of stages s..s+d for all smaller d; 0 at [s, -1].
            d: Last stage less the first.
            stages: The first stages.
        """
        costs, options = self._costs, self._options[:, stages]
        last = np.arange(stages.start, stages.stop) + d
        end = costs.end[options]
        after = from_start[end, np.maximum(last - end, -1)]
        need = np.maximum(costs.keep_floor[options, last], after + costs.saved[options])
        need[end > last + 1] = INFINITE
        least: Array = need.min(axis=0)
        return least


def _by_distance(square: Array) -> Array:
    """Return the array whose entry [s, d] is ``square[s, s + d]`` (0 beyond the last column)."""
    n = len(square)
    padded = np.pad(square, ((0, 0), (0, n)))
    starts = np.arange(n)[:, None]
    by_distance: Array = padded[starts, starts + np.arange(n)[None, :]]
    return by_distance


@kernel
def _least_by_loops(by_kind: ArraysByKind) -> Array:
    """Return what `_least` returns, column by column: much faster on long chains, once compiled."""
    n = len(by_kind.first.start) - 1
    least = np.zeros((n, n), dtype=np.int64)
    stored = np.zeros(n, dtype=np.int64)  # at [k]: of k..t and a restart there from s
    has_skips = len(by_kind.first.fresh) > 0
    for t in range(n):
        chain = by_kind.first if t == n - 1 else by_kind.again
        for s in range(t, -1, -1):
            best = INFINITE
            for o in range(chain.start[s], chain.start[s + 1]):
                end = chain.end[o]
                if end <= t:
                    best = min(best, max(chain.keep_floor[o, t], least[end, t] + chain.saved[o]))
                elif end == t + 1:
                    best = min(best, chain.keep_floor[o, t])
            row, transit, gradient = least[s], chain.transit[s], chain.gradient[t + 1]
            if has_skips:  # from here a restart stores more than from s + 1
                for k in range(s + 2, t + 1):
                    stored[k] += chain.fresh[s, k] - chain.fresh[s + 1, k]
            for k in range(s + 1, t + 1):
                best = min(best, max(stored[k], row[k - 1], gradient + transit[k - 1]))
            row[t] = best
            stored[s] = best + chain.activation[s]
    return least
