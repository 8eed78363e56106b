"""The best of keeping all, recomputing, offloading and both, improved where chains are short."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace

from chainstay.errors import BackendError, ChainstayError, InvalidScheduleError, SolverLimitError
from chainstay.formulations import CPSAT
from chainstay.problems.hybrid import HybridClaim, HybridProblem
from chainstay.problems.offload import OffloadProblem
from chainstay.profiles import OffloadProfile
from chainstay.schedule import Discards, Item, Op, Schedule
from chainstay.solve.hybrid_exact import IntegerProgramHybrid
from chainstay.solve.hybrid_pofo import (
    Pofo,
    nothing_found_error,
    recompute_only_schedule,
    unproved_claim,
)
from chainstay.solve.offload_heuristics import Heuristics
from chainstay.timetable import TimedSchedule, Transfers
from chainstay.validation.hybrid.simulate import simulate_hybrid

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoHybrid:
    """The best of keeping all, recomputing only, offloading only, and both.

    Attributes:
        combined: The method for recomputing and offloading together.
        exact_stages: Longest chain on which a constraint program improves the best of them; it
            knows no options.
        time_limit_s: Time limit of the constraint program, in seconds.
    """

    combined: Pofo = field(default_factory=Pofo)
    exact_stages: int = 6
    time_limit_s: float = 4.0

    def __str__(self) -> str:
        return "auto" if self.exact_stages else "auto (without cpsat)"

    def __call__(self, problem: HybridProblem) -> HybridClaim:
        """Return the best claim of the strategies, with the makespans of all of them."""
        if problem.transfers is Transfers.FRACTIONAL:
            return self.combined(problem)
        keep_all = _claimed(problem, Schedule.keep_all(len(problem.profile)))
        combined = self._combined(problem, keep_all)
        claims = {
            "keep all": keep_all,
            "recompute": _claimed(problem, recompute_only_schedule(problem, Discards.FREE)),
            "offload": _claimed(problem, _offloading(problem)),
            "combined": combined,
        }
        best = self._improved(problem, list(filter(None, claims.values())))
        return replace(
            best,
            fractional_makespan=combined.fractional_makespan if combined else None,
            fractional_bound=combined.fractional_bound if combined else 0,
            alternatives=tuple(
                (name, None if claim is None else claim.makespan) for name, claim in claims.items()
            ),
        )

    def _improved(self, problem: HybridProblem, found: list[HybridClaim]) -> HybridClaim:
        """Return the best of the claims found, or what the constraint program makes of it."""
        best = min(found, key=lambda claim: claim.makespan, default=None)
        least, stages = problem.profile.least_time, len(problem.profile)
        is_fast = best is not None and best.makespan == least
        obstacle: ChainstayError | None = None
        if stages <= self.exact_stages and problem.profile.is_plain and not is_fast:
            exact = IntegerProgramHybrid(CPSAT(time_limit_s=self.time_limit_s))
            try:
                return exact.improve(problem, best)
            except (BackendError, SolverLimitError) as reason:
                _log.info("without %s: %s", exact, reason)
                obstacle = reason
        if best is None:
            raise nothing_found_error(problem) from obstacle
        return best

    def _combined(self, problem: HybridProblem, keep_all: HybridClaim | None) -> HybridClaim | None:
        """Return the claim of recomputing and offloading together, unless nothing can be gained."""
        least = problem.profile.least_time
        if keep_all is not None and keep_all.makespan == least:
            return replace(keep_all, fractional_makespan=least, fractional_bound=least)
        try:
            return self.combined(problem)
        except SolverLimitError as reason:
            _log.info("without %s: %s", self.combined, reason)
            return None


def _claimed(problem: HybridProblem, schedule: Schedule | None) -> HybridClaim | None:
    """Return a schedule, if there is one and it fits, as a claim without proof."""
    if schedule is None:
        return None
    profile, budget, link = problem.profile, problem.budget, problem.link
    try:
        makespan = simulate_hybrid(profile, schedule, budget=budget, link=link).makespan
    except InvalidScheduleError:
        return None
    return unproved_claim(TimedSchedule(makespan, schedule), problem)


def _offloading(problem: HybridProblem) -> Schedule | None:
    """Return the best schedule that offloads whole saved data, if one fits."""
    try:
        profile = OffloadProfile.from_chain(problem.profile)
        simpler = OffloadProblem(profile, problem.budget, problem.link)
        schedule = Heuristics()(simpler).schedule
    except ChainstayError as reason:
        _log.info("without offloading only: %s", reason)
        return None
    return Schedule(tuple(map(_as_saved, schedule)))


def _as_saved(op: Op) -> Op:
    """Return the operation for a chain, in which activation ``x_j`` is saved by stage j - 1."""
    if not op.kind.is_transfer or op.stage == 0:
        return op
    saved = Item("b", op.stage - 1)
    return saved.offload if op.kind.is_offload else saved.prefetch
