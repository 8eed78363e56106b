"""Training by a plan, measured and compared with plain PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

from chainstay.applying import apply_plan
from chainstay.baselines.join import keep_all_join
from chainstay.cli.models.workload import Workload
from chainstay.cli.terminal import progress_bar, spinner
from chainstay.cli.training_steps import TrainingRecord, fits_here, measure_peak, measure_step_times
from chainstay.fitting import unfit
from chainstay.plans import Plan
from chainstay.profiles import JoinProfile
from chainstay.schedule import Schedule
from chainstay.timetable import Time
from chainstay.units import format_bytes
from chainstay.validation.join.simulate import simulate_join
from chainstay.validation.simulate import simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Planned and measured costs of a few training steps.

    Attributes:
        title: The model, its batch and device, for people.
        plan: The plan.
        planned_plain: Peak in bytes and time in ns of plain training, by the plan's costs.
        measured_peak: Measured peak, in bytes.
        measured_time: Least measured time of a step, in ns.
        plain: Measured peak in bytes and time in ns of plain PyTorch; ``None`` if not run.
        differences: Names of what differs from plain PyTorch; ``None`` if not compared.
        is_plain_steady: True if plain PyTorch gives the same bits when it is run twice.
        reason_not_compared: Reason why plain PyTorch was not run; empty if it was.
    """

    title: str
    plan: Plan
    planned_plain: tuple[int, Time]
    measured_peak: int
    measured_time: int
    plain: tuple[int, int] | None
    differences: tuple[str, ...] | None
    is_plain_steady: bool
    reason_not_compared: str

    @property
    def is_within_budget(self) -> bool:
        """True if the measured peak is within the budget."""
        return self.measured_peak <= self.plan.solution.budget

    @property
    def is_as_planned(self) -> bool:
        """True if nothing that was compared is wrong, and memory is within the budget."""
        is_wrong = bool(self.differences) and self.is_plain_steady
        return self.is_within_budget and not is_wrong


def train_by_plan(
    workload: Workload, plan: Plan, *, steps: int, compare: bool, host_budget: str | None
) -> RunResult:
    """Train `steps` steps by `plan` and, if asked for and possible, by plain PyTorch."""
    planned_plain = _planned_plain(plan)
    reason = _reason_not_to_compare(workload, planned_plain[0], compare=compare)
    plain = differences = None
    if not reason:
        with progress_bar("plain steps", 2 * steps + 1) as step:
            times = measure_step_times(workload, steps, lambda: step("plain steps"))
            plain = (measure_peak(workload), min(times))
            expected = TrainingRecord.from_steps(workload, steps, lambda: step("plain steps"))
    with spinner("applying the plan"):
        apply_plan(
            workload.model, workload.args, workload.kwargs, plan=plan, host_budget=host_budget
        )
    try:
        with progress_bar("planned steps", 2 * steps + 1) as step:
            measured_times = measure_step_times(workload, steps, lambda: step("planned steps"))
            measured_peak = measure_peak(workload)
            found = TrainingRecord.from_steps(workload, steps, lambda: step("planned steps"))
    finally:
        unfit(workload.model)
    is_steady = True
    if not reason:
        differences = tuple(expected.differences(found))
        if differences:
            again = TrainingRecord.from_steps(workload, steps, lambda: None)
            is_steady = not any(expected.differences(again))
    return RunResult(
        title=workload.title,
        plan=plan,
        planned_plain=planned_plain,
        measured_peak=measured_peak,
        measured_time=min(measured_times),
        plain=plain,
        differences=differences,
        is_plain_steady=is_steady,
        reason_not_compared=reason,
    )


def _reason_not_to_compare(workload: Workload, plain_peak: int, *, compare: bool) -> str:
    """Return why plain PyTorch is not run, or an empty text if it is."""
    if not compare:
        return "not asked for"
    if not fits_here(plain_peak, workload.target.device):
        size = format_bytes(plain_peak)
        return f"plain training needs {size}, which is not free here"
    return ""


def _planned_plain(plan: Plan) -> tuple[int, Time]:
    """Return the peak and time of plain training, simulated where they were not measured."""
    if plan.plain_peak is not None and plan.plain_time is not None:
        return plan.plain_peak, plan.plain_time
    if isinstance(plan.profile, JoinProfile):
        keep_all = keep_all_join(plan.profile)
        replay = simulate_join(plan.profile, keep_all, keep=plan.keep or None)
    else:
        replay = simulate(plan.stages, Schedule.keep_all(len(plan.stages)))
    return replay.peak_bytes, replay.makespan
