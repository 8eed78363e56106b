"""The work behind ``chainstay run``: plan if need be, apply, train, measure, compare."""

from __future__ import annotations

import json as documents
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainstay.applying import apply_plan
from chainstay.baselines.join import keep_all_join
from chainstay.cli.endings import CommandLineError, Ending
from chainstay.cli.planning import Asked
from chainstay.cli.profiling import Request
from chainstay.cli.tables import short_bytes
from chainstay.cli.terminal import bar, busy, plain_table, say, show
from chainstay.cli.training import Training, fits_here, peak_of, times_of
from chainstay.cli.workloads import Workload
from chainstay.fitting import unfit
from chainstay.plans import Plan, load_plan
from chainstay.profiles import JoinProfile
from chainstay.schedule import Schedule
from chainstay.units import format_bytes, format_time
from chainstay.validation.join import simulate_join
from chainstay.validation.simulate import Replay, simulate

__all__ = ["Run", "run_made"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What is wanted of a run: options as they were given.

    Attributes:
        plan: A plan file; ``None`` where one is to be made as `asked`.
    """

    plan: Path | None
    asked: Asked | None
    steps: int
    compare: bool
    host_budget: str | None

    def require_sound(self) -> None:
        """Refuse options that do not go together, before anything is built.

        Raises:
            CommandLineError: As its text says.
        """
        if (self.plan is None) == (self.asked is None):
            raise CommandLineError(
                "by which plan? Give --plan plan.json, or --budget 50% to make one now"
                if self.plan is None
                else "--plan and --budget are both given; the plan has its budget, leave one out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a run showed.

    Attributes:
        planned_peak: In bytes, as is `measured_peak`.
        planned_time: Of a step, in ns, as is `measured_time`, the least of all.
        plain: Peak and time of plain PyTorch; ``None`` where it was not run.
        differences: From plain PyTorch; ``None`` where nobody looked.
        is_plain_steady: Whether plain PyTorch gives the same bits when it is run twice.
    """

    title: str
    plan: Plan
    planned_peak: int
    planned_time: float
    measured_peak: int
    measured_time: int
    plain: tuple[int, int] | None = None
    differences: tuple[str, ...] | None = None
    is_plain_steady: bool = True
    why_not: str = ""

    @property
    def ending(self) -> Ending:
        """Whether all that was looked at is right."""
        wrong = bool(self.differences) and self.is_plain_steady
        over = self.measured_peak > self.plan.solution.budget
        return Ending.FAILED if wrong or over else Ending.DONE


def run_made(request: Request, wanted: Run, *, json: bool) -> Ending:
    """Train, and print what became of the plan."""
    wanted.require_sound()
    if request.device not in (None, "cpu") and not str(request.device).startswith("cuda"):
        raise CommandLineError(
            f"--device {request.device} is a data sheet, on which nothing runs; use cpu or cuda"
        )
    plan = load_plan(wanted.plan) if wanted.plan is not None else None
    if plan is None:
        from chainstay.cli.planning_models import plan_of_model

        assert wanted.asked is not None
        link = wanted.asked.require_sound()
        costed = request.costs()
        plan, workload = plan_of_model(costed, request, wanted.asked, link).plan, costed.workload
    else:
        workload = request.workload()
    outcome = _trained(workload, plan, wanted)
    if json:
        sys.stdout.write(documents.dumps(_document(outcome), indent=1) + "\n")
    else:
        _show(outcome)
    return outcome.ending


def _trained(workload: Workload, plan: Plan, wanted: Run) -> Outcome:
    why_not = _why_not_plain(workload, plan, wanted)
    plain = differences = None
    if not why_not:
        with bar("plain steps", 2 * wanted.steps + 1) as step:
            times = times_of(workload, wanted.steps, lambda: step("plain steps"))
            plain = (peak_of(workload), min(times))
            expected = Training.of(workload, wanted.steps, lambda: step("plain steps"))
    with busy("applying the plan"):
        apply_plan(
            workload.model,
            workload.args,
            workload.kwargs,
            plan=plan,
            host_budget=wanted.host_budget,
        )
    try:
        with bar("planned steps", 2 * wanted.steps + 1) as step:
            measured_times = times_of(workload, wanted.steps, lambda: step("planned steps"))
            measured_peak = peak_of(workload)
            found = Training.of(workload, wanted.steps, lambda: step("planned steps"))
    finally:
        unfit(workload.model)
    is_steady = True
    if not why_not:
        differences = tuple(expected.differences(found))
        if differences:
            again = Training.of(workload, wanted.steps, lambda: None)
            is_steady = not any(expected.differences(again))
    return Outcome(
        title=workload.title,
        plan=plan,
        planned_peak=plan.solution.peak_bytes,
        planned_time=float(plan.solution.makespan),
        measured_peak=measured_peak,
        measured_time=min(measured_times),
        plain=plain,
        differences=differences,
        is_plain_steady=is_steady,
        why_not=why_not,
    )


def _why_not_plain(workload: Workload, plan: Plan, wanted: Run) -> str:
    """Why plain PyTorch is not run; empty if it is."""
    if not wanted.compare:
        return "not asked for"
    peak = _plain(plan).peak_bytes
    if not fits_here(peak, workload.target.device):
        return f"plain training needs {format_bytes(peak)}, which is not free here"
    return ""


def _plain(plan: Plan) -> Replay:
    """Plain training, as far as the plan's costs tell."""
    if isinstance(plan.profile, JoinProfile):
        keep_all = keep_all_join(plan.profile)
        return simulate_join(plan.profile, keep_all, keep=plan.keep or None)
    return simulate(plan.stages, Schedule.keep_all(len(plan.stages)))


def _show(outcome: Outcome) -> None:
    solution = outcome.plan.solution
    say(outcome.title, style="bold")
    table = plain_table()
    table.add_column("")
    for heading in ("peak\nplanned", "\nmeasured", "step\nplanned", "\nmeasured"):
        table.add_column(heading, justify="right", no_wrap=True)
    if outcome.plain is not None:
        peak, took = outcome.plain
        keep_all = _plain(outcome.plan)
        table.add_row(
            "plain PyTorch",
            short_bytes(keep_all.peak_bytes),
            short_bytes(peak),
            format_time(keep_all.makespan),
            format_time(took),
        )
    table.add_row(
        "by the plan",
        short_bytes(outcome.planned_peak),
        short_bytes(outcome.measured_peak),
        format_time(outcome.planned_time),
        format_time(outcome.measured_time),
    )
    show(table)
    profile = outcome.plan.profile
    stages = profile.stages if isinstance(profile, JoinProfile) else len(outcome.plan.stages)
    within = outcome.measured_peak <= solution.budget
    say(
        f"\nbudget {format_bytes(solution.budget)}: {'kept' if within else 'EXCEEDED'}; "
        f"{stages} stages, {len(solution.schedule)} operations"
    )
    say(f"loss, gradients, buffers, random state against plain PyTorch: {_verdict(outcome)}")


def _verdict(outcome: Outcome) -> str:
    if outcome.differences is None:
        return f"not compared ({outcome.why_not})"
    if not outcome.differences:
        return "equal, bit for bit"
    shown = ", ".join(outcome.differences[:3]) + (" ..." if len(outcome.differences) > 3 else "")
    if not outcome.is_plain_steady:
        return f"plain PyTorch differs from itself when it is run twice ({shown})"
    return f"DIFFERENT in {len(outcome.differences)} tensors: {shown}"


def _document(outcome: Outcome) -> dict[str, Any]:
    solution = outcome.plan.solution
    return {
        "model": outcome.title,
        "budget": solution.budget,
        "planned_peak_bytes": outcome.planned_peak,
        "measured_peak_bytes": outcome.measured_peak,
        "planned_ns": outcome.planned_time,
        "measured_ns": outcome.measured_time,
        "plain_peak_bytes": outcome.plain[0] if outcome.plain else None,
        "plain_ns": outcome.plain[1] if outcome.plain else None,
        "equal": None if outcome.differences is None else not outcome.differences,
        "differences": list(outcome.differences or ()),
        "is_plain_steady": outcome.is_plain_steady,
        "within_budget": outcome.measured_peak <= solution.budget,
    }
