"""Checks of `chainstay.verify` that other processes can import, and that take long."""

from __future__ import annotations

import time
from collections.abc import Sequence


def checked_in_a_minute(numbers: Sequence[int]) -> list[int]:
    """Return the numbers: at once where the first is 0, after a minute elsewhere."""
    time.sleep(60 * bool(numbers[0]))
    return list(numbers)
