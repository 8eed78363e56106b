"""Claims of the programs for joins, and the errors where there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from chainstay.errors import InfeasibleBudgetError, SolverLimitError
from chainstay.formulations.join.byte_formulation import ByteFormulation
from chainstay.formulations.join.cut_assignment import CutAssignment
from chainstay.formulations.join.integer_program import IntegerProgram, Key
from chainstay.formulations.join.slot_formulation import SlotFormulation
from chainstay.formulations.join.solver_answer import SolverAnswer, SolverCall
from chainstay.formulations.settings import TerminationStatus
from chainstay.profiles import HomogeneousJoin, Join
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim, Family

__all__ = ["assign_cuts", "build", "claim_join"]


class JoinFormulation(Protocol):
    """An integer program and the meaning of its variables."""

    @property
    def program(self) -> IntegerProgram:
        """The program to solve."""
        ...

    @property
    def time_unit(self) -> int:
        """The ns in a unit of the objective."""
        ...

    @property
    def fixed_time(self) -> int:
        """The time besides the objective, in ns."""
        ...

    @property
    def size_unit(self) -> int:
        """The bytes in a unit of memory."""
        ...

    def decode(self, is_on: Callable[[Key], bool]) -> Schedule:
        """Return the schedule in which these variables are 1."""
        ...


def build(profile: Join, budget: int | None, keep: tuple[bool, ...]) -> JoinFormulation:
    """Return the program by phases of a join; a `budget` of None is minimised instead."""
    if isinstance(profile, HomogeneousJoin):
        return SlotFormulation(profile, keep, budget)
    return ByteFormulation(profile, keep, budget)


def claim_join(profile: Join, budget: int, *, keep: tuple[bool, ...], call: SolverCall) -> Claim:
    """Return the fastest schedule of the program by phases.

    Args:
        profile: The join.
        budget: Bytes, or slots of a homogeneous join.
        keep: For each branch, whether the gradient of its input stays until the end.
        call: The solver.

    Raises:
        InfeasibleBudgetError: None fits.
        SolverLimitError: Time ran out with nothing to show, or, after proving that nothing
            fits, before the least budget was known.
        BackendError: The solver is missing, or failed.
    """
    formulation = build(profile, budget, keep)
    answer = call.solve(formulation.program, call.limits)
    if answer.status is TerminationStatus.INFEASIBLE:
        raise _nothing_fits(profile, budget, keep, call)
    return _claim(profile, formulation, answer, call.method, _family(profile))


def assign_cuts(
    profile: HomogeneousJoin, budget: int, *, keep: tuple[bool, ...], call: SolverCall
) -> Claim:
    """Return the fastest schedule of the program by assignment of cuts.

    Args:
        profile: The join.
        budget: Slots.
        keep: For each branch, whether the gradient of its input stays until the end.
        call: The solver.

    Raises:
        InvalidProfileError: The join has a tail.
        InfeasibleBudgetError: No schedule fits.
        SolverLimitError: Time ran out with nothing to show, or, after proving that nothing
            fits, before the least budget was known.
        BackendError: The solver is missing, or failed.
    """
    formulation = CutAssignment(profile, keep, budget)
    answer = call.solve(formulation.program, call.limits)
    if answer.status is TerminationStatus.INFEASIBLE:
        raise _nothing_fits(profile, budget, keep, call)
    return _claim(profile, formulation, answer, call.method, Family.SINGLE_TURN)


def _claim(
    profile: Join, formulation: JoinFormulation, answer: SolverAnswer, method: str, family: Family
) -> Claim:
    """Return the claim of a solver's answer.

    Raises:
        SolverLimitError: It has no schedule.
    """
    bound = formulation.time_unit * answer.bound + formulation.fixed_time
    bound = max(bound, profile.least_time)
    if answer.on is None:
        raise SolverLimitError(
            f"{method} found no schedule of this {profile.stages}-stage join in time, nor a proof "
            "that there is none. Raise time_limit_s, or use the dynamic program.",
            best_bound=bound,
        )
    makespan = formulation.time_unit * answer.objective + formulation.fixed_time
    is_proved = answer.status is TerminationStatus.OPTIMAL
    return Claim(
        schedule=formulation.decode(answer.on.__contains__),
        makespan=makespan,
        lower_bound=makespan if is_proved else min(bound, makespan),
        family=family,
        discards=Discards.TAPE,
    )


def _family(profile: Join) -> Family:
    """Return the schedules that the programs by phases contain.

    Without a tail these are all that turn once.
    """
    is_complete = isinstance(profile, HomogeneousJoin) and not profile.tail_length
    return Family.SINGLE_TURN if is_complete else Family.SINGLE_SWEEP


def _nothing_fits(
    profile: Join, budget: int, keep: tuple[bool, ...], call: SolverCall
) -> Exception:
    """Return the error that names the least budget, or says that it was not found in time."""
    formulation = build(profile, None, keep)
    answer = call.solve(formulation.program, call.limits)
    if answer.status is not TerminationStatus.OPTIMAL:
        return SolverLimitError(
            f"nothing fits in {budget}, and the least feasible budget of this {profile.stages}-"
            f"stage join is not known after {call.limits.time_s:g} s. Raise time_limit_s, or use "
            "the dynamic program."
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
