"""Parse what users write for a budget into bytes; a percentage is of the peak of plain training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from chainstay.baselines.join import keep_all_join
from chainstay.errors import InvalidBudgetError
from chainstay.profiles import AnyProfile, ChainProfile, HomogeneousJoin, OffloadProfile
from chainstay.schedule import Schedule
from chainstay.units import parse_bytes, parse_percentage, whole_number
from chainstay.validation.join.simulate import simulate_join
from chainstay.validation.simulate import simulate

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


def budget_bytes(profile: AnyProfile, budget: int | str) -> int:
    """Return `budget` in bytes; a percentage is of the peak of plain training, rounded down.

    Raises:
        InvalidBudgetError: Not a positive whole number of bytes, nor text for one.
    """
    return parse_budget(budget, lambda: plain_peak(profile))


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
    elif (size := whole_number(budget)) is None:
        raise InvalidBudgetError(f"budget is {budget!r}; write whole bytes, '8GiB' or '50%'")
    if size <= 0 and isinstance(budget, str) and parse_percentage(budget):
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
