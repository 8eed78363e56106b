"""Builds the claim that a solver's answer amounts to, or the error that says why there is none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chainstay.errors import (
    CertificateError,
    ChainstayError,
    InfeasibleBudgetError,
    SolverLimitError,
)
from chainstay.formulations.chain.exactness_conditions import family_of, searched_family_name
from chainstay.formulations.settings import TerminationStatus
from chainstay.problems import ChainProblem
from chainstay.problems.consistency import MethodResult, contradiction_error
from chainstay.problems.schedule_time import time_of
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Scope
from chainstay.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimBuilder:
    """The question that a formulation was asked, and the claims that answers to it may make.

    Attributes:
        profile: The chain.
        budget: Bytes.
        discards: The rules for discards.
        method: The method and its settings.
        hint: A schedule to start from, if there is one.
        has_start: Whether the model contains the hint, so that nothing slower is an answer.
    """

    profile: ChainProfile
    budget: int
    discards: Discards
    method: str
    hint: Schedule | None
    has_start: bool

    @property
    def scope(self) -> Scope:
        """The schedules that an answer makes a statement about."""
        return Scope(family_of(self.profile, self.discards), self.discards)

    def claim(
        self, status: TerminationStatus, found: tuple[Schedule, int] | None, lower_bound: int
    ) -> Claim:
        """Return the claim after a solve that was not infeasible.

        Args:
            status: How the solve ended.
            found: The schedule it found and its makespan in ns, by the solver's own count.
            lower_bound: A lower bound on the makespan, in ns.

        Raises:
            SolverLimitError: There is neither a schedule found nor a hint.
            CertificateError: The solver denies the schedule that it started from.
        """
        if found is not None:
            makespan = found[1]
            # A bound above what was found is above it by a rounding error.
            lower_bound = (
                makespan if status is TerminationStatus.OPTIMAL else min(lower_bound, makespan)
            )
        if self.has_start and self._hinted().makespan < lower_bound:
            raise self._denied(f"says that nothing is faster than {lower_bound} ns")
        if found is None and self.hint is not None:
            found = self.hint, self._hinted().makespan
        if found is None:
            raise SolverLimitError(
                f"{self.method} found no schedule of this {len(self.profile)}-stage chain in "
                f"{format_bytes(self.budget)} in time, nor a proof that there is none. Raise "
                "time_limit_s, give a hint, or use a dynamic program.",
                best_bound=lower_bound,
            )
        schedule, makespan = found
        return Claim(
            schedule=schedule,
            makespan=makespan,
            # A hint from outside the family may be faster than anything in it.
            lower_bound=min(lower_bound, makespan),
            family=self.scope.family,
            discards=self.discards,
        )

    def nothing_fits(self, least_budget: Callable[[], int]) -> ChainstayError:
        """Return the error after a solve that ended as infeasible.

        Returns:
            `InfeasibleBudgetError`; `SolverLimitError` if the least budget was not found in
            time; `CertificateError` if the solver contradicts itself.
        """
        if self.has_start:
            return self._denied("says that nothing fits")
        try:
            required = least_budget()
        except SolverLimitError as late:
            return SolverLimitError(f"nothing fits in {format_bytes(self.budget)}, and {late}")
        if required <= self.budget:
            said = self._said(required=required)
            reason = (
                f"{self.method} says that nothing fits in {self.budget} bytes, and has a "
                f"schedule that needs {required}"
            )
            return contradiction_error(reason, ChainProblem(self.profile, self.budget), [said])
        return InfeasibleBudgetError(
            budget=self.budget,
            required=required,
            stages=len(self.profile),
            family=searched_family_name(self.profile, self.discards),
        )

    def _denied(self, what: str) -> CertificateError:
        """Return the error for a solver that claims `what` and had accepted the hint."""
        hinted = self._hinted()
        reason = f"{self.method} {what}, and had accepted a schedule of {hinted.makespan} ns"
        hint = MethodResult(
            method="hint", schedule_scope=self.scope, bound_scope=self.scope, claim=hinted
        )
        problem = ChainProblem(self.profile, self.budget)
        return contradiction_error(reason, problem, [hint, self._said()])

    def _said(self, required: int | None = None) -> MethodResult:
        """Return the method's answer as a statement without a schedule."""
        return MethodResult(
            method=self.method, schedule_scope=self.scope, bound_scope=self.scope, required=required
        )

    def _hinted(self) -> Claim:
        """Return the hint as a claim."""
        assert self.hint is not None, "a model starts from a hint"
        return Claim(
            schedule=self.hint,
            makespan=time_of(self.profile, self.hint),
            lower_bound=self.profile.least_time,
            family=self.scope.family,
            discards=self.discards,
        )
