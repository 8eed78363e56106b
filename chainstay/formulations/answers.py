"""From what a solver says to a claim, or to the error that says why there is none.

The same for both formulations: they differ in how they solve and read, not in what an
answer may promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chainstay.errors import (
    CertificateError,
    ChainstayError,
    InfeasibleBudgetError,
    InvalidScheduleError,
    SolverLimitError,
)
from chainstay.evidence import Statement, contradiction
from chainstay.formulations.domains import family_of, name_of_searched
from chainstay.formulations.settings import Limits, Verdict
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, OpKind, Schedule
from chainstay.solution import Claim, Scope
from chainstay.units import format_bytes

__all__ = ["Question", "makespan_of", "unproved"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a formulation was asked.

    Attributes:
        profile: The chain.
        budget: Bytes.
        discards: Which operations may remove data.
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
        """The schedules that an answer speaks about."""
        return Scope(family_of(self.profile, self.discards), self.discards)

    def claim(
        self, verdict: Verdict, found: tuple[Schedule, int] | None, lower_bound: int
    ) -> Claim:
        """What is claimed after a solve that ended with `verdict`, not infeasible.

        Args:
            verdict: How it ended.
            found: The schedule it found and its makespan, by the solver's own count.
            lower_bound: On the makespan, in ns.

        Raises:
            SolverLimitError: There is neither a schedule found nor a hint.
            CertificateError: The solver denies the schedule that it started from.
        """
        if found is not None:
            makespan = found[1]
            # A bound above what was found is above it by a rounding error.
            lower_bound = makespan if verdict is Verdict.OPTIMAL else min(lower_bound, makespan)
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
        """The error after a solve that ended as infeasible.

        Args:
            least_budget: Finds the budget that the error is to name.

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
            return contradiction(reason, self.profile, self.budget, [said])
        return InfeasibleBudgetError(
            budget=self.budget,
            required=required,
            stages=len(self.profile),
            family=name_of_searched(self.profile, self.discards),
        )

    def _denied(self, what: str) -> CertificateError:
        """The error of a solver that says `what` and had accepted the hint."""
        hinted = self._hinted()
        reason = f"{self.method} {what}, and had accepted a schedule of {hinted.makespan} ns"
        hint = Statement(method="hint", finds=self.scope, covers=self.scope, claim=hinted)
        return contradiction(reason, self.profile, self.budget, [hint, self._said()])

    def _said(self, required: int | None = None) -> Statement:
        return Statement(method=self.method, finds=self.scope, covers=self.scope, required=required)

    def _hinted(self) -> Claim:
        """The hint as a claim."""
        assert self.hint is not None, "a model starts from a hint"
        return Claim(
            schedule=self.hint,
            makespan=makespan_of(self.profile, self.hint),
            lower_bound=self.profile.least_time,
            family=self.scope.family,
            discards=self.discards,
        )


def unproved(profile: ChainProfile, known: str, limits: Limits) -> SolverLimitError:
    """The error of a least budget that time ran out to prove; `known` is how far it got."""
    return SolverLimitError(
        f"the least feasible budget of this {len(profile)}-stage chain is {known} after "
        f"{limits.time_s:g} s. Raise time_limit_s, or use a dynamic program."
    )


def makespan_of(profile: ChainProfile, schedule: Schedule) -> int:
    """Time of a schedule, in ns, whatever its validity."""
    total = 0
    for index, op in enumerate(schedule):
        if op.stage >= len(profile):
            raise InvalidScheduleError(
                f"{op} of the hint names stage {op.stage}, the last one is {len(profile) - 1}",
                index=index,
                ops=schedule.ops,
            )
        stage = profile.stages[op.stage]
        total += stage.forward_time * op.kind.is_forward
        total += stage.backward_time * (op.kind is OpKind.BACKWARD)
    return total
