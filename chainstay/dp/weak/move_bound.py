"""A lower bound on what is spent outside of a state whose checkpoint may move on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.bounds.bound_pruning import PruningLimit
from chainstay.dp.chain.recursion_arrays import ArraysByKind, SweepArrays
from chainstay.dp.jit import kernel


class WeakState(NamedTuple):
    """The s, t and l of W(s, t, l, ·)."""

    s: int
    t: int
    end: int


class MoveBound(NamedTuple):
    """A lower bound on what is spent outside of W(s, t, l, m) with s < t: a^s may move on.

    With i the index of a multiplier, the bound in ns is ``min(as_later, elapsed[l+1] - elapsed[s]
    + as_earlier) + i * step * (m + a[s])``.

    Attributes:
        as_later: Shape (n, n, multipliers), at [t, l, i], ns: when (·, t, l) is the later part of
            a restart.
        as_earlier: Shape (n, n, multipliers), at [t, l, i], ns: when it is the earlier part.
    """

    as_later: NDArray[np.float64]
    as_earlier: NDArray[np.float64]


@kernel
def move_bound(
    by_kind: ArraysByKind, outside: NDArray[np.float64], restarted: NDArray[np.float64]
) -> MoveBound:
    """Return the bound for moving checkpoints, from two tables of `LagrangianBound`."""
    n, _, count = outside.shape
    first, elapsed = by_kind.first.elapsed, by_kind.again.elapsed
    as_later, as_earlier = np.full((n, n, count), np.inf), np.full((n, n, count), np.inf)
    for t in range(1, n):
        as_later[t] = np.minimum(as_later[t - 1], outside[t - 1]) + (elapsed[t] - elapsed[t - 1])
        as_later[t, n - 1] += (first[t] - elapsed[t]) - (first[t - 1] - elapsed[t - 1])
        again = np.full(count, np.inf)
        for end in range(n - 2, t - 1, -1):
            rerun = elapsed[end + 1] - elapsed[t]
            more = first[end + 1] - first[t] - rerun  # where the stages run first
            for i in range(count):
                best = -np.inf
                for j in range(count - i):
                    later = more + restarted[end + 1, j]
                    best = max(best, as_later[t, n - 1, i + j] + later)
                as_earlier[t, end, i] = min(best, again[i])
                again[i] = min(again[i], as_later[t, end, i], rerun + best)
    return MoveBound(as_later, as_earlier)


@kernel
def write_move_lines(
    chain: SweepArrays,
    limit: PruningLimit,
    bound: MoveBound,
    state: WeakState,
    lines: NDArray[np.float64],
) -> bool:
    """Write the bound outside of a state with s < t to `lines`, one entry for each multiplier."""
    s, t, end = state
    needed = chain.gradient[end + 1] + chain.transit[s, s]
    rerun = chain.elapsed[end + 1] - chain.elapsed[s]
    for i in range(len(lines) - 1, -1, -1):
        spent = min(bound.as_later[t, end, i], rerun + bound.as_earlier[t, end, i])
        lines[i] = spent + i * limit.step * chain.activation[s]
        if lines[i] + i * limit.step * needed > limit.overhead:
            return False
    return True
