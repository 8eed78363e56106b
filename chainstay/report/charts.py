"""The charts of a report, as Bokeh figures.

Bokeh, of the well-kept libraries that can be put into a page whole, because it draws on a
canvas (20,000 blocks stay fluent), tells where the mouse is in the data's own coordinates, and
adds 1.2 MB to a page; Plotly's Python package brings 4.5 MB and draws rectangles as SVG.
Colours that depend on light or dark mode are set by the page, from its style sheet.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from bokeh.events import MouseLeave, MouseMove
from bokeh.models import (
    ColumnDataSource,
    CustomJS,
    FixedTicker,
    Range1d,
    Span,
)
from bokeh.plotting import figure

from chainstay.report.blocks import Block
from chainstay.report.course import Lane
from chainstay.report.frontier import Frontier
from chainstay.report.levels import CATEGORIES, Level
from chainstay.report.scales import Scale
from chainstay.solution import Solution

__all__ = [
    "BUDGET_COLOUR",
    "CATEGORY_COLOURS",
    "LOOK_COLOURS",
    "Figure",
    "frontier_chart",
    "lane_spans",
    "memory_chart",
    "schedule_chart",
]

Figure: TypeAlias = Any
"""A Bokeh figure."""

CATEGORY_COLOURS: Final = {
    "activation": "#4477aa",
    "saved": "#66ccee",
    "gradient": "#ccbb44",
    "temporary": "#aaaaaa",
}
LOOK_COLOURS: Final = {
    "forward": "#4477aa",
    "again": "#ee7733",
    "backward": "#228833",
    "turn": "#888888",
    "out": "#aa3377",
    "back": "#cc88bb",
}
BUDGET_COLOUR: Final = "#dd3322"
_FONT: Final = "system-ui, sans-serif"
_LINK_HEIGHT: Final = 0.22
"""Of a lane of the link, beside 1 for one that computes."""
_GAP: Final = 0.16
_THINNEST: Final = 1 / 40
"""Of a block, as a share of its lane's height."""


def memory_chart(
    levels: Sequence[Level], budget: int, *, time: Scale, size: Scale, x_range: Range1d
) -> Figure:
    """Memory over time, stacked by category, under the budget."""
    chart = _figure("memory", 280, x_range)
    top = max([budget, *(float(level.total) for level in levels)])
    chart.y_range = Range1d(0, 1.08 * top / size.factor)
    times = [float(level.time) / time.factor for level in levels]
    below = [0.0] * len(levels)
    for field, _ in CATEGORIES:
        sizes = [float(getattr(level, field)) / size.factor for level in levels]
        above = [low + high for low, high in zip(below, sizes, strict=True)]
        if any(sizes):
            colour = CATEGORY_COLOURS[field]
            chart.varea(times, below, above, fill_color=colour, fill_alpha=0.9)
        below = above
    chart.line(times, below, line_width=1, name="total")
    chart.add_layout(
        Span(
            location=budget / size.factor,
            dimension="width",
            line_color=BUDGET_COLOUR,
            line_width=1.5,
        )
    )
    _finish(chart, f"time [{time.unit}]", f"memory [{size.unit}]")
    _follow(chart)
    return chart


def schedule_chart(
    blocks: Sequence[Block], lanes: Sequence[Lane], *, time: Scale, x_range: Range1d
) -> Figure:
    """Who does what when: a lane for each, stages upwards within a lane."""
    bases, height = _bases(lanes)
    computing = sum(not lane.is_link for lane in lanes)
    chart = _figure("schedule", 110 + 110 * computing + 30 * (len(lanes) - computing), x_range)
    chart.y_range = Range1d(0, height)
    spans = [_vertical(block, lanes[block.lane], bases[block.lane]) for block in blocks]
    corners = {
        "left": [block.start / time.factor for block in blocks],
        "right": [block.end / time.factor for block in blocks],
        "bottom": [low for low, _ in spans],
        "top": [high for _, high in spans],
    }
    nowhere: dict[str, list[float]] = {side: [] for side in corners}
    sides = {side: side for side in corners}
    colours = [LOOK_COLOURS[block.look] for block in blocks]
    blocks_source = ColumnDataSource({**corners, "colour": colours}, name="blocks")
    chart.quad(**sides, source=blocks_source, fill_color="colour", line_color=None)
    cursor = ColumnDataSource(nowhere, name="cursor")
    chart.quad(**sides, source=cursor, fill_color=None, line_width=2, name="cursor-block")
    _finish(chart, f"time [{time.unit}]", "")
    middles = {base + _height(lane) / 2: lane.name for base, lane in zip(bases, lanes, strict=True)}
    chart.yaxis.ticker = FixedTicker(ticks=list(middles))
    chart.yaxis.major_label_overrides = middles
    chart.ygrid.visible = False
    _follow(chart)
    return chart


