"""What cannot matter, inside compiled code: the least memory and the outside bound.

`Limit` and `LeastMemory` say the same in numpy.
"""
# ruff: noqa: PLR0913, PLR0917  # compiled code has no objects to hold what it needs

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp import outside
from chainstay.dp.jit import kernel
from chainstay.dp.recursion import Array
from chainstay.dp.steps import Steps

__all__ = [
    "Bounds",
    "Chain",
    "input_bytes",
    "least_memory",
    "matters",
    "room",
    "spared_around",
    "stored_at",
]

spared_around = kernel(outside.spared_around)


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


class Bounds(NamedTuple):
    """What prunes: `limit` and `memory` as in `Limit`, tables of `OutsideBound`."""

    limit: float
    memory: int
    around: NDArray[np.float64]
    prefix_size: Array
    prefix_time: Array


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


@kernel
def _largest_memory(bounds: Bounds, s: int, needed: float) -> int:
    """The most memory from stage s on if stages before it are to spare `needed` ns."""
    if needed <= 0:
        return bounds.memory
    size, time = bounds.prefix_size[s], bounds.prefix_time[s]
    if time[-1] < needed:
        return -1
    corner = np.searchsorted(time, needed)
    share = (needed - time[corner - 1]) / (time[corner] - time[corner - 1])
    least_size = size[corner - 1] + share * (size[corner] - size[corner - 1])
    return int(bounds.memory - least_size) + 1


@kernel
def room(chain: Chain, bounds: Bounds, s: int, t: int, extra: int) -> tuple[int, int]:
    """The most bytes with which stages s..t can matter, and the least ns that is too many.

    `extra` ns are spent besides on stages s..t, outside of what is counted here.
    """
    cap = _largest_memory(bounds, s, chain.elapsed[s] + extra - _slack(chain, bounds, s, t))
    cap = min(cap, bounds.memory - input_bytes(chain, s))
    return cap, int(np.floor(bounds.limit - bounds.around[s, t])) + 1 - extra


@kernel
def _slack(chain: Chain, bounds: Bounds, s: int, t: int) -> float:
    """The most overhead, stages before s included, but for the rerun that s..t is."""
    rerun = chain.elapsed[t + 1] - chain.elapsed[s] if t < len(chain.saved) - 1 else 0
    return bounds.limit - float(rerun)


@kernel
def matters(
    chain: Chain,
    bounds: Bounds,
    span: tuple[int, int, int],
    corners: Steps,
    memory: Array,
    overhead: Array,
) -> int:
    """Copy the corners of s..t (`span`: s, t and extra ns) that leave enough to stages before s.

    Returns:
        How many there are.
    """
    s, t, extra = span
    size, time = bounds.prefix_size[s], bounds.prefix_time[s]
    slack = _slack(chain, bounds, s, t) - chain.elapsed[s] - extra
    cut, count = len(size) - 1, 0
    for i in range(corners.first, corners.last + 1):
        left = bounds.memory - corners.memory[i]
        if left < 0:
            break
        while size[cut] > left:
            cut -= 1
        spared = float(time[cut])
        if cut < len(size) - 1:
            share = (left - size[cut]) / (size[cut + 1] - size[cut])
            spared += (time[cut + 1] - time[cut]) * share
        if corners.overhead[i] - spared <= slack:
            memory[count] = corners.memory[i]
            overhead[count] = corners.overhead[i]
            count += 1
    return count
