"""Where lanes and blocks are in a chart of a schedule: the first lane on top, stages upwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from chainstay.report.blocks import Block
from chainstay.report.course import Lane

__all__ = ["block_spans", "lane_spans", "lanes_height"]

_LOW: Final = 0.25
"""Height of a lane of the link or of one stage, beside 1 for one of more stages."""
_GAP: Final = 0.16
_THINNEST: Final = 1 / 40
"""Of a block, as a share of its lane's height."""


def lane_spans(lanes: Sequence[Lane]) -> list[tuple[float, float]]:
    """From where to where each lane reaches."""
    spans, base = [], _GAP / 2
    for lane in reversed(lanes):
        spans.append((base, base + _height(lane)))
        base += _height(lane) + _GAP
    return spans[::-1]


def lanes_height(lanes: Sequence[Lane]) -> float:
    """Of all lanes together."""
    return sum(_height(lane) + _GAP for lane in lanes)


def block_spans(blocks: Sequence[Block], lanes: Sequence[Lane]) -> list[tuple[float, float]]:
    """From where to where blocks reach: all of a lane of the link, elsewhere their stages."""
    spans = lane_spans(lanes)
    return [_block_span(block, lanes[block.lane], *spans[block.lane]) for block in blocks]


def _block_span(block: Block, lane: Lane, low: float, high: float) -> tuple[float, float]:
    if lane.is_link:
        return low, high
    thickness = (high - low) * max(1 / lane.stages, _THINNEST)
    step = (high - low - thickness) / max(lane.stages - 1, 1)
    return low + step * block.first_stage, low + step * block.last_stage + thickness


def _height(lane: Lane) -> float:
    return 1.0 if lane.stages > 1 else _LOW
