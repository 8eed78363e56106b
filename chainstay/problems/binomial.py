"""Binomial checkpointing: the closed form of Griewank and Walther for equal steps, and schedules.

With ``c`` checkpoints at once (the network's input among them) and no forward repeated more
than ``r`` times before the one that saves, up to ``β(c, r) = binom(c + r, c)`` stages can be
reversed. For n stages, r the least such number, the least number of forwards is
([GW00], Proposition 1; the n forwards that save are counted here and not there)::

    n + r n - binom(c + r, c + 1)

=============  ==========================================================
[GW00]         here
=============  ==========================================================
``l``          ``stages``
``c``          ``slots``
``r``          `_repeats`
``β(c, r)``    `_reach`
=============  ==========================================================

In joins a branch is run backward between two values ([BHPS20], ``Opt_0(l, c)``): memory has c
slots, in them the input of step 0 and the gradient of the output of step l; run steps l..0
backward. These are the same forwards without those that save, as each is part of its backward,
and two of the slots are no checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import comb
from typing import Final

from chainstay.errors import UnknownMethodError
from chainstay.schedule import Op, OpKind, Schedule, forwards_dropping_inputs

IMPOSSIBLE: Final = 2**40
"""More forwards than there can be; the sum of several still fits in 64 bits."""


def least_forwards(stages: int, slots: int) -> int:
    """Return the least number of forwards, the saving ones included, with `slots` checkpoints.

    Raises:
        UnknownMethodError: No stage, or several stages and no slot.

    Example:
        >>> [least_forwards(10, slots) for slots in (1, 2, 3, 9)]
        [55, 30, 25, 19]
    """
    _require_slots(stages, slots)
    if stages == 1:
        return 1
    repeats = _repeats(stages, slots)
    return stages + repeats * stages - comb(slots + repeats, slots + 1)


def binomial_schedule(stages: int, slots: int) -> Schedule:
    """Return a schedule with `least_forwards` forwards that holds at most `slots` checkpoints.

    Raises:
        UnknownMethodError: No stage, or several stages and no slot.

    Example:
        >>> str(binomial_schedule(4, 2))
        'Fc0 Fc1 Fn2 Fa3 B3 Fc1 Fa2 B2 Fa1 B1 Fa0 B0'
    """
    _require_slots(stages, slots)
    ops: list[Op] = []
    pending = [(0, stages, slots)]
    while pending:
        start, stop, free = pending.pop()
        if stop - start == 1:
            ops += [Op(OpKind.FORWARD_KEEP_ALL, start), Op(OpKind.BACKWARD, start)]
            continue
        restart = start + _stride(stop - start, free)
        ops += forwards_dropping_inputs(start, restart - 1)
        pending += [(start, restart, free), (restart, stop, free - 1)]
    return Schedule(tuple(ops))


def least_reversal_forwards(steps: int, slots: int) -> int:
    """Return the forwards of ``Opt_0(steps - 1, slots)``: least number to run `steps` backward.

    Args:
        steps: At least 1; the paper's l plus 1.
        slots: Slots for the input of the first step, the gradient of the last, and the work.

    Returns:
        The number, or `IMPOSSIBLE`.

    Example:
        >>> [least_reversal_forwards(5, slots) for slots in (2, 3, 4, 5, 6)]
        [1099511627776, 10, 6, 5, 4]
    """
    if slots < 2 or (slots == 2 and steps > 1):
        return IMPOSSIBLE
    return least_forwards(steps, slots - 2) - steps


def reversal(branch: int | None, start: int, steps: int, slots: int) -> Iterator[Op]:
    """Yield an optimal schedule of steps `start` to ``start + steps - 1``, backward.

    Args:
        branch: The branch, None for the tail.
        start: The first step, whose input is held.
        steps: How many steps; the gradient of the last one's output is held.
        slots: The slots, as for `least_reversal_forwards`, for which this must be possible.
    """
    for op in binomial_schedule(steps, slots - 2) if steps else ():
        if op.kind is not OpKind.FORWARD_KEEP_ALL:
            yield replace(op, stage=start + op.stage, branch=branch)


def _reach(slots: int, repeats: int) -> int:
    """Return how many stages can be reversed with so many slots and repeats."""
    return comb(slots + repeats, slots) if repeats >= 0 else 0


def _repeats(stages: int, slots: int) -> int:
    """Return the least number of repeats with which `slots` checkpoints reverse `stages`."""
    return next(repeats for repeats in count() if _reach(slots, repeats) >= stages)


def _stride(stages: int, slots: int) -> int:
    """Return the shortest optimal run before the next checkpoint ([GW00], Proposition 2)."""
    repeats = _repeats(stages, slots)
    return max(1, _reach(slots, repeats - 2), stages - _reach(slots - 1, repeats))


def _require_slots(stages: int, slots: int) -> None:
    if stages < 1 or slots < 0 or (slots == 0 and stages > 1):
        raise UnknownMethodError(
            f"{stages} stages with {slots} slots cannot be reversed; both must be at least 1"
        )
