r"""One branch between two values: the closed form of [BHPS20]'s ``Opt_0``, and its schedule.

``Opt_0(l, c)``: memory has c slots, in them the input of step 0 and the gradient of the output
of step l; run steps l..0 backward. Its forwards are those of [GW00] (`chainstay.dp.revolve`),
in the paper's count of slots: with ``c = 2`` nothing can be run forward, and the r-th repeat
is needed ``binom(c - 3 + r, r)`` times, so that::

    Opt_0(l, c) = (l + 1) u_b + u_f Σ_{j=1..l} r_j,   r = 1 binom(c-2, 1) times, 2 binom(c-1, 2) …
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from math import comb
from typing import Final

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.recursion import forwards_dropping_inputs
from chainstay.schedule import Op, OpKind

__all__ = ["IMPOSSIBLE", "forwards_table", "least_reversal_forwards", "reversal"]

IMPOSSIBLE: Final = 2**40
"""More forwards than there can be; the sum of several still fits in 64 bits."""

Counts = NDArray[np.int64]


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
    return int(_forwards(steps, slots)[steps - 1])


def forwards_table(steps: int, slots: int) -> Counts:
    """Return `least_reversal_forwards` for all arguments up to these.

    Returns:
        Shape (slots + 1, steps + 1), at [c, n]: for n steps and c slots, 0 for no step.
    """
    rows = [np.concatenate([[0], _forwards(steps, c)[:steps]]) for c in range(slots + 1)]
    return np.array(rows, dtype=np.int64)


def _forwards(steps: int, slots: int) -> Counts:
    """Return the least forwards for 1, 2, … `steps` steps."""
    if slots < 3:
        impossible = np.full(max(steps, 1), IMPOSSIBLE, dtype=np.int64)
        impossible[0] = 0 if slots == 2 else IMPOSSIBLE
        return impossible
    repeats: list[int] = []
    for r in count():
        if len(repeats) >= steps:
            break
        repeats += [r] * min(comb(slots - 3 + r, r), steps - len(repeats))
    return np.cumsum(np.array(repeats, dtype=np.int64))


def reversal(branch: int | None, start: int, steps: int, slots: int) -> Iterator[Op]:
    """Yield an optimal schedule of steps `start` to ``start + steps - 1``, backward.

    Args:
        branch: The branch, None for the tail.
        start: The first step, whose input is held.
        steps: How many steps; the gradient of the last one's output is held.
        slots: The slots, as for `least_reversal_forwards`, for which this must be possible.
    """
    table = forwards_table(steps, slots)
    pending = [(start, steps, slots)]
    while pending:
        first, n, free = pending.pop()
        if n == 1:
            yield Op(OpKind.BACKWARD, first, branch)
        elif n > 1:
            strides = np.arange(1, n)
            costs = strides + table[free - 1, n - strides] + table[free, strides]
            stride = 1 + int(np.argmin(costs))
            yield from forwards_dropping_inputs(first, first + stride - 1, branch)
            pending += [(first, stride, free), (first + stride, n - stride, free - 1)]
