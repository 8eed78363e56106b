"""The least memory of weakly persistent schedules: the recurrence of `solver` without times."""

from __future__ import annotations

import numpy as np

from chainstay.dp.chain.recursion_arrays import ArraysByKind, RecursionArrays
from chainstay.dp.forward_costs import Array
from chainstay.dp.jit import kernel
from chainstay.dp.step_functions import INFINITE


@kernel
def front_numbers(n: int) -> Array:
    """Return at [s, t] a number that, with l added, is another one for each W(s, t, l, ·)."""
    row, count = np.zeros((n, n), dtype=np.int64), 0
    for s in range(n):
        for t in range(s, n):
            row[s, t] = count - t
            count += n - t
    return row


@kernel
def _least_kept(chain: RecursionArrays, least: Array, row: Array, s: int, end: int) -> int:
    """Return the least bytes for keeping stages from s on under any option, and then all others."""
    best = INFINITE
    for o in range(chain.start[s], chain.start[s + 1]):
        k, need = chain.end[o], chain.keep_floor[o, end]
        if k <= end:
            need = max(need, least[row[k, k] + end] + chain.saved[o])
        if k <= end + 1:
            best = min(best, need)
    return int(best)


@kernel
def least_weak_memory(by_kind: ArraysByKind) -> int:
    """Return the least bytes, besides its input, for a weakly persistent schedule of the chain."""
    n = len(by_kind.first.start) - 1
    row = front_numbers(n)
    least = np.full(row[n - 1, n - 1] + n, INFINITE, dtype=np.int64)
    for end in range(n):
        chain = by_kind.first if end == n - 1 else by_kind.again
        gradient = chain.gradient[end + 1]
        rest = np.full(n, INFINITE, dtype=np.int64)
        for s in range(end, -1, -1):
            first_step = gradient + chain.transit[s, s]
            for t in range(s, end + 1):
                if s == t:
                    best = _least_kept(chain, least, row, s, end)
                else:
                    after = least[row[s + 1, t] + end]
                    moved = after + chain.activation[s + 1] - chain.activation[s]
                    best = max(first_step, moved)
                earlier = least[row[s, t] + t : row[s, t] + end]
                for k in range(t + 1, end + 1):
                    best = min(best, max(first_step, rest[k], earlier[k - 1 - t]))
                least[row[s, t] + end] = best
            moving = first_step + chain.activation[s]
            for t in range(s, end + 1):
                stored = least[row[s, t] + end] + chain.activation[s]
                rest[t] = min(stored, max(rest[t], moving))
    return int(least[row[0, 0] + n - 1])
