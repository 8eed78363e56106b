"""A plan as one picture, PNG or SVG: memory over time, and who does what when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import BinaryIO, Final

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from chainstay.errors import InvalidSolutionError
from chainstay.profiles import HomogeneousJoin
from chainstay.report.blocks import LOOKS, Block, blocks_of, thinned_levels
from chainstay.report.colours import BUDGET_COLOUR, CATEGORY_COLOURS, LOOK_COLOURS
from chainstay.report.course import Course, Lane, Reported, course_of
from chainstay.report.lanes import block_spans, lane_spans, lanes_height
from chainstay.report.levels import CATEGORIES
from chainstay.report.scales import SLOTS, Scale, byte_scale, time_scale
from chainstay.solution import Solution

__all__ = ["picture"]

_WIDTH: Final = 10.0
"""In inches."""
_TITLE_COLUMNS: Final = 110
_OUTLINED: Final = 500
"""As many blocks are told apart by a thin line."""


def picture(  # noqa: PLR0913  # options of a plan, all by name
    solution: Solution,
    profile: Reported,
    file: Path | BinaryIO,
    *,
    kind: str | None = None,
    title: str = "Training plan",
    keep: Sequence[bool] | None = None,
    overheads: Sequence[int] | None = None,
) -> None:
    """Write a picture of `solution`, of any kind.

    Args:
        solution: A plan.
        profile: What it is a plan of.
        file: Where to.
        kind: ``"png"``, ``"svg"`` or ``"pdf"``; None: by the name of `file`.
        title: Above it, before a sentence that describes the plan.
        keep: Of a join, as given to `solve_join`.
        overheads: Of a measured chain, as in `page`.

    Raises:
        InvalidSolutionError: The solution is not of this profile, or has no times: fractional
            transfers beside recomputation.
        InvalidScheduleError: Its schedule cannot run on this profile.
    """
    course = course_of(solution, profile, keep=keep, overheads=overheads)
    if course is None:
        raise InvalidSolutionError(
            "transfers is 'fractional', and such a plan with recomputation has a makespan and no "
            "times; solve with transfers='integral'"
        )
    time = time_scale(float(course.makespan))
    size = SLOTS if isinstance(profile, HomogeneousJoin) else byte_scale(solution.budget)
    height = lanes_height(course.lanes)
    figure = Figure(figsize=(_WIDTH, 4.4 + 1.1 * height), layout="constrained", dpi=130)
    upper, lower = figure.subplots(2, sharex=True, height_ratios=(2.6, 0.4 + 1.1 * height))
    _draw_memory(upper, course, solution.budget, time, size)
    _draw_schedule(lower, blocks_of(course, profile), course.lanes, time)
    lines = [title, *fill(solution.describe(), _TITLE_COLUMNS).splitlines()]
    upper.set_title("\n".join(lines), loc="left", fontsize=10, parse_math=False)
    lower.set(xlim=(0, float(course.makespan) / time.factor or 1), xlabel=f"time [{time.unit}]")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, format=kind)


def _draw_memory(axes: Axes, course: Course, budget: int, time: Scale, size: Scale) -> None:
    levels = thinned_levels(course.levels, float(course.makespan))
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
    axes.set_ylim(0, 1.08 * max(budget, course.peak_bytes) / size.factor)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _draw_schedule(axes: Axes, blocks: Sequence[Block], lanes: Sequence[Lane], time: Scale) -> None:
    corners = []
    for block, (low, high) in zip(blocks, block_spans(blocks, lanes), strict=True):
        left, right = block.start / time.factor, block.end / time.factor
        corners.append([(left, low), (right, low), (right, high), (left, high)])
    edges = "white" if len(blocks) <= _OUTLINED else "none"
    colours = [LOOK_COLOURS[block.look] for block in blocks]
    axes.add_collection(
        PolyCollection(corners, facecolors=colours, edgecolors=edges, linewidths=0.6)
    )
    spans = lane_spans(lanes)
    axes.set_yticks([(low + high) / 2 for low, high in spans], [lane.name for lane in lanes])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(0, lanes_height(lanes))
    looks = {block.look for block in blocks}
    patches = [
        Patch(color=LOOK_COLOURS[look], label=label)
        for look, label in LOOKS.items()
        if look in looks
    ]
    axes.legend(
        handles=patches, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9
    )
