"""The charts of a report put into a page: Bokeh's library, its figures, and what is beside them.

Imported by `pages` when a page is made, since Bokeh is optional.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, NamedTuple

from bokeh.document import Document
from bokeh.embed import components
from bokeh.models import Range1d
from bokeh.resources import Resources

from chainstay.profiles import HomogeneousJoin
from chainstay.report import charts, markup
from chainstay.report.blocks import LOOKS, Block, blocks_of, thinned_levels
from chainstay.report.colours import BUDGET_COLOUR, CATEGORY_COLOURS, LOOK_COLOURS
from chainstay.report.course import Course, Lane, Reported
from chainstay.report.frontier import Frontier
from chainstay.report.lanes import lane_spans
from chainstay.report.levels import CATEGORIES, Level
from chainstay.report.scales import SLOTS, Scale, byte_scale, time_scale
from chainstay.solution import Solution

__all__ = ["Drawn", "draw"]


class Drawn(NamedTuple):
    """What of a page is drawn.

    Attributes:
        library: Bokeh itself, as a script element.
        script: What makes the charts.
        content: For the page's own script.
        course: Parts of `course.html`; empty without a course.
        frontier: Parts of `frontier.html`; empty without points.
    """

    library: str
    script: str
    content: dict[str, Any]
    course: dict[str, str]
    frontier: dict[str, str]


def draw(solution: Solution, profile: Reported, course: Course | None, frontier: Frontier) -> Drawn:
    """All charts that there is something to draw for."""
    is_in_slots = isinstance(profile, HomogeneousJoin)
    time = time_scale(float(solution.makespan))
    size = SLOTS if is_in_slots else byte_scale(solution.budget)
    figures: dict[str, charts.Figure] = {}
    content: dict[str, Any] = {"unit": SLOTS.unit if is_in_slots else ""}
    blocks: tuple[Block, ...] = ()
    levels: tuple[Level, ...] = ()
    if course is not None:
        blocks = blocks_of(course, profile)
        levels = thinned_levels(course.levels, float(course.makespan))
        x_range = _time_range(float(course.makespan) / time.factor)
        figures["memory"] = charts.memory_chart(
            levels, solution.budget, time=time, size=size, x_range=x_range
        )
        figures["schedule"] = charts.schedule_chart(
            blocks, course.lanes, time=time, x_range=x_range
        )
        content |= {"size": size.factor, **_content(course, blocks, levels, time)}
    if _is_tradeoff(frontier):
        figures["frontier"] = charts.frontier_chart(frontier, solution, time=time, size=size)
    script, places = _embedded(figures)
    return Drawn(
        library=Resources(mode="inline", components=["bokeh"]).render_js(),
        script=script,
        content=content,
        course=_course_parts(places, course, blocks, levels) if course else {},
        frontier=_frontier_parts(places, frontier) if _is_tradeoff(frontier) else {},
    )


def _is_tradeoff(frontier: Frontier) -> bool:
    """Whether there is more than the plan itself to draw."""
    return len(frontier.points) > 1


def _time_range(end: float) -> Range1d:
    return Range1d(0, end or 1, bounds=(0, end or 1), min_interval=(end or 1) / 1e6)


def _embedded(figures: dict[str, charts.Figure]) -> tuple[str, dict[str, str]]:
    """The script that draws figures, and the elements into which it does."""
    if not figures:
        return "", {}
    document = Document()
    for figure in figures.values():
        document.add_root(figure)
    script, places = components(figures)
    return script, dict(places)


def _content(
    course: Course, blocks: Sequence[Block], levels: Sequence[Level], time: Scale
) -> dict[str, Any]:
    words = {text: number for number, text in enumerate(dict.fromkeys(b.words for b in blocks))}
    return {
        "time": {"unit": time.unit},
        "makespan": float(course.makespan) / time.factor,
        "lanes": _lanes(course.lanes, blocks),
        "labels": [block.label for block in blocks],
        "words": list(words),
        "says": [words[block.words] for block in blocks],
        "categories": [(field, label, CATEGORY_COLOURS[field]) for field, label in _in_use(levels)],
    }


def _in_use(levels: Sequence[Level]) -> list[tuple[str, str]]:
    """The categories that this plan has anything of."""
    return [
        (field, label)
        for field, label in CATEGORIES
        if any(getattr(level, field) for level in levels)
    ]


def _lanes(lanes: Sequence[Lane], blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Where each lane is, and from which to which of `blocks` are its own."""
    described, first = [], 0
    for number, (lane, (low, high)) in enumerate(zip(lanes, lane_spans(lanes), strict=True)):
        last = first + sum(block.lane == number for block in blocks)
        described.append({"link": lane.is_link, "low": low, "high": high, "blocks": (first, last)})
        first = last
    return described


def _course_parts(
    places: dict[str, str], course: Course, blocks: Sequence[Block], levels: Sequence[Level]
) -> dict[str, str]:
    looks = {block.look for block in blocks}
    shown = [(label, CATEGORY_COLOURS[field], "box") for field, label in _in_use(levels)]
    marks = [(label, LOOK_COLOURS[look], "box") for look, label in LOOKS.items() if look in looks]
    note = (
        "Within a lane, stages go upwards. Drag to look closer, on either chart; ← and → go from "
        "operation to operation."
    )
    if len(course.activities) > len(blocks):
        note += (
            f" {len(course.activities):,} operations are drawn as {len(blocks):,} blocks, and "
            "memory at its highest in each of as many slots of time."
        )
    return {
        "categories": markup.legend([*shown, ("budget", BUDGET_COLOUR, "line")]),
        "memory": places["memory"],
        "looks": markup.legend(marks),
        "schedule": places["schedule"],
        "note": note,
    }


def _frontier_parts(places: dict[str, str], frontier: Frontier) -> dict[str, str]:
    line = LOOK_COLOURS["forward"]
    marks = [("this plan", LOOK_COLOURS["again"], "diamond")]
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
            "proved optimal. Between them, the time is at most that of the point to the left."
        )
    return {"marks": markup.legend(marks), "frontier": places["frontier"], "note": escape(note)}
