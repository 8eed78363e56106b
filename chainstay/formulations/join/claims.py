"""From the programs for joins to claims, or to the errors that say why there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from chainstay.errors import InfeasibleBudgetError, SolverLimitError
from chainstay.formulations.join.assignment import CutAssignment
from chainstay.formulations.join.program import Key, Program
from chainstay.formulations.join.saved import SavedFormulation
from chainstay.formulations.join.slots import SlotFormulation
from chainstay.formulations.join.solving import Answer, Solve
from chainstay.formulations.settings import Limits, Verdict
from chainstay.profiles import HomogeneousJoin, Join
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family

__all__ = ["assign_cuts", "build", "claim_join"]


class JoinFormulation(Protocol):
    """A program and the meaning of its variables."""

    @property
    def program(self) -> Program:
        """What is solved."""
        ...

    @property
    def time_unit(self) -> int:
        """Of the objective, in ns."""
        ...

    @property
    def fixed_time(self) -> int:
        """Time besides the objective, in ns."""
        ...

    @property
    def size_unit(self) -> int:
        """Of memory, in bytes."""
        ...

    def decode(self, is_on: Callable[[Key], bool]) -> Schedule:
        """The schedule in which these variables are 1."""
        ...


Ask: TypeAlias = tuple[Solve, Limits]
"""A solver, and what it may use."""


def build(profile: Join, budget: int | None, keep: tuple[bool, ...]) -> JoinFormulation:
    """The program by phases of a join; `budget` None to minimise it instead."""
    if isinstance(profile, HomogeneousJoin):
        return SlotFormulation(profile, keep, budget)
    return SavedFormulation(profile, keep, budget)


def claim_join(
    profile: Join, budget: int, *, keep: tuple[bool, ...], method: str, ask: Ask
) -> Claim:
    """The fastest schedule of the program by phases.

    Raises:
        InfeasibleBudgetError: None fits.
        SolverLimitError: Time ran out with nothing to show, or, after proving that nothing
            fits, before the least budget was known.
        BackendError: The solver is missing, or failed.
    """
    formulation = build(profile, budget, keep)
    solve, limits = ask
    answer = solve(formulation.program, limits)
    if answer.verdict is Verdict.INFEASIBLE:
        raise _nothing_fits(profile, budget, keep, ask)
    return _claim(profile, formulation, answer, method, _family(profile))


def assign_cuts(
    profile: HomogeneousJoin, budget: int, *, keep: tuple[bool, ...], method: str, ask: Ask
) -> Claim:
    """The same by the assignment of cuts.

    Raises:
        InvalidProfileError: The join has a tail.
        InfeasibleBudgetError: As `claim_join`; likewise the others.
    """
    formulation = CutAssignment(profile, keep, budget)
    solve, limits = ask
    answer = solve(formulation.program, limits)
    if answer.verdict is Verdict.INFEASIBLE:
        raise _nothing_fits(profile, budget, keep, ask)
    return _claim(profile, formulation, answer, method, Family.SINGLE_TURN)


def _claim(
    profile: Join, formulation: JoinFormulation, answer: Answer, method: str, family: Family
) -> Claim:
    bound = formulation.time_unit * answer.bound + formulation.fixed_time
    bound = max(bound, profile.least_time)
    if answer.on is None:
        raise SolverLimitError(
            f"{method} found no schedule of this {profile.stages}-stage join in time, nor a proof "
            "that there is none. Raise time_limit_s, or use the dynamic program.",
            best_bound=bound,
        )
    makespan = formulation.time_unit * answer.objective + formulation.fixed_time
    is_proved = answer.verdict is Verdict.OPTIMAL
    return Claim(
        schedule=formulation.decode(answer.on.__contains__),
        makespan=makespan,
        lower_bound=makespan if is_proved else min(bound, makespan),
        family=family,
        discards=Discards.TAPE,
    )


def _family(profile: Join) -> Family:
    """What the programs by phases contain: all that turn once, where there is no tail."""
    is_complete = isinstance(profile, HomogeneousJoin) and not profile.tail_length
    return Family.SINGLE_TURN if is_complete else Family.SINGLE_SWEEP


def _nothing_fits(profile: Join, budget: int, keep: tuple[bool, ...], ask: Ask) -> Exception:
    formulation = build(profile, None, keep)
    solve, limits = ask
    answer = solve(formulation.program, limits)
    if answer.verdict is not Verdict.OPTIMAL:
        return SolverLimitError(
            f"nothing fits in {budget}, and the least feasible budget of this {profile.stages}-"
            f"stage join is not known after {limits.time_s:g} s. Raise time_limit_s, or use the "
            "dynamic program."
        )
    is_homogeneous = isinstance(profile, HomogeneousJoin)
    return InfeasibleBudgetError(
        budget=budget,
        required=max(1, answer.objective * formulation.size_unit),
        stages=profile.stages,
        family=_family(profile),
        network="join",
        unit="slots" if is_homogeneous else "bytes",
    )
