"""Limits on the overhead, from little above its lower bound upwards, without end.

Under a tight limit few corners matter, so a limit that proves too low costs little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from chainstay.dp.outside import Limit, OutsideBound
from chainstay.dp.recursion import Recursion

__all__ = ["growing_limits", "limits"]

_FIRST_SLACK: Final = 0.005
_SLACK_GROWTH: Final = 1.6
_FIRST_PRICED_SLACK: Final = 2.0**-11.5  # measured gaps: most between 2**-13 and 2**-9
_PRICED_SLACK_GROWTH: Final = 2


def limits(bound: OutsideBound, recursion: Recursion) -> Iterator[Limit]:
    """Growing limits; the first lies `_FIRST_SLACK` of all forwards above the root bound."""
    slack = max(1, math.ceil(_FIRST_SLACK * recursion.rerun_time))
    while True:
        yield Limit(math.ceil(bound.root) + slack, bound)
        slack = math.ceil(slack * _SLACK_GROWTH)


def growing_limits(lower_bound: float, rerun_time: int) -> Iterator[int]:
    """Growing limits, in ns; the first lies `_FIRST_PRICED_SLACK` of all forwards above the bound.

    For the bound of `prices`, which is often within a thousandth of the optimum.
    """
    slack = max(1, math.ceil(_FIRST_PRICED_SLACK * rerun_time))
    while True:
        yield math.ceil(lower_bound) + slack
        slack *= _PRICED_SLACK_GROWTH
