"""Checks that methods, bounds and simulators make of their arguments before they begin."""

from __future__ import annotations

from chainstay.errors import InvalidBudgetError, InvalidProfileError
from chainstay.units import whole_number


def require_kind(profile: object, *kinds: type) -> None:
    """Refuse a profile that is not of `kinds`.

    Raises:
        InvalidProfileError: It is not.
    """
    if not isinstance(profile, kinds):
        needed = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidProfileError(f"profile is a {type(profile).__name__}, must be a {needed}")


def require_whole(budget: object) -> None:
    """Refuse a budget that is no number which methods can count with.

    Raises:
        InvalidBudgetError: It is text, a fraction, or does not fit in 64 bits.
    """
    size = whole_number(budget)
    if size is None or size >= 2**63:
        raise InvalidBudgetError(
            f"budget is {budget!r}, must be a whole number below 2**63; text such as '50%' is "
            "for solve_chain and the other functions that solve"
        )
