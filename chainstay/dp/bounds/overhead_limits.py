"""Limits on the overhead, tried one after another: from little above a lower bound upwards.

Under a tight limit few breakpoints are of use, so a limit that proves too low costs little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from chainstay.dp.bounds.knapsack_bound import KnapsackBound, OverheadLimit
from chainstay.dp.recursion import Recursion

__all__ = ["growing_limits", "growing_overhead_limits"]

_FIRST_SLACK: Final = 2.0**-11.5  # measured gaps: most between 2**-13 and 2**-9
_SLACK_GROWTH: Final = 2
_FIRST_KNAPSACK_SLACK: Final = 0.005
_KNAPSACK_SLACK_GROWTH: Final = 1.6


def growing_limits(lower_bound: float, rerun_time: int) -> Iterator[int]:
    """Yield growing limits in ns, without end.

    They start `_FIRST_SLACK` of the time of all forwards above the Lagrangian bound, which is
    often within a thousandth of the optimum.

    Args:
        lower_bound: A lower bound on the overhead, in ns.
        rerun_time: Every forward once, in ns.
    """
    slack = max(1, math.ceil(_FIRST_SLACK * rerun_time))
    while True:
        yield math.ceil(lower_bound) + slack
        slack *= _SLACK_GROWTH


def growing_overhead_limits(bound: KnapsackBound, recursion: Recursion) -> Iterator[OverheadLimit]:
    """Yield growing limits without end.

    They start `_FIRST_KNAPSACK_SLACK` of the time of all forwards above the knapsack bound.
    """
    slack = max(1, math.ceil(_FIRST_KNAPSACK_SLACK * recursion.rerun_time))
    while True:
        yield OverheadLimit(math.ceil(bound.root) + slack, bound)
        slack = math.ceil(slack * _KNAPSACK_SLACK_GROWTH)
