"""Positions of lanes and bars in a chart of a schedule: the first lane on top, stages upwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chainstay.report.gantt_bars import Bar
from chainstay.report.timeline import Lane

__all__ = ["bar_spans", "lane_spans", "lanes_height"]

_LOW: Final = 0.25
"""Height of a lane of the link or of one stage, beside 1 for one of more stages."""
_GAP: Final = 0.16
_THINNEST: Final = 1 / 40
"""Least thickness of a bar, as a share of its lane's height."""


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
