"""A plan as one HTML page that needs nothing else: no network, no server, no other file.

Everything shown is replayed by the simulator while the page is made. Names of stages and the
title are text to the page, whatever they contain: they reach it escaped, or as JSON that a
script shows as text. The page's own policy forbids it to load anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib import import_module
from importlib.metadata import version
from importlib.resources import files
from string import Template
from types import ModuleType
from typing import Final

from chainstay.errors import BackendError, InvalidSolutionError
from chainstay.plans.kept_in_part import kept_in_part
from chainstay.problems import Problem, problem_of
from chainstay.problems.offload import OffloadSolution
from chainstay.profiles import AnyProfile
from chainstay.report.frontier import Frontier, frontier_of
from chainstay.report.html import elements
from chainstay.report.proof import proof_text
from chainstay.report.stage_table import stage_table
from chainstay.report.timeline import build_timeline
from chainstay.solution import Solution
from chainstay.units import format_time

_ASSETS: Final = files("chainstay.report.html") / "assets"
_NO_TIMES: Final = (
    "Parts of tensors move in this plan beside recomputation: its time is that of a model in "
    "theory, and there is no timetable to draw. Solve with transfers='integral' for a plan that "
    "runs."
)
_ALONE: Final = """<section id="frontier" class="alone">
<h2>What other budgets would give</h2>
<p class="note">This was not asked, since one solve takes longer than a page may.
<code>frontier_of(solution, profile, seconds=600)</code> asks, and <code>page</code> shows its
answer.</p>
</section>"""
_SIZES_NOTE: Final = (
    "A click on a heading sorts. Sizes and times are those that the plan was made for."
)
_SLOTS_NOTE: Final = "A click on a heading sorts. Every value takes one slot."


def page(  # noqa: PLR0913  # options of a plan, all by name
    solution: Solution,
    profile: AnyProfile,
    *,
    title: str = "Training plan",
    frontier: Frontier | None = None,
    keep: Sequence[bool] | None = None,
    overheads: Sequence[int] | None = None,
    plain_time: int | None = None,
    plain_peak: int | None = None,
) -> str:
    """Return `solution` as one self-contained HTML page.

    Memory over time by category, the schedule as a Gantt chart, what other budgets would give,
    what is proved, and the stages.

    Args:
        solution: A plan.
        profile: The costs that it is a plan of.
        title: Title of the page.
        frontier: Plans at other budgets; None: found in a few seconds by `frontier_of`.
        keep: The flags that were given to `solve_join`, for a join.
        overheads: Bytes that each operation of a measured chain needs beside what is stored,
            where more is known than the profile says (`Plan.overheads`).
        plain_time: Measured time of plain training, in ns (`Plan.plain_time`); None: the
            profile's.
        plain_peak: Its measured peak, in bytes (`Plan.plain_peak`), to be named.

    Returns:
        The page's text, about 1.3 MB and more for long schedules; write it as UTF-8.

    Raises:
        BackendError: Bokeh is not installed.
        InvalidSolutionError: The solution is not of this profile.
        InvalidScheduleError: Its schedule cannot run on this profile.
    """
    drawing = _drawing()
    problem = problem_of(solution, profile, keep=keep, error=InvalidSolutionError)
    timeline = build_timeline(solution, profile, keep=keep, overheads=overheads)
    if frontier is None:
        frontier = frontier_of(solution, profile, keep=keep)
    drawn = drawing.draw(solution, problem, timeline, frontier)
    proof = proof_text(solution)
    return _fill(
        "page.html",
        version=version("chainstay"),
        title=escape(title),
        style=_asset("page.css"),
        script=_asset("page.js"),
        library=drawn.library,
        charts=drawn.script,
        data=elements.json_text(drawn.content),
        kind="plan of a join"
        if problem.network == "join"
        else f"plan of a chain, {problem.techniques}",
        lead=escape(_lead(solution, problem)),
        figures="\n".join(_figures(solution, problem, plain_time, plain_peak)),
        timeline=_fill("timeline.html", **drawn.timeline)
        if timeline
        else elements.paragraph(_NO_TIMES),
        frontier=_fill("frontier.html", **drawn.frontier) if drawn.frontier else _ALONE,
        verdict=escape(proof.verdict),
        sentence=escape(proof.sentence),
        facts="\n".join(elements.definition(*fact) for fact in proof.facts),
        notes="\n".join(map(elements.paragraph, proof.notes)),
        table=elements.table(stage_table(problem, solution.schedule)),
        table_note=_SLOTS_NOTE if problem.unit == "slots" else _SIZES_NOTE,
        operations=f"{len(solution.schedule):,}",
        schedule=escape(str(solution.schedule)),
    )


def _drawing() -> ModuleType:
    try:
        return import_module("chainstay.report.html.embedded_charts")
    except ImportError as missing:
        if missing.name is None or missing.name.partition(".")[0] != "bokeh":
            raise
        raise BackendError(
            "bokeh is not installed, and reports are drawn with it; install it with: "
            "pip install 'bokeh>=3.4,<4'"
        ) from missing


def _asset(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


def _fill(name: str, **parts: str) -> str:
    return Template(_asset(name)).substitute(parts)


def _lead(solution: Solution, problem: Problem) -> str:
    stages, size = problem.stages, problem.format_size
    return (
        f"One training step of a {problem.network} of {stages:,} stage{'s' * (stages != 1)} within "
        f"{size(solution.budget)}: {len(solution.schedule):,} operations take "
        f"{format_time(solution.makespan)} and never need more than {size(solution.peak_bytes)}."
    )


def _figures(
    solution: Solution, problem: Problem, plain_time: int | None, plain_peak: int | None
) -> Iterator[str]:
    least, size = plain_time or problem.profile.least_time, problem.format_size
    excess = float(solution.makespan) / least - 1 if least else 0.0
    shortest = format_time(least).replace(" ", "\N{NO-BREAK SPACE}")
    yield elements.figure(
        "Time of a step",
        format_time(solution.makespan),
        f"{excess:.1%} more than without a budget ({shortest})",
    )
    yield elements.figure(
        "Peak memory",
        size(solution.peak_bytes),
        f"of {size(solution.budget)}"
        + ("" if plain_peak is None else f"; plain training needs {size(plain_peak)}"),
        share=solution.peak_bytes / solution.budget,
    )
    if problem.recomputes:
        forwards = [(op.branch, op.stage) for op in solution.schedule if op.kind.is_forward]
        again = len(forwards) - len(set(forwards))
        yield elements.figure(
            "Recomputed",
            f"{again:,} forward{'s' * (again != 1)}",
            f"beside the {problem.stages:,} of plain training",
        )
    if parts := kept_in_part(problem.profile, solution.schedule):
        share = sum(part.extra_time for part in parts) / least if least else 0.0
        yield elements.figure(
            "Kept in part",
            f"{sum(part.stages for part in parts):,} of {problem.stages:,} stages",
            f"{size(sum(part.less_bytes for part in parts))} less than whole, for {share:.1%} of a "
            "step",
        )
    if isinstance(solution, OffloadSolution):
        moved = sum(op.kind.is_offload for op in solution.schedule)
        yield elements.figure(
            "Moved away",
            f"{moved:,} tensor{'s' * (moved != 1)}",
            f"over a link of {float(solution.link.bandwidth):.3g} GB/s",
        )
    proof = proof_text(solution)
    yield elements.figure(
        "Proof",
        proof.verdict,
        f"among {solution.covered}",
        style="good" if solution.is_optimal else "open",
    )
