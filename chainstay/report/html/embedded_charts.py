"""The charts of a report embedded in a page: Bokeh's library, its figures, and their notes.

Imported by `page` when a page is made, since Bokeh is optional.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from bokeh.document import Document
from bokeh.embed import components
from bokeh.models import Range1d
from bokeh.resources import Resources

from chainstay.problems import Problem
from chainstay.report.axis_units import Scale, memory_scale, time_scale
from chainstay.report.colours import BUDGET_COLOUR, CATEGORY_COLOURS, STYLE_COLOURS
from chainstay.report.frontier import Frontier
from chainstay.report.gantt_bars import BAR_STYLES, Bar, build_bars, lane_spans, thinned_levels
from chainstay.report.html import charts, elements
from chainstay.report.memory_profile import CATEGORIES, MemoryLevel
from chainstay.report.timeline import Lane, Timeline
from chainstay.solution import Solution


class EmbeddedCharts(NamedTuple):
    """The drawn parts of a page.

    Attributes:
        library: Bokeh itself, as a script element.
        script: The script that draws the charts.
        content: Data for the page's own script.
        timeline: Parts of `timeline.html`; empty without a timeline.
        frontier: Parts of `frontier.html`; empty without points.
    """

    library: str
    script: str
    content: dict[str, Any]
    timeline: dict[str, str]
    frontier: dict[str, str]


def draw(
    solution: Solution, problem: Problem, timeline: Timeline | None, frontier: Frontier
) -> EmbeddedCharts:
    """Draw all charts that there are data for."""
    time, size = time_scale(float(solution.makespan)), memory_scale(problem)
    figures: dict[str, charts.Figure] = {}
    content: dict[str, Any] = {"unit": problem.unit if problem.unit == "slots" else ""}
    bars: tuple[Bar, ...] = ()
    levels: tuple[MemoryLevel, ...] = ()
    if timeline is not None:
        bars = build_bars(timeline)
        levels = thinned_levels(timeline.levels, float(timeline.makespan))
        end = float(timeline.makespan) / time.factor or 1
        x_range = Range1d(0, end, bounds=(0, end), min_interval=end / 1e6)
        figures["memory"] = charts.memory_chart(
            levels, solution.budget, time=time, size=size, x_range=x_range
        )
        figures["schedule"] = charts.schedule_chart(
            bars, timeline.lanes, time=time, x_range=x_range
        )
        content |= {"size": size.factor, **_content(timeline, bars, levels, time)}
    if _is_tradeoff(frontier):
        figures["frontier"] = charts.frontier_chart(frontier, solution, time=time, size=size)
    script, places = _embedded(figures)
    return EmbeddedCharts(
        library=Resources(mode="inline", components=["bokeh"]).render_js(),
        script=script,
        content=content,
        timeline=_timeline_parts(places, timeline, bars, levels) if timeline else {},
        frontier=_frontier_parts(places, frontier) if _is_tradeoff(frontier) else {},
    )


def _is_tradeoff(frontier: Frontier) -> bool:
    """Return whether there is more than the plan itself to draw."""
    return len(frontier.points) > 1


def _embedded(figures: dict[str, charts.Figure]) -> tuple[str, dict[str, str]]:
    """Return the script that draws figures, and the elements into which it does."""
    if not figures:
        return "", {}
    document = Document()
    for figure in figures.values():
        document.add_root(figure)
    script, places = components(figures)
    return script, dict(places)


def _content(
    timeline: Timeline, bars: Sequence[Bar], levels: Sequence[MemoryLevel], time: Scale
) -> dict[str, Any]:
    numbers = {
        text: number for number, text in enumerate(dict.fromkeys(b.description for b in bars))
    }
    return {
        "time": {"unit": time.unit},
        "makespan": float(timeline.makespan) / time.factor,
        "lanes": _lanes(timeline.lanes, bars),
        "labels": [bar.label for bar in bars],
        "descriptions": list(numbers),
        "description_of": [numbers[bar.description] for bar in bars],
        "categories": [(field, label, CATEGORY_COLOURS[field]) for field, label in _in_use(levels)],
    }


def _in_use(levels: Sequence[MemoryLevel]) -> list[tuple[str, str]]:
    """Return the categories that this plan has anything of."""
    return [
        (field, label)
        for field, label in CATEGORIES
        if any(getattr(level, field) for level in levels)
    ]


def _lanes(lanes: Sequence[Lane], bars: Sequence[Bar]) -> list[dict[str, Any]]:
    """Return the position of each lane, and the range of its own `bars`."""
    described, first = [], 0
    for number, (lane, (low, high)) in enumerate(zip(lanes, lane_spans(lanes), strict=True)):
        last = first + sum(bar.lane == number for bar in bars)
        described.append({"link": lane.is_link, "low": low, "high": high, "bars": (first, last)})
        first = last
    return described


def _timeline_parts(
    places: dict[str, str], timeline: Timeline, bars: Sequence[Bar], levels: Sequence[MemoryLevel]
) -> dict[str, str]:
    styles = {bar.style for bar in bars}
    shown = [(label, CATEGORY_COLOURS[field], "box") for field, label in _in_use(levels)]
    marks = [
        (label, STYLE_COLOURS[style], "box")
        for style, label in BAR_STYLES.items()
        if style in styles
    ]
    note = (
        "Within a lane, stages go upwards. Drag to look closer, on either chart; ← and → go from "
        "operation to operation."
    )
    if len(timeline.activities) > len(bars):
        note += (
            f" {len(timeline.activities):,} operations are drawn as {len(bars):,} bars, and "
            "memory at its highest in each of as many slots of time."
        )
    return {
        "categories": elements.legend([*shown, ("budget", BUDGET_COLOUR, "line")]),
        "memory": places["memory"],
        "styles": elements.legend(marks),
        "schedule": places["schedule"],
        "note": note,
    }


def _frontier_parts(places: dict[str, str], frontier: Frontier) -> dict[str, str]:
    line = STYLE_COLOURS["forward"]
    marks = [("this plan", STYLE_COLOURS["again"], "diamond")]
    if frontier.is_complete:
        marks.append(("least time, proved", line, "line"))
        note = f"Every budget, by {frontier.method}."
    else:
        proved = sum(point.is_optimal for point in frontier.points)
        marks.append(("found", line, "dot"))
        if proved < len(frontier.points):
            marks.append(("bound: nothing is below", line, "bound"))
        note = (
            f"{len(frontier.points)} plans, this one and others by {frontier.method}; {proved} "
            "proved optimal where each stage costs what it costs in this plan. Between them, the "
            "time is at most that of the point to the left."
        )
    return {"marks": elements.legend(marks), "frontier": places["frontier"], "note": escape(note)}
