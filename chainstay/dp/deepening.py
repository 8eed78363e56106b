"""Limits on the overhead, from little above its lower bound upwards, without end.

Under a tight limit few corners matter, so a limit that proves too low costs little.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from chainstay.dp.outside import Limit, OutsideBound
from chainstay.dp.recursion import Recursion

__all__ = ["limits"]

_FIRST_SLACK: Final = 0.005
_SLACK_GROWTH: Final = 1.6


def limits(bound: OutsideBound, recursion: Recursion) -> Iterator[Limit]:
    """Growing limits; the first lies `_FIRST_SLACK` of all forwards above the root bound."""
    slack = max(1, math.ceil(_FIRST_SLACK * recursion.rerun_time))
    while True:
        yield Limit(math.ceil(bound.root) + slack, bound)
        slack = math.ceil(slack * _SLACK_GROWTH)
