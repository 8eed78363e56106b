"""Claims about joins: `AssignCuts`, and `MIP` and `CPSAT` by the program by phases."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from chainstay.errors import (
    InfeasibleBudgetError,
    InvalidProfileError,
    SolverLimitError,
    UnknownMethodError,
)
from chainstay.formulations.integer_program import IntegerProgram, SolverAnswer
from chainstay.formulations.join.byte_formulation import ByteFormulation
from chainstay.formulations.join.cut_assignment import CutAssignment
from chainstay.formulations.join.slot_formulation import SlotFormulation
from chainstay.formulations.methods import CPSAT, MIP
from chainstay.formulations.program_by_cpsat import solve_by_cpsat
from chainstay.formulations.program_by_highs import solve_by_highs
from chainstay.formulations.settings import TerminationStatus
from chainstay.profiles import HomogeneousJoin, Join
from chainstay.schedule import Discards
from chainstay.solution import Claim, Family

_Formulation: TypeAlias = ByteFormulation | SlotFormulation | CutAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignCuts:
    """Homogeneous joins without a tail by the assignment of cuts: the quicker program.

    Attributes:
        solver: `MIP` or `CPSAT`, with its limits.

    Raises:
        UnknownMethodError: Another solver.

    Example:
        >>> str(AssignCuts(solver=MIP(time_limit_s=10)))
        'cuts by mip (highs, 10 s, table1)'
    """

    solver: MIP | CPSAT = MIP()  # noqa: RUF009  # immutable

    def __post_init__(self) -> None:
        if not isinstance(self.solver, MIP | CPSAT):
            raise UnknownMethodError(f"solver is {self.solver!r}, must be MIP(...) or CPSAT(...)")

    def __str__(self) -> str:
        return f"cuts by {self.solver}"

    def __call__(self, profile: Join, budget: int, *, keep: tuple[bool, ...]) -> Claim:
        """Return the fastest schedule of `profile` with `budget` slots, as far as time allows.

        Args:
            profile: The join.
            budget: Slots.
            keep: For each branch, whether the gradient of its input stays until the end.

        Raises:
            InvalidProfileError: Not a homogeneous join without a tail.
            InfeasibleBudgetError: Nothing fits.
            SolverLimitError: Time ran out with nothing to show.
            BackendError: The solver is missing, or failed.
        """
        if not isinstance(profile, HomogeneousJoin):
            raise InvalidProfileError(
                f"{self} takes homogeneous joins; MIP() and CPSAT() take any join"
            )
        formulation = CutAssignment(profile, keep, budget)
        return _claim(formulation, budget, Family.SINGLE_TURN, self.solver, method=str(self))


def claim_by_phases(
    solver: MIP | CPSAT, profile: Join, budget: int, *, keep: tuple[bool, ...]
) -> Claim:
    """Return what a solver claims by the program by phases.

    Args:
        solver: The solver and its settings.
        profile: The join.
        budget: Bytes, or slots of a homogeneous join.
        keep: For each branch, whether the gradient of its input stays until the end.

    Raises:
        InfeasibleBudgetError: No schedule of the program fits.
        SolverLimitError: Time ran out with nothing to show, or, after proving that nothing
            fits, before the least budget was known.
        BackendError: The solver is missing, or failed.
    """
    formulation = build(profile, budget, keep)
    return _claim(formulation, budget, _family(profile), solver, method=str(solver))


def build(
    profile: Join, budget: int | None, keep: tuple[bool, ...]
) -> ByteFormulation | SlotFormulation:
    """Return the program by phases of a join; a `budget` of None is minimised instead."""
    if isinstance(profile, HomogeneousJoin):
        return SlotFormulation(profile, keep, budget)
    return ByteFormulation(profile, keep, budget)


def _claim(
    formulation: _Formulation, budget: int, family: Family, solver: MIP | CPSAT, *, method: str
) -> Claim:
    """Return the fastest schedule of a program; `method` is named in errors."""
    profile = formulation.profile
    answer = _solve(formulation.program, solver)
    if answer.status is TerminationStatus.INFEASIBLE:
        raise _nothing_fits(profile, budget, formulation.keep, solver)
    bound = max(formulation.makespan(answer.bound), profile.least_time)
    if answer.on is None:
        raise SolverLimitError(
            f"{method} found no schedule of this {profile.stages}-stage join in time, nor a proof "
            "that there is none. Raise time_limit_s, or use the dynamic program.",
            best_bound=bound,
        )
    makespan = formulation.makespan(answer.objective)
    is_proved = answer.status is TerminationStatus.OPTIMAL
    return Claim(
        schedule=formulation.decode(answer.on),
        makespan=makespan,
        lower_bound=makespan if is_proved else min(bound, makespan),
        family=family,
        discards=Discards.TAPE,
    )


def _solve(program: IntegerProgram, solver: MIP | CPSAT) -> SolverAnswer:
    solve = solve_by_cpsat if isinstance(solver, CPSAT) else solve_by_highs
    return solve(program, solver.limits)


def _family(profile: Join) -> Family:
    """Return the schedules that the programs by phases contain.

    Without a tail these are all that turn once.
    """
    is_complete = isinstance(profile, HomogeneousJoin) and not profile.tail_length
    return Family.SINGLE_TURN if is_complete else Family.SINGLE_SWEEP


def _nothing_fits(
    profile: Join, budget: int, keep: tuple[bool, ...], solver: MIP | CPSAT
) -> Exception:
    """Return the error that names the least budget, or says that it was not found in time."""
    formulation = build(profile, None, keep)
    answer = _solve(formulation.program, solver)
    if answer.status is not TerminationStatus.OPTIMAL:
        return SolverLimitError(
            f"nothing fits in {budget}, and the least feasible budget of this {profile.stages}-"
            f"stage join is not known after {solver.time_limit_s:g} s. Raise time_limit_s, or use "
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
