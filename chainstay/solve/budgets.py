"""Parse what users write for a budget into bytes; a share is of the peak of plain training."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Final

from chainstay.baselines.join import keep_all_join
from chainstay.errors import InvalidBudgetError
from chainstay.profiles import AnyProfile, ChainProfile, HomogeneousJoin, OffloadProfile
from chainstay.schedule import Schedule
from chainstay.units import parse_bytes, parse_percentage, whole_number
from chainstay.validation.join.simulate import simulate_join
from chainstay.validation.simulate import simulate

Budget = int | str | float | Fraction
"""Bytes, text such as ``"8GiB"``, or a share of plain training: ``"50%"`` or ``0.5``."""

_LARGEST: Final = 2**63 - 1
"""Largest budget: one that every method can count with, and ``sys.maxsize``."""


def plain_peak(profile: AnyProfile) -> int:
    """Return what plain training of a network needs, in bytes (slots of a `HomogeneousJoin`)."""
    match profile:
        case ChainProfile():
            return simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
        case OffloadProfile():
            return profile.peak_bytes
        case HomogeneousJoin():
            return profile.enough_slots
    return simulate_join(profile, keep_all_join(profile)).peak_bytes


def budget_bytes(profile: AnyProfile, budget: Budget) -> int:
    """Return `budget` in bytes; a share is of the peak of plain training, rounded down.

    Raises:
        InvalidBudgetError: Not a positive whole number of bytes, nor text for one, nor a share.
    """
    return parse_budget(budget, lambda: plain_peak(profile))


def share_of(budget: Budget | None) -> Fraction | None:
    """Return which share of plain training a budget is; ``None`` if it is none.

    Raises:
        InvalidBudgetError: A number with a fraction, but not above 0 and up to 1.
    """
    if isinstance(budget, str):
        return parse_percentage(budget)
    if not isinstance(budget, float | Fraction):
        return None
    if not 0 < budget <= 1:
        raise InvalidBudgetError(
            f"budget is {budget!r}; a number with a fraction is a share of plain training, "
            "above 0 and up to 1 (write whole bytes or '8GiB' otherwise)"
        )
    return Fraction(budget)


def parse_budget(budget: Budget, plain_bytes: Callable[[], int]) -> int:
    """Return `budget` in bytes, rounded down.

    Args:
        budget: The budget, as users write it.
        plain_bytes: Function that returns the peak of plain training, in bytes: 100 %.

    Raises:
        InvalidBudgetError: Not a positive whole number of bytes, nor text for one, nor a share.
    """
    size: int | None
    if (share := share_of(budget)) is not None:
        size = int(share * plain_bytes())
    elif isinstance(budget, str):
        size = parse_bytes(budget)
    else:
        size = whole_number(budget)
    if size is None:
        raise InvalidBudgetError(
            f"budget is {budget!r}; write bytes, '8GiB', '500MB', or '50%' of plain training"
        )
    if size <= 0 and share:
        raise InvalidBudgetError(
            f"budget is {budget!r} of what plain training needs: no whole byte; write bytes"
        )
    if size <= 0:
        raise InvalidBudgetError(
            f"budget is {budget!r}; it must be at least 1 byte (a share of plain training "
            "is written '50%')"
        )
    if size > _LARGEST:
        bits = size.bit_length()
        raise InvalidBudgetError(f"budget is a number of {bits} bits; it must be below 2**63 bytes")
    return size
