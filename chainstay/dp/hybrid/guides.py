"""What is left to do takes at least so long: bounds by how much is kept (see `kernels`)."""

# ruff: noqa: PLR0913, PLR0917  # compiled code has no objects to hold what it needs

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.hybrid.inner import INFINITE, TINY, Costs
from chainstay.dp.jit import kernel

__all__ = ["guide"]

_Floats = NDArray[np.float64]


@kernel
def guide(
    of: Costs,
    size: int,
    table: NDArray[np.float32],
    weights: _Floats,
    guides: _Floats,
) -> None:
    """Fill in what labels take at least from here on, by how much they keep.

    The way to the turn takes at least as long as its forwards, and as moving what leaves; so
    with weights w and v it takes (1 - w) of the one and w of the other together, and the way
    back (1 - v) and v. For given weights, what is best depends on `kept` alone.

    Args:
        of: Costs.
        size: K.
        table: As filled by `inner_table`.
        weights: Shape (p, 2): pairs of w and v.
        guides: Shape (stages, 2, K + 1, p).
    """
    stages = len(of.forward)
    for pair in range(len(weights)):
        w, v = weights[pair, 0], weights[pair, 1]
        for i in range(stages - 1, -1, -1):
            for is_saved in range(2):
                for kept in range(size + 1):
                    guides[i, is_saved, kept, pair] = _guided(
                        of, size, table, w, v, guides[:, :, :, pair], i, is_saved, kept
                    )


@kernel
def _guided(
    of: Costs,
    size: int,
    table: NDArray[np.float32],
    w: float,
    v: float,
    guides: _Floats,
    i: int,
    is_saved: int,
    kept: int,
) -> float:
    last = len(of.forward) - 1
    item = of.activation[i]
    if is_saved and i:
        item = of.saved[i - 1]
    room = size - kept - item + TINY
    best = INFINITE
    recording = of.gradient[last + 1] + of.saved[i] + of.forward_overhead[i]
    backing = of.saved[i] + of.gradient[i] + of.gradient[i + 1] + of.backward_overhead[i]
    full = min(size, int(kept + item + TINY))
    moving = (w + v) * item
    if recording <= room and backing <= room:
        cost = (1.0 - w) * of.forward[i] + (1.0 - v) * of.backward[i]
        if i < last:
            cost += min(guides[i + 1, 1, full], moving + guides[i + 1, 1, kept])
        best = cost
    run = 0.0
    can_stay = True
    for j in range(i, last):
        passing = of.gradient[last + 1] + of.activation[j + 1] + of.forward_overhead[j]
        if j > i:
            passing += of.activation[j]
        if passing > room + (item if j > i else 0.0):
            break
        can_stay = can_stay and passing <= room
        run += of.forward[j]
        back = float(table[j * (j + 1) // 2 + i, full, 0])
        after = moving + guides[j + 1, 0, kept]
        if can_stay:
            after = min(after, guides[j + 1, 0, full])
        best = min(best, (1.0 - w) * run + (1.0 - v) * back + after)
    return best
