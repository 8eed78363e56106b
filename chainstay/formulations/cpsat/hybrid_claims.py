"""Claims of `CPSAT` for recomputing and offloading: models of growing size, and what they prove."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Final

from chainstay.errors import SolverLimitError
from chainstay.formulations.cpsat.hybrid import build
from chainstay.formulations.cpsat.hybrid_codec import decode, start_from
from chainstay.formulations.cpsat.hybrid_truncation import ModelSize
from chainstay.formulations.ortools_backend import solve
from chainstay.formulations.settings import Limits, SolverSettings, TerminationStatus
from chainstay.problems.hybrid import HybridClaim, HybridProblem
from chainstay.schedule import Schedule
from chainstay.solution import Family
from chainstay.timetable import Time, exact
from chainstay.units import format_bytes

_LEAST_SECONDS: Final = 0.05
"""Seconds left of the time limit with which another model is not started."""
_TWICE: Final = ModelSize(sweeps=2, prefetches=2)


@dataclass(slots=True)
class Incumbent:
    """The best schedule so far, and bounds.

    Attributes:
        problem: The problem that is solved.
        schedule: The fastest schedule known, if any.
        makespan: Its makespan, in the profile's time units.
        bound: A time that no schedule at all is below.
        bound_twice: A time that no schedule of `Family.TWICE` is below.
    """

    problem: HybridProblem
    schedule: Schedule | None
    makespan: Time | None
    bound: Time
    bound_twice: Time = 0

    @property
    def is_complete(self) -> bool:
        """True if nothing is left to find."""
        return self.makespan is not None and self.bound >= self.makespan

    def add_schedule(self, schedule: Schedule, makespan: Time) -> None:
        """Take a schedule, if it is the fastest so far."""
        if self.makespan is None or makespan < self.makespan:
            self.schedule, self.makespan = schedule, makespan

    def add_bound(self, model_size: ModelSize, bound: Time | None) -> None:
        """Take a time that no schedule in a model is below; with ``None``, there is none in it."""
        for within in (None, _TWICE):
            bound_outside = model_size.bound_outside(self.problem, within)
            known = bound_outside if bound is None else min(bound, bound_outside)
            if within is None:
                self.bound = max(self.bound, known)
            else:
                self.bound_twice = max(self.bound_twice, known)

    def claim(self) -> HybridClaim | None:
        """Return the claim, ``None`` without a schedule."""
        if self.schedule is None or self.makespan is None:
            return None
        bound = min(self.bound, self.makespan)
        twice = min(self.bound_twice, self.makespan)
        family, lower = (Family.TWICE, twice) if twice > bound else (Family.ALL, bound)
        return HybridClaim(
            schedule=self.schedule,
            makespan=self.makespan,
            lower_bound=lower,
            family=family,
            unrestricted_bound=bound,
        )


def claim(
    problem: HybridProblem,
    settings: SolverSettings,
    *,
    known: HybridClaim | None = None,
    least: Time,
) -> HybridClaim:
    """Return the fastest schedule that CP-SAT finds, and what it proves.

    Models of growing size are solved, until nothing is left to find or time runs out.

    Args:
        problem: Feasible; its transfers are integral.
        settings: The settings; the time limit is for all models together.
        known: An answer to start from, with its timetable.
        least: A makespan that no answer is below.

    Raises:
        SolverLimitError: Nothing was found in time, or within the largest model.
        BackendError: OR-Tools is missing, or CP-SAT failed.
        InvalidProfileError: The sizes add up to more than 2**53.
    """
    incumbent = Incumbent(problem, None, None, least)
    if known is not None:
        incumbent.add_schedule(known.schedule, known.makespan)
    deadline = time.monotonic() + settings.limits.time_s
    model_size: ModelSize | None = ModelSize()
    while model_size is not None and not incumbent.is_complete:
        left = deadline - time.monotonic()
        limits = replace(settings.limits, time_s=left)
        if left < _LEAST_SECONDS or not _solve(incumbent, model_size, limits, known):
            break
        model_size = model_size.enlarged(problem, incumbent.makespan)
    if (found := incumbent.claim()) is None:
        raise SolverLimitError(
            f"{settings} found no schedule of this {len(problem.profile)}-stage chain in "
            f"{format_bytes(problem.budget)} in time; raise time_limit_s, or use method='auto'",
            best_bound=math.ceil(incumbent.bound),
        )
    return found


def _solve(
    incumbent: Incumbent, model_size: ModelSize, limits: Limits, known: HybridClaim | None
) -> bool:
    """Solve one model for `incumbent`; return whether that came to an end."""
    program = build(incumbent.problem, model_size, known=incumbent.makespan, least=incumbent.bound)
    if known is not None:
        assert known.timetable is not None, "its times are the start"
        start_from(program, known.schedule, known.timetable)
    outcome = solve(program.model, limits)
    if outcome.values is not None:
        incumbent.add_schedule(decode(program, outcome), exact(program.to_time(outcome.objective)))
    if outcome.status is TerminationStatus.INFEASIBLE:
        incumbent.add_bound(model_size, incumbent.makespan)
    elif outcome.bound is not None:
        incumbent.add_bound(model_size, exact(program.bound(outcome.bound)))
    return outcome.status is not TerminationStatus.LIMIT
