"""``C_A`` in real numbers at the points of a grid: compiled loops (see `kernels`)."""

# ruff: noqa: FBT001, FBT003, PLR0913, PLR0917  # compiled code has no objects to hold what it needs

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.jit import kernel

__all__ = ["FINITE", "INFINITE", "TINY", "Costs", "choose_inner", "inner_table", "looked_up"]

_Floats = NDArray[np.float64]

INFINITE = 1e30
FINITE = 1e29
TINY = 1e-9


class Costs(NamedTuple):
    """A chain in grid units; shapes as in `ChainArrays`."""

    activation: _Floats
    saved: _Floats
    gradient: _Floats
    forward_overhead: _Floats
    backward_overhead: _Floats
    forward: _Floats
    backward: _Floats


@kernel
def looked_up(
    table: NDArray[np.float32], row: int, size: int, kept: float, returning: float, is_bound: bool
) -> float:
    """``C_A`` of a row of the table between grid points, rounded up, or down for a bound."""
    if kept > size + TINY:
        return INFINITE
    k = math.floor(kept + TINY) if is_bound else math.ceil(kept - TINY)
    beyond = 0.0
    top = float(size - k)
    if returning > top:
        beyond, returning = returning - top, top
    d = math.floor(returning + TINY)
    share = max(0.0, returning - d)
    below = float(table[row, k, d])
    if below > FINITE:
        return INFINITE
    if share <= TINY:
        return below + beyond
    above = float(table[row, k, d + 1])
    if is_bound:
        return beyond + max(below, above - (1.0 - share))
    return beyond + min(above, below + share)


@kernel
def inner_table(of: Costs, size: int, is_bound: bool, table: NDArray[np.float32]) -> None:
    """Fill in ``C_A(i, j, A, D)`` at row ``j (j + 1) / 2 + i``, D up to `size` - A."""
    stages = len(of.forward)
    for j in range(stages):
        for i in range(j, -1, -1):
            row = j * (j + 1) // 2 + i
            for kept in range(size + 1):
                for returning in range(size + 1 - kept):
                    table[row, kept, returning] = _inner(
                        of, size, is_bound, table, i, j, float(kept), float(returning)
                    )[0]


@kernel
def _inner(
    of: Costs,
    size: int,
    is_bound: bool,
    table: NDArray[np.float32],
    i: int,
    j: int,
    kept: float,
    returning: float,
) -> tuple[float, int]:
    """``C_A`` and its best case: -1 for ``Fall``, or the last stage that ``Fck`` passes."""
    room = size - kept + TINY
    best, choice = INFINITE, -2
    recording = of.gradient[j + 1] + of.saved[i] + of.forward_overhead[i]
    backing = of.saved[i] + of.gradient[i] + of.gradient[i + 1] + of.backward_overhead[i]
    if recording <= room and backing <= room:
        cost = of.backward[i] + max(0.0, backing - room + returning)
        left = max(0.0, returning - cost)
        rest = 0.0
        if i < j:
            rest = looked_up(
                table, j * (j + 1) // 2 + i + 1, size, kept + of.saved[i], left, is_bound
            )
        if rest < FINITE:
            left = max(0.0, left - rest)
            cost += of.forward[i] + rest + max(0.0, recording - room + left)
            best, choice = cost, -1
    run, need = 0.0, -INFINITE
    for k in range(i, j):
        passing = of.gradient[j + 1] + of.activation[k + 1] + of.forward_overhead[k]
        if k > i:
            passing += of.activation[k]
        if passing > room:
            break
        run += of.forward[k]
        need = max(need - of.forward[k], passing)
        later = looked_up(table, k * (k + 1) // 2 + i, size, kept, returning, is_bound)
        if run + later >= best:
            continue
        left = max(0.0, returning - later)
        row = j * (j + 1) // 2 + k + 1
        sooner = looked_up(table, row, size, kept + of.activation[k + 1], left, is_bound)
        left = max(0.0, left - sooner)
        cost = run + later + sooner + max(0.0, need - room + left)
        if cost < best:
            best, choice = cost, k
    return best, choice


@kernel
def choose_inner(
    of: Costs,
    size: int,
    table: NDArray[np.float32],
    i: int,
    j: int,
    kept: float,
    returning: float,
) -> tuple[float, int]:
    """The decision that a plan takes, and what it costs."""
    return _inner(of, size, False, table, i, j, kept, returning)
