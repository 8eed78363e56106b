"""The charts of a report, as Bokeh figures.

Bokeh, of the well-kept libraries that can be put into a page whole, because it draws on a
canvas (20,000 bars stay fluent), tells where the mouse is in the data's own coordinates, and
adds 1.2 MB to a page; Plotly's Python package brings 4.5 MB and draws rectangles as SVG.
Colours that depend on light or dark mode are set by the page, from its style sheet.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, TypeAlias

import numpy as np
from bokeh.events import MouseLeave, MouseMove, Tap
from bokeh.models import ColumnDataSource, CustomJS, FixedTicker, Range1d, Span
from bokeh.plotting import figure
from numpy.typing import NDArray

from chainstay.report.axis_units import Scale
from chainstay.report.colours import BUDGET_COLOUR, CATEGORY_COLOURS, STYLE_COLOURS
from chainstay.report.frontier import Frontier
from chainstay.report.gantt_bars import Bar, bar_spans, lane_spans, lanes_height
from chainstay.report.memory_profile import CATEGORIES, MemoryLevel
from chainstay.report.timeline import Lane
from chainstay.solution import Solution
from chainstay.timetable import Time

Figure: TypeAlias = Any
"""A Bokeh figure."""

_FONT: Final = "system-ui, sans-serif"
_OUTLINED: Final = 400
"""Levels up to which the outline of memory does not cover what is in it."""
_LANE_PIXELS: Final = 110


def memory_chart(
    levels: Sequence[MemoryLevel], budget: int, *, time: Scale, size: Scale, x_range: Range1d
) -> Figure:
    """Draw memory over time, stacked by category, under the budget."""
    chart = _figure("memory", 280, x_range)
    top = max([budget, *(float(level.total) for level in levels)])
    chart.y_range = Range1d(0, 1.08 * top / size.factor)
    below = np.zeros(len(levels))
    edges = {"time": _numbers(level.time for level in levels) / time.factor, "bottom": below}
    for field, _ in CATEGORIES:
        below = below + _numbers(getattr(level, field) for level in levels) / size.factor
        edges[field] = below
    source = ColumnDataSource(edges, name="levels")
    layers = zip(pairwise(list(edges)[1:]), CATEGORY_COLOURS.values(), strict=True)
    for (low, high), colour in layers:
        chart.varea("time", low, high, source=source, fill_color=colour, fill_alpha=0.9)
    visible = min(1.0, max(_OUTLINED / max(len(levels), 1), 0.05))
    total = list(edges)[-1]
    chart.line("time", total, source=source, line_width=1, line_alpha=visible, name="total")
    limit = budget / size.factor
    line = Span(location=limit, dimension="width", line_color=BUDGET_COLOUR, line_width=1.5)
    chart.add_layout(line)
    _finish(chart, f"time [{time.unit}]", f"memory [{size.unit}]")
    _follow(chart)
    return chart


def schedule_chart(
    bars: Sequence[Bar], lanes: Sequence[Lane], *, time: Scale, x_range: Range1d
) -> Figure:
    """Draw the schedule as a Gantt chart: one row a lane, stages upwards within a lane."""
    height = lanes_height(lanes)
    chart = _figure("schedule", 60 + round(_LANE_PIXELS * height), x_range)
    chart.y_range = Range1d(0, height)
    spans = bar_spans(bars, lanes)
    corners = {
        "left": _numbers(bar.start for bar in bars) / time.factor,
        "right": _numbers(bar.end for bar in bars) / time.factor,
        "bottom": _numbers(low for low, _ in spans),
        "top": _numbers(high for _, high in spans),
    }
    nowhere: dict[str, list[float]] = {side: [] for side in corners}
    sides = {side: side for side in corners}
    colours = [STYLE_COLOURS[bar.style] for bar in bars]
    bars_source = ColumnDataSource({**corners, "colour": colours}, name="bars")
    chart.quad(**sides, source=bars_source, fill_color="colour", line_color=None, name="bars-drawn")
    cursor = ColumnDataSource(nowhere, name="cursor")
    chart.quad(**sides, source=cursor, fill_color=None, line_width=2, name="cursor-bar")
    _finish(chart, f"time [{time.unit}]", "")
    middles = {
        (low + high) / 2: lane.name
        for lane, (low, high) in zip(lanes, lane_spans(lanes), strict=True)
    }
    chart.yaxis.ticker = FixedTicker(ticks=list(middles))
    chart.yaxis.major_label_overrides = middles
    chart.ygrid.visible = False
    _follow(chart)
    return chart


def frontier_chart(frontier: Frontier, solution: Solution, *, time: Scale, size: Scale) -> Figure:
    """Draw makespan over budget: the plans found, their bounds, and the plan of the page."""
    chart = _figure("frontier", 300, None)
    points, blue = frontier.points, STYLE_COLOURS["forward"]
    budgets = [point.budget / size.factor for point in points]
    found = [float(point.makespan) / time.factor for point in points]
    best = list(accumulate(found, min))
    chart.step(budgets, best, mode="after", line_color=blue, line_width=2)
    if not frontier.is_complete:
        chart.scatter(budgets, found, marker="circle", size=7, color=blue)
        open_points = [point for point in points if not point.is_optimal]
        open_budgets = [point.budget / size.factor for point in open_points]
        bounds = [float(point.lower_bound) / time.factor for point in open_points]
        chart.scatter(open_budgets, bounds, marker="triangle", size=8, color=blue, alpha=0.6)
    own = [solution.budget / size.factor], [float(solution.makespan) / time.factor]
    colours = {"fill_color": STYLE_COLOURS["again"], "line_color": "#ffffff"}
    chart.scatter(*own, marker="diamond", size=16, **colours, name="plan")
    _finish(chart, f"budget [{size.unit}]", f"time of a step [{time.unit}]")
    return chart


def _numbers(values: Iterable[float | Time]) -> NDArray[np.float64]:
    return np.array([float(value) for value in values])


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
    """Set labels, and hide what distracts on the axes."""
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
    """Tell the page's script the position of the mouse."""
    chart.add_layout(Span(location=0, dimension="height", visible=False, name="cursor-line"))
    code = "window.chainstay.point(cb_obj.x, cb_obj.y, name)"
    for event in (MouseMove, Tap):
        chart.js_on_event(event, CustomJS(args={"name": chart.name}, code=code))
    chart.js_on_event(MouseLeave, CustomJS(code="window.chainstay.leave()"))
