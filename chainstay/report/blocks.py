"""Operations as blocks to draw: few enough for a browser, whatever the schedule's length.

Up to `MOST_BLOCKS` operations are drawn one by one. Beyond, neighbours in one lane that share
a slot of time become one block that says how many it stands for, and memory in that slot is
drawn at its highest: what is merged never looks better than it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import groupby
from typing import Final, NamedTuple

from chainstay.report.course import Activity, Course, Reported
from chainstay.report.levels import Level
from chainstay.report.words import describe_activity
from chainstay.schedule import OpKind
from chainstay.timetable import Time

__all__ = ["LOOKS", "MOST_BLOCKS", "Block", "blocks_of", "thinned_levels"]

MOST_BLOCKS: Final = 20_000
"""As many rectangles as a browser moves without a stutter."""

LOOKS: Final = {
    "forward": "forward",
    "again": "forward, recomputed",
    "backward": "backward",
    "turn": "turn",
    "out": "moved away",
    "back": "brought back",
}
"""How blocks look, and what that means."""


class Block(NamedTuple):
    """One or more operations, to draw.

    Attributes:
        lane: Number of its lane.
        start: In ns.
        end: In ns.
        label: The operation's text; of several, the first and last one's.
        words: What it does.
        look: A key of `LOOKS`; of several, that of most of the time.
        first_stage: The lowest stage.
        last_stage: The highest one.
    """

    lane: int
    start: float
    end: float
    label: str
    words: str
    look: str
    first_stage: int
    last_stage: int


def blocks_of(course: Course, profile: Reported) -> tuple[Block, ...]:
    """All operations of `course`, at most `MOST_BLOCKS` blocks, by lane and time."""
    activities = sorted(course.activities, key=lambda activity: activity.lane)
    if len(activities) <= MOST_BLOCKS:
        return tuple(_block([activity], course, profile) for activity in activities)
    slot = float(course.makespan) / (MOST_BLOCKS // len(course.lanes))
    groups = groupby(activities, lambda activity: (activity.lane, float(activity.start) // slot))
    return tuple(_block(list(group), course, profile) for _, group in groups)


def _block(group: Sequence[Activity], course: Course, profile: Reported) -> Block:
    first, last = group[0], group[-1]
    stages = [activity.op.stage for activity in group]
    label, words = str(first.op), describe_activity(first, course, profile)
    if len(group) > 1:
        label = f"{first.op} … {last.op}"
        words = f"{len(group)} operations, too short to be drawn one by one"
    return Block(
        lane=first.lane,
        start=float(first.start),
        end=float(last.end),
        label=label,
        words=words,
        look=_main_look(group),
        first_stage=min(stages),
        last_stage=max(stages),
    )


def _main_look(group: Iterable[Activity]) -> str:
    times: dict[str, Time] = {}
    for activity in group:
        look = _look(activity)
        times[look] = times.get(look, 0) + activity.end - activity.start
    return max(times, key=lambda look: times[look])


def _look(activity: Activity) -> str:
    kind = activity.op.kind
    if kind.is_forward:
        return "again" if activity.is_again else "forward"
    if kind.is_transfer:
        return "out" if kind.is_offload else "back"
    return "turn" if kind is OpKind.TURN else "backward"


def thinned_levels(levels: Sequence[Level], makespan: float) -> tuple[Level, ...]:
    """`levels`, without those that last no time and are not peaks.

    Of too many, the highest in each slot of time, for all of the slot.
    """
    steps = tuple(_without_dips(levels))
    if len(steps) <= 2 * MOST_BLOCKS:
        return steps
    return tuple(_highest(steps, makespan / MOST_BLOCKS))


def _without_dips(levels: Sequence[Level]) -> Iterator[Level]:
    for _, same_time in groupby(levels, lambda level: level.time):
        group = list(same_time)
        first, last = group[0], group[-1]
        yield first
        highest = max(group, key=lambda level: level.total)
        if highest.total > max(first.total, last.total):
            yield highest
        if len(group) > 1:
            yield last


def _highest(levels: Sequence[Level], slot: float) -> Iterator[Level]:
    for number, group in groupby(levels, lambda level: float(level.time) // slot):
        highest = max(group, key=lambda level: level.total)
        yield highest._replace(time=Fraction(number * slot))
        yield highest._replace(time=Fraction((number + 1) * slot))
