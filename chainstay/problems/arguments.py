"""Checks that methods, bounds and simulators make of their arguments before they begin."""

from __future__ import annotations

from chainstay.errors import InvalidBudgetError, InvalidProfileError, type_with_article
from chainstay.units import parse_bytes, whole_number


def require_kind(profile: object, *kinds: type, needed: str = "") -> None:
    """Refuse a profile that is not of `kinds`; `needed` says what it must be, if not their names.

    Raises:
        InvalidProfileError: It is not.
    """
    if not isinstance(profile, kinds):
        needed = needed or f"a {' or '.join(kind.__name__ for kind in kinds)}"
        raise InvalidProfileError(f"profile is {type_with_article(profile)}, must be {needed}")


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


def whole_bytes(name: str, given: object) -> int:
    """Return the argument `name` as a number of bytes.

    Raises:
        InvalidBudgetError: It is none.
    """
    size = parse_bytes(given) if isinstance(given, str) else whole_number(given)
    if size is None or size < 0:
        raise InvalidBudgetError(f"{name} is {given!r}; write whole bytes or '2GiB'")
    return size
