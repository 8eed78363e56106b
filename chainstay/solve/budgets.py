"""Parse what users write for a budget into bytes."""

from __future__ import annotations

import operator
from collections.abc import Callable

from chainstay.errors import InvalidBudgetError
from chainstay.units import parse_bytes, parse_percentage

__all__ = ["parse_budget"]


def parse_budget(budget: int | str, plain_bytes: Callable[[], int]) -> int:
    """Return `budget` in bytes.

    Args:
        budget: An int, text such as ``"8GiB"``, or a share such as ``"50%"``, rounded down.
        plain_bytes: Function that returns the peak of plain training, in bytes: 100 %.

    Raises:
        InvalidBudgetError: Not a positive whole number of bytes, nor text for one.
    """
    if isinstance(budget, str):
        share = parse_percentage(budget)
        size = parse_bytes(budget) if share is None else int(share * plain_bytes())
        if size is None:
            raise InvalidBudgetError(
                f"budget is {budget!r}; write bytes, '8GiB', '500MB', or '50%' of plain training"
            )
    elif isinstance(budget, bool) or not hasattr(budget, "__index__"):
        raise InvalidBudgetError(f"budget is {budget!r}; write whole bytes, '8GiB' or '50%'")
    else:
        size = operator.index(budget)
    if size <= 0:
        raise InvalidBudgetError(
            f"budget is {budget!r}; it must be more than 0 bytes (a share of plain training "
            "is written '50%')"
        )
    return size
