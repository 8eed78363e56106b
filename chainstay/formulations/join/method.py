"""Which solver gets a join's program; importing it needs none of them."""

from __future__ import annotations

from dataclasses import dataclass

from chainstay.errors import BackendError, InvalidProfileError, UnknownMethodError
from chainstay.formulations.cpsat.method import CPSAT
from chainstay.formulations.join.by_cpsat import solve_by_cpsat
from chainstay.formulations.join.claims import assign_cuts, claim_join
from chainstay.formulations.join.solving import Solve
from chainstay.formulations.mip import MIP
from chainstay.formulations.settings import Limits
from chainstay.profiles import HomogeneousJoin, Join
from chainstay.solution import Claim

__all__ = ["AssignCuts", "claim_by_phases"]


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

    solver: MIP | CPSAT = MIP()  # noqa: RUF009 - immutable

    def __post_init__(self) -> None:
        if not isinstance(self.solver, MIP | CPSAT):
            raise UnknownMethodError(f"solver is {self.solver!r}, must be MIP(...) or CPSAT(...)")

    def __str__(self) -> str:
        return f"cuts by {self.solver}"

    def __call__(self, profile: Join, budget: int, *, keep: tuple[bool, ...]) -> Claim:
        """Claim the fastest schedule of `profile` with `budget` slots.

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
        ask = (_solve(self.solver), _limits(self.solver))
        return assign_cuts(profile, budget, keep=keep, method=str(self), ask=ask)


def claim_by_phases(
    method: MIP | CPSAT, profile: Join, budget: int, *, keep: tuple[bool, ...]
) -> Claim:
    """What a solver claims by the program in phases.

    Raises:
        InfeasibleBudgetError: No schedule of the program fits.
        SolverLimitError: Time ran out with nothing to show.
        BackendError: The solver is missing, or failed.
    """
    ask = (_solve(method), _limits(method))
    return claim_join(profile, budget, keep=keep, method=str(method), ask=ask)


def _limits(method: MIP | CPSAT) -> Limits:
    threads = method.workers if isinstance(method, CPSAT) else method.threads
    return Limits(time_s=method.time_limit_s, threads=threads, seed=method.seed)


def _solve(method: MIP | CPSAT) -> Solve:
    """The solver's function, loaded only now."""
    if isinstance(method, CPSAT):
        return solve_by_cpsat
    try:
        # Pyomo takes a second to import, and only those who solve with it need it.
        from chainstay.formulations.join.by_highs import solve_by_highs  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise BackendError(
            f"method {str(method)!r} needs {error.name}, which is not installed; "
            "install it with: pip install pyomo"
        ) from error
    return solve_by_highs
