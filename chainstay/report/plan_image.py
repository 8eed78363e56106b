"""A plan as one image, PNG or SVG: memory over time, and the schedule as a Gantt chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import BinaryIO, Final

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from chainstay.profiles import AnyProfile
from chainstay.report.axis_units import Scale, memory_scale, time_scale
from chainstay.report.colours import BUDGET_COLOUR, CATEGORY_COLOURS, STYLE_COLOURS
from chainstay.report.gantt_bars import (
    BAR_STYLES,
    Bar,
    bar_spans,
    build_bars,
    lane_spans,
    lanes_height,
    thinned_levels,
)
from chainstay.report.memory_profile import CATEGORIES
from chainstay.report.timeline import Lane, Timeline, timeline_with_times
from chainstay.solution import Solution

_WIDTH: Final = 10.0
"""Width in inches."""
_TITLE_COLUMNS: Final = 110
_OUTLINED: Final = 500
"""Number of bars up to which a thin line separates them."""


def picture(  # noqa: PLR0913  # options of a plan, all by name
    solution: Solution,
    profile: AnyProfile,
    file: Path | BinaryIO,
    *,
    kind: str | None = None,
    title: str = "Training plan",
    keep: Sequence[bool] | None = None,
    overheads: Sequence[int] | None = None,
) -> None:
    """Write an image of `solution`, of any kind.

    Args:
        solution: A plan.
        profile: The costs that it is a plan of.
        file: Path or open file to write to.
        kind: ``"png"``, ``"svg"`` or ``"pdf"``; None: by the name of `file`.
        title: Title above it, before a sentence that describes the plan.
        keep: The flags that were given to `solve_join`, for a join.
        overheads: Bytes that each operation of a measured chain needs, as in `page`.

    Raises:
        InvalidSolutionError: The solution is not of this profile, or has no times: fractional
            transfers beside recomputation.
        InvalidScheduleError: Its schedule cannot run on this profile.
    """
    timeline = timeline_with_times(solution, profile, keep=keep, overheads=overheads)
    time = time_scale(float(timeline.makespan))
    size = memory_scale(timeline.problem)
    height = lanes_height(timeline.lanes)
    figure = Figure(figsize=(_WIDTH, 4.4 + 1.1 * height), layout="constrained", dpi=130)
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(2.6, 0.4 + 1.1 * height))
    _draw_memory(upper, timeline, solution.budget, time, size)
    _draw_schedule(lower, build_bars(timeline), timeline.lanes, time)
    lines = [title, *fill(timeline.problem.describe(solution), _TITLE_COLUMNS).splitlines()]
    upper.set_title("\n".join(lines), loc="left", fontsize=10, parse_math=False)
    lower.set(xlim=(0, float(timeline.makespan) / time.factor or 1), xlabel=f"time [{time.unit}]")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, format=kind)


def _draw_memory(axes: Axes, timeline: Timeline, budget: int, time: Scale, size: Scale) -> None:
    levels = thinned_levels(timeline.levels, float(timeline.makespan))
    axes.stackplot(
        [float(level.time) / time.factor for level in levels],
        [
            [float(getattr(level, field)) / size.factor for level in levels]
            for field, _ in CATEGORIES
        ],
        labels=[label for _, label in CATEGORIES],
        colors=[CATEGORY_COLOURS[field] for field, _ in CATEGORIES],
        linewidth=0,
    )
    axes.axhline(budget / size.factor, color=BUDGET_COLOUR, linewidth=1.4, label="budget")
    axes.set_ylabel(f"memory [{size.unit}]")
    axes.set_ylim(0, 1.08 * max(budget, timeline.peak_bytes) / size.factor)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _draw_schedule(axes: Axes, bars: Sequence[Bar], lanes: Sequence[Lane], time: Scale) -> None:
    corners = []
    for bar, (low, high) in zip(bars, bar_spans(bars, lanes), strict=True):
        left, right = bar.start / time.factor, bar.end / time.factor
        corners.append([(left, low), (right, low), (right, high), (left, high)])
    edges = "white" if len(bars) <= _OUTLINED else "none"
    colours = [STYLE_COLOURS[bar.style] for bar in bars]
    drawn = PolyCollection(corners, facecolors=colours, edgecolors=edges, linewidths=0.6)
    axes.add_collection(drawn)
    spans = lane_spans(lanes)
    axes.set_yticks([(low + high) / 2 for low, high in spans], [lane.name for lane in lanes])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(0, lanes_height(lanes))
    styles = {bar.style for bar in bars}
    patches = [
        Patch(color=STYLE_COLOURS[style], label=label)
        for style, label in BAR_STYLES.items()
        if style in styles
    ]
    axes.legend(
        handles=patches, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9
    )
