"""What users write for a budget, in bytes."""

from __future__ import annotations

import operator
from collections.abc import Callable

from chainstay.errors import InvalidBudgetError
from chainstay.units import parse_bytes, parse_percentage

__all__ = ["size_of"]


def size_of(budget: int | str, plain_bytes: Callable[[], int]) -> int:
    """`budget` in bytes.

    Args:
        budget: An int, text such as ``"8GiB"``, or a share such as ``"50%"``, rounded down.
        plain_bytes: Tells what a share is of: the peak of plain training, in bytes.

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
