"""`MIP` or `CPSAT` over all program lists of a short chain, from a known one or alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chainstay.dp.hybrid import hybrid_bound
from chainstay.errors import SolverLimitError, UnknownMethodError
from chainstay.formulations import CPSAT
from chainstay.formulations.cpsat import hybrid_claims as cpsat
from chainstay.formulations.hybrid_proof import Known
from chainstay.hybrid import HybridClaim, HybridProblem
from chainstay.offloading import contradiction
from chainstay.solve.asking import ExactMethod
from chainstay.solve.hybrid_pofo import Pofo, relaxed
from chainstay.timetable import Time, Transfers
from chainstay.validation.hybrid import simulate_hybrid

__all__ = ["ExactPrograms"]


@dataclass(frozen=True, slots=True)
class ExactPrograms(ExactMethod):
    """An `ExactMethod` from [POFO]'s best program list."""

    def __call__(self, problem: HybridProblem) -> HybridClaim:
        """As `HybridMethod`, for integral transfers."""
        if problem.transfers is not Transfers.INTEGRAL:
            raise UnknownMethodError(
                f"{self} is for integral transfers, not {problem.transfers} ones; use method='dp'"
            )
        problem.require_feasible()
        if self.alone:
            return self._ask(problem, None, problem.profile.least_time)
        try:
            known = Pofo()(problem)
        except SolverLimitError:
            known = None
        return self.after(problem, known)

    def after(self, problem: HybridProblem, known: HybridClaim | None) -> HybridClaim:
        """Improve or prove `known`."""
        least = max(
            problem.profile.least_time,
            hybrid_bound(problem.profile, problem.budget, relaxed(problem.link)),
        )
        if known is None:
            return self._ask(problem, None, least)
        replay = simulate_hybrid(
            problem.profile, known.schedule, budget=problem.budget, link=problem.link
        )
        start = Known(known.schedule, replay.timetable, replay.makespan)
        found = self._ask(problem, start, least)
        if max(found.lower_bound, found.unrestricted_bound) > replay.makespan:
            reason = (
                f"{self} says that nothing is faster than {found.lower_bound}, yet "
                f"{replay.makespan} is"
            )
            raise contradiction(reason, problem, {str(self): found, "known": known})
        return replace(
            found,
            fractional_makespan=known.fractional_makespan,
            fractional_bound=known.fractional_bound,
        )

    def _ask(self, problem: HybridProblem, known: Known | None, least: Time) -> HybridClaim:
        if isinstance(self.settings, CPSAT):
            return cpsat.claim(problem, self.settings, known=known, least=least)
        try:
            # Pyomo takes a second to import, and only those who solve with it need it.
            from chainstay.formulations import hybrid_claims  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise self.without(error) from error
        return hybrid_claims.claim(problem, self.settings, known=known, least=least)
