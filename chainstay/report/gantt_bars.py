"""Operations as bars to draw: few enough for a browser, whatever the schedule's length.

Up to `MAX_BARS` operations are drawn one by one. Beyond, neighbours in one lane that share
a slot of time become one bar that says how many it stands for, and memory in that slot is
drawn at its highest: what is merged never looks better than it is. The first lane is on top, and
stages go upwards within it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import groupby
from typing import Final, NamedTuple

from chainstay.report.descriptions import describe_activity
from chainstay.report.memory_profile import MemoryLevel
from chainstay.report.timeline import Activity, Lane, Timeline
from chainstay.schedule import OpKind
from chainstay.timetable import Time

MAX_BARS: Final = 20_000
"""The number of rectangles that a browser moves without a stutter."""

_LOW: Final = 0.25
"""Height of a lane of the link or of one stage, beside 1 for one of more stages."""
_GAP: Final = 0.16
_THINNEST: Final = 1 / 40
"""Least thickness of a bar, as a share of its lane's height."""

BAR_STYLES: Final = {
    "forward": "forward",
    "again": "forward, recomputed",
    "backward": "backward",
    "turn": "turn",
    "out": "moved away",
    "back": "brought back",
}
"""Styles of bars, each with its meaning for the legend."""


class Bar(NamedTuple):
    """One or more operations, to draw.

    Attributes:
        lane: Number of its lane.
        start: Time at which it starts, in ns.
        end: Time at which it ends, in ns.
        label: The operation's text; of several, the first and last one's.
        description: One sentence about what it does.
        style: A key of `BAR_STYLES`; of several, that of most of the time.
        first_stage: The lowest stage.
        last_stage: The highest stage.
    """

    lane: int
    start: float
    end: float
    label: str
    description: str
    style: str
    first_stage: int
    last_stage: int


def build_bars(timeline: Timeline) -> tuple[Bar, ...]:
    """Return all operations of `timeline` as at most `MAX_BARS` bars, by lane and time."""
    activities = sorted(timeline.activities, key=lambda activity: activity.lane)
    if len(activities) <= MAX_BARS:
        return tuple(_bar([activity], timeline) for activity in activities)
    slot = float(timeline.makespan) / (MAX_BARS // len(timeline.lanes))
    groups = groupby(activities, lambda activity: (activity.lane, float(activity.start) // slot))
    return tuple(_bar(list(group), timeline) for _, group in groups)


def _bar(group: Sequence[Activity], timeline: Timeline) -> Bar:
    first, last = group[0], group[-1]
    stages = [activity.op.stage for activity in group]
    label, description = str(first.op), describe_activity(first, timeline)
    if len(group) > 1:
        label = f"{first.op} … {last.op}"
        description = f"{len(group)} operations, too short to be drawn one by one"
    return Bar(
        lane=first.lane,
        start=float(first.start),
        end=float(last.end),
        label=label,
        description=description,
        style=_main_style(group),
        first_stage=min(stages),
        last_stage=max(stages),
    )


def _main_style(group: Iterable[Activity]) -> str:
    times: dict[str, Time] = {}
    for activity in group:
        style = style_of(activity)
        times[style] = times.get(style, 0) + activity.end - activity.start
    return max(times, key=lambda style: times[style])


def style_of(activity: Activity) -> str:
    """Return the style of an operation's bar, a key of `BAR_STYLES`."""
    kind = activity.op.kind
    if kind.is_forward:
        return "again" if activity.is_again else "forward"
    if kind.is_transfer:
        return "out" if kind.is_offload else "back"
    return "turn" if kind is OpKind.TURN else "backward"


def thinned_levels(levels: Sequence[MemoryLevel], makespan: float) -> tuple[MemoryLevel, ...]:
    """Return `levels` without those that last no time and are not peaks.

    If there are too many, the highest in each slot of time stands for all of the slot.
    """
    steps = tuple(_without_dips(levels))
    if len(steps) <= 2 * MAX_BARS:
        return steps
    return tuple(_highest(steps, makespan / MAX_BARS))


def _without_dips(levels: Sequence[MemoryLevel]) -> Iterator[MemoryLevel]:
    for _, same_time in groupby(levels, lambda level: level.time):
        group = list(same_time)
        first, last = group[0], group[-1]
        yield first
        highest = max(group, key=lambda level: level.total)
        if highest.total > max(first.total, last.total):
            yield highest
        if len(group) > 1:
            yield last


def _highest(levels: Sequence[MemoryLevel], slot: float) -> Iterator[MemoryLevel]:
    for number, group in groupby(levels, lambda level: float(level.time) // slot):
        highest = max(group, key=lambda level: level.total)
        yield highest._replace(time=Fraction(number * slot))
        yield highest._replace(time=Fraction((number + 1) * slot))


def lane_spans(lanes: Sequence[Lane]) -> list[tuple[float, float]]:
    """Return the lower and upper edge of each lane."""
    spans, base = [], _GAP / 2
    for lane in reversed(lanes):
        spans.append((base, base + _height(lane)))
        base += _height(lane) + _GAP
    return spans[::-1]


def lanes_height(lanes: Sequence[Lane]) -> float:
    """Return the height of all lanes together."""
    return sum(_height(lane) + _GAP for lane in lanes)


def bar_spans(bars: Sequence[Bar], lanes: Sequence[Lane]) -> list[tuple[float, float]]:
    """Return the lower and upper edge of bars: all of a link's lane, elsewhere their stages."""
    spans = lane_spans(lanes)
    return [_bar_span(bar, lanes[bar.lane], *spans[bar.lane]) for bar in bars]


def _bar_span(bar: Bar, lane: Lane, low: float, high: float) -> tuple[float, float]:
    if lane.is_link:
        return low, high
    thickness = (high - low) * max(1 / lane.stages, _THINNEST)
    step = (high - low - thickness) / max(lane.stages - 1, 1)
    return low + step * bar.first_stage, low + step * bar.last_stage + thickness


def _height(lane: Lane) -> float:
    return 1.0 if lane.stages > 1 else _LOW
