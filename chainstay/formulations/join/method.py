"""The methods for joins: `AssignCuts`, and `MIP` and `CPSAT` by the program by phases."""

from __future__ import annotations

from dataclasses import dataclass

from chainstay.errors import InvalidProfileError, UnknownMethodError
from chainstay.formulations.cpsat.method import CPSAT
from chainstay.formulations.join.claims import assign_cuts, claim_join
from chainstay.formulations.join.cpsat_backend import solve_by_cpsat
from chainstay.formulations.join.highs_backend import solve_by_highs
from chainstay.formulations.join.solver_answer import SolverCall
from chainstay.formulations.mip import MIP
from chainstay.profiles import HomogeneousJoin, Join
from chainstay.solution import Claim


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
        call = _solver_call(self.solver, method=str(self))
        return assign_cuts(profile, budget, keep=keep, call=call)


def claim_by_phases(
    method: MIP | CPSAT, profile: Join, budget: int, *, keep: tuple[bool, ...]
) -> Claim:
    """Return what a solver claims by the program by phases.

    Args:
        method: The solver and its settings.
        profile: The join.
        budget: Bytes, or slots of a homogeneous join.
        keep: For each branch, whether the gradient of its input stays until the end.

    Raises:
        InfeasibleBudgetError: No schedule of the program fits.
        SolverLimitError: Time ran out with nothing to show.
        BackendError: The solver is missing, or failed.
    """
    call = _solver_call(method, method=str(method))
    return claim_join(profile, budget, keep=keep, call=call)


def _solver_call(solver: MIP | CPSAT, *, method: str) -> SolverCall:
    """Return the solver's function with its limits."""
    solve = solve_by_cpsat if isinstance(solver, CPSAT) else solve_by_highs
    return SolverCall(solve, solver.solver_settings.limits, method)
