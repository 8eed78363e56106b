"""Pruning by a bound: limits on the overhead, and what they leave to a sub-chain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.forward_costs import Array
from chainstay.dp.jit import kernel
from chainstay.dp.step_functions import Cutoff, Pool, StepFunction, with_room

_Floats = NDArray[np.float64]

MULTIPLIER_COUNT: Final = 17
"""How many multipliers of memory a bound has: 0, step, 2 step, …"""
ROOT_MULTIPLIER: Final = 12
"""Which of them is the price of memory at the root; deeper down it may be higher."""

_ROUNDING: Final = 2.0**-32
_NO_LIMIT: Final = 2.0**61


class MultiplierBound(Protocol):
    """Lower bounds on the overhead of a whole schedule that contains a given sub-chain.

    One for each multiplier of memory.

    Attributes:
        root: Lower bound on the overhead of any schedule, in ns.
        slack: What a first limit lies above `root`, as a share of `rerun_time`.
        memory: M, the bytes besides the network's input.
        least: Shape (n, n), at [s, t]: bytes that stages s..t need at least; shape (0, 0) if that
            is not known.
        rerun_time: Every forward once, in ns.
        step: Ns per byte between two multipliers.
        outside: Shape (n, n, multipliers), at [s, t, i]: what a schedule spends outside of stages
            s..t, which get m bytes, is at least ``outside[s, t, i] + i * step * m`` ns.
    """

    root: float
    slack: float
    memory: int
    least: Array
    rerun_time: int
    step: float
    outside: _Floats


class PruningLimit(NamedTuple):
    """A limit on the overhead of whole schedules, and what it leaves to sub-chains.

    Attributes:
        overhead: Ns; a little more than the limit, to cover the rounding of the bound, which
            is a sum of doubles.
        memory: Bytes besides the network's input.
        step: Ns per byte between two multipliers.
        outside: Least overhead outside of each sub-chain, in ns, as in `MultiplierBound`.
        least: Shape (n, n), at [s, t]: bytes that stages s..t need at least; or zeros.
    """

    overhead: float
    memory: int
    step: float
    outside: _Floats
    least: Array


def growing_limits(bound: MultiplierBound, *, growth: int = 2) -> Iterator[int]:
    """Yield limits on the overhead in ns, without end, from little above the bound upwards.

    Under a tight limit few breakpoints are of use, so a limit that proves too low costs little.
    """
    slack = max(1, math.ceil(bound.slack * bound.rerun_time))
    while True:
        yield math.ceil(bound.root) + slack
        slack *= growth


def pruning_limit(bound: MultiplierBound, overhead: int) -> PruningLimit:
    """Return the limit that admits schedules of at most `overhead` ns."""
    rounding = _ROUNDING * bound.rerun_time + 1
    return PruningLimit(overhead + rounding, bound.memory, bound.step, bound.outside, bound.least)


def without_limit(memory: int, least: Array) -> PruningLimit:
    """Return the limit that admits whatever fits in `memory` bytes."""
    return PruningLimit(_NO_LIMIT, memory, 0.0, np.zeros((*least.shape, 1)), least)


@kernel
def root_multiplier(limit: PruningLimit) -> int:
    """Return which multiplier of a limit is the price of memory at the root."""
    return int(limit.outside.shape[2] - 1) * ROOT_MULTIPLIER // (MULTIPLIER_COUNT - 1)


@kernel
def _cost_outside(limit: PruningLimit, lines: _Floats, m: int) -> float:
    """Return the least overhead, in ns, outside of a sub-chain that gets `m` bytes."""
    highest = lines[0]
    for i in range(1, len(lines)):
        highest = max(highest, lines[i] + i * limit.step * m)
    return float(highest)


@kernel
def cutoff_within(limit: PruningLimit, lines: _Floats, stored: int, least: int) -> Cutoff:
    """Return the memory and overhead with which a sub-chain can be part of a good schedule.

    Args:
        limit: The limit on whole schedules.
        lines: Shape (multipliers,), ns: a schedule that gives the sub-chain m bytes spends at
            least ``lines[i] + i * step * m`` outside of it, for each i.
        stored: Bytes that its input takes at least; 0 for the network's input.
        least: Bytes that the sub-chain needs at least.

    Returns:
        -1 and 0 if it cannot be part of any.
    """
    left = limit.overhead - _cost_outside(limit, lines, least)
    if left < 0:
        return Cutoff(-1, 0)
    memory = float(limit.memory - stored)
    for i in range(1, len(lines)):
        memory = min(memory, (limit.overhead - lines[i]) / (i * limit.step))
    return Cutoff(int(np.floor(memory)), int(np.floor(left)) + 1)


@kernel
def store_useful(
    limit: PruningLimit, lines: _Floats, steps: StepFunction, pool: Pool
) -> tuple[Pool, int]:
    """Append the breakpoints of a sub-chain that leave enough to the stages outside of it.

    Args:
        limit: The limit on whole schedules.
        lines: The lines, as for `cutoff_within`.
        steps: The overhead of the sub-chain, not shifted.
        pool: Where to append.

    Returns:
        The pool, and how many breakpoints were appended.
    """
    pool = with_room(pool, steps.last - steps.first + 1)
    memory, overhead, used = pool
    highest, end = 0, used
    for i in range(steps.first, steps.last + 1):
        m = steps.memory[i]
        while highest + 1 < len(lines) and lines[highest + 1] + limit.step * m >= lines[highest]:
            highest += 1
        spent = steps.overhead[i] + lines[highest] + highest * limit.step * m
        if spent <= limit.overhead:
            memory[end] = m
            overhead[end] = steps.overhead[i]
            end += 1
    return Pool(memory, overhead, end), end - used
