"""Checks that simulators, methods and bounds make of their arguments before they begin."""

from __future__ import annotations

from collections.abc import Sequence

from chainstay.errors import InvalidBudgetError, InvalidProfileError, InvalidScheduleError
from chainstay.schedule import Schedule
from chainstay.units import whole_number


def require_replayable(
    profile: object, schedule: object, *kinds: type, overheads: Sequence[int] | None = None
) -> None:
    """Refuse a profile that is not of `kinds`, and what is no schedule, such as its text.

    Raises:
        InvalidProfileError: The profile is of another kind.
        InvalidScheduleError: The schedule is none.
        ValueError: There are `overheads`, and not one for each operation.
    """
    require_kind(profile, *kinds)
    if not isinstance(schedule, Schedule):
        raise InvalidScheduleError(
            f"schedule is a {type(schedule).__name__}, must be a Schedule; read its text by "
            "Schedule.parse(text)"
        )
    if overheads is not None and len(overheads) != len(schedule):
        raise ValueError(
            f"there are {len(overheads)} overheads for {len(schedule)} operations; give one to each"
        )


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