def lane_spans(lanes: Sequence[Lane]) -> list[tuple[float, float]]:
    """From where to where each lane reaches in the schedule's chart."""
    bases, _ = _bases(lanes)
    return [(base, base + _height(lane)) for base, lane in zip(bases, lanes, strict=True)]


def frontier_chart(frontier: Frontier, solution: Solution, *, time: Scale, size: Scale) -> Figure:
    """Makespan over budget: what is found, what is proved, and the plan."""
    chart = _figure("frontier", 300, None)
    chart.toolbar.autohide = True
    points = frontier.points
    budgets = [point.budget / size.factor for point in points]
    found = [float(point.makespan) / time.factor for point in points]
    chart.step(budgets, found, mode="after", line_color=LOOK_COLOURS["forward"], line_width=2)
    if not frontier.is_complete:
        proved = [float(point.lower_bound) / time.factor for point in points]
        for colour, values in ((None, proved), (LOOK_COLOURS["forward"], found)):
            chart.scatter(
                budgets,
                values,
                marker="circle" if colour else "triangle",
                size=7,
                fill_color=colour,
                line_color=LOOK_COLOURS["forward"],
                name="" if colour else "bounds",
            )
    chart.scatter(
        [solution.budget / size.factor],
        [float(solution.makespan) / time.factor],
        marker="diamond",
        size=16,
        fill_color=LOOK_COLOURS["again"],
        line_color="#ffffff",
        name="plan",
    )
    _finish(chart, f"budget [{size.unit}]", f"time of a step [{time.unit}]")
    return chart


def _figure(name: str, height: int, x_range: Range1d | None) -> Figure:
    chart = figure(
        name=name,
        height=height,
        sizing_mode="stretch_width",
        tools="xpan,xwheel_zoom,xbox_zoom,reset" if x_range else "pan,wheel_zoom,box_zoom,reset",
        active_scroll=None,
        active_drag="xbox_zoom" if x_range else None,
        toolbar_location="right",
        output_backend="canvas",
        **({"x_range": x_range} if x_range else {}),
    )
    chart.toolbar.logo = None
    chart.toolbar.autohide = True
    chart.background_fill_color = None
    chart.border_fill_color = None
    chart.outline_line_color = None
    return chart


def _finish(chart: Figure, x_label: str, y_label: str) -> None:
    """Quiet axes."""
    chart.xaxis.axis_label, chart.yaxis.axis_label = x_label, y_label
    chart.xgrid.visible = False
    for axis in (*chart.xaxis, *chart.yaxis):
        axis.axis_label_text_font = axis.major_label_text_font = _FONT
        axis.axis_label_text_font_size, axis.major_label_text_font_size = "13px", "12px"
        axis.axis_label_text_font_style = "normal"
        axis.minor_tick_line_color = axis.major_tick_line_color = None
    chart.yaxis.axis_line_color = None
    if chart.name != "frontier":
        chart.min_border_left = 76


def _follow(chart: Figure) -> None:
    """Let the page know where the mouse is."""
    chart.add_layout(Span(location=0, dimension="height", visible=False, name="cursor-line"))
    code = "window.chainstay.point(cb_obj.x, cb_obj.y, name)"
    chart.js_on_event(MouseMove, CustomJS(args={"name": chart.name}, code=code))
    chart.js_on_event(MouseLeave, CustomJS(code="window.chainstay.leave()"))


def _height(lane: Lane) -> float:
    return _LINK_HEIGHT if lane.is_link else 1.0


def _bases(lanes: Sequence[Lane]) -> tuple[list[float], float]:
    """Where each lane starts, the first one highest, and the height of all."""
    bases, base = [], 0.0
    for lane in reversed(lanes):
        bases.append(base + _GAP / 2)
        base += _height(lane) + _GAP
    return bases[::-1], base


def _vertical(block: Block, lane: Lane, base: float) -> tuple[float, float]:
    if lane.is_link:
        return base, base + _LINK_HEIGHT
    thickness = max(1 / lane.stages, _THINNEST)
    step = (1 - thickness) / max(lane.stages - 1, 1)
    lowest, highest = base + step * block.first_stage, base + step * block.last_stage
    return lowest, highest + thickness
