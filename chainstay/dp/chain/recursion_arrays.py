"""A recursion as plain arrays, for the code that fills its fronts, and the pool of these fronts."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chainstay.dp.jit import kernel
from chainstay.dp.recursion import Array, Recursion

__all__ = [
    "ChainFrontPool",
    "RecursionArrays",
    "input_bytes",
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


class ChainFrontPool(NamedTuple):
    """Fronts of all sub-chains, in one pool of breakpoints.

    Attributes:
        memory: Bytes of all breakpoints of all fronts.
        overhead: Ns of all breakpoints of all fronts.
        first: Shape (n, n), at [s, t]: index of the first breakpoint of the front of s..t.
        last: Shape (n, n), at [s, t]: index of its last breakpoint; ``first - 1`` when none is
            kept.
    """

    memory: Array
    overhead: Array
    first: Array
    last: Array


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
