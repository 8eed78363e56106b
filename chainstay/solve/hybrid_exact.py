"""`CPSAT` over all schedules of a short chain with transfers, warm-started or alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chainstay.dp.hybrid import hybrid_bound
from chainstay.errors import SolverLimitError, UnknownMethodError
from chainstay.formulations.cpsat.hybrid_claims import claim
from chainstay.problems.hybrid import HybridClaim, HybridProblem
from chainstay.solve.common import IntegerProgramMethod
from chainstay.solve.hybrid_pofo import Pofo
from chainstay.timetable import Time, Transfers
from chainstay.validation.replay import replay_transfers


@dataclass(frozen=True, slots=True)
class IntegerProgramHybrid(IntegerProgramMethod):
    """An `IntegerProgramMethod` that starts from the best schedule of [POFO]."""

    def __call__(self, problem: HybridProblem) -> HybridClaim:
        """Return the solver's claim, alone or from [POFO]'s schedule, for integral transfers."""
        if problem.transfers is not Transfers.INTEGRAL:
            raise UnknownMethodError(
                f"{self} is for integral transfers, not {problem.transfers} ones; use method='dp'"
            )
        problem.require_feasible()
        if self.alone:
            least: Time = problem.profile.least_time
            return claim(problem, self.settings, known=None, least=least)
        try:
            known = Pofo()(problem)
        except SolverLimitError:
            known = None
        return self.improve(problem, known)

    def improve(self, problem: HybridProblem, known: HybridClaim | None) -> HybridClaim:
        """Return a better claim than `known`, or `known` with a better bound."""
        least = max(
            problem.profile.least_time,
            hybrid_bound(problem.profile, problem.budget, problem.link),
        )
        if known is None:
            return claim(problem, self.settings, known=None, least=least)
        replay = replay_transfers(problem, known)
        known = replace(known, makespan=replay.makespan, timetable=replay.timetable)
        found = claim(problem, self.settings, known=known, least=least)
        bound = max(found.lower_bound, found.unrestricted_bound)
        self.require_not_below(bound, problem, found, known)
        return replace(
            found,
            fractional_makespan=known.fractional_makespan,
            fractional_bound=known.fractional_bound,
        )
