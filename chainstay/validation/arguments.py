"""Checks that every simulator makes of its arguments before it begins."""

from __future__ import annotations

from collections.abc import Sequence

from chainstay.errors import InvalidScheduleError, type_with_article
from chainstay.problems.arguments import require_kind
from chainstay.schedule import Schedule


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
            f"schedule is {type_with_article(schedule)}, must be a Schedule; read its text by "
            "Schedule.parse(text)"
        )
    if overheads is not None and len(overheads) != len(schedule):
        raise ValueError(
            f"there are {len(overheads)} overheads for {len(schedule)} operations; give one to each"
        )
