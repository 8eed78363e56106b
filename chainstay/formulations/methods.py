"""`MIP` and `CPSAT`: the settings of a solver as a method; importing them needs no solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final

from chainstay.errors import UnknownMethodError
from chainstay.formulations.chain.claims import claim
from chainstay.formulations.program_by_cpsat import solve_by_cpsat
from chainstay.formulations.program_by_highs import solve_by_highs
from chainstay.formulations.settings import SolverSettings
from chainstay.profiles import ChainProfile
from chainstay.schedule import Schedule
from chainstay.solution import Claim

_SOLVERS: Final = ("highs",)


@dataclass(frozen=True, slots=True, kw_only=True)
class MIP(SolverSettings):
    """Solve a chain as a mixed-integer program.

    Chains may have skips, stage options, costs by kind of run and options of several stages.

    Attributes:
        solver: ``"highs"``.
        time_limit_s: Wall time for the solver, in seconds. Building the model comes on
            top, and so does as much again to find the least budget when nothing fits.
        threads: Threads of the solver.
        seed: Seed of the solver's random decisions. Same seed and threads, same answer.
        discards: Which operations may remove data, as in `simulate`.

    Raises:
        UnknownMethodError: A setting that does not exist; the text names the choices.

    Example:
        >>> str(MIP(time_limit_s=10))
        'mip (highs, 10 s, table1)'
    """

    solver: str = "highs"
    threads: int = 1

    def __post_init__(self) -> None:
        if self.solver not in _SOLVERS:
            raise UnknownMethodError(
                f"solver is {self.solver!r}, must be one of: {', '.join(_SOLVERS)}"
            )
        SolverSettings.__post_init__(self)

    def __str__(self) -> str:
        return f"mip ({self.solver}, {self.time_limit_s:g} s, {self.discards})"

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        """Return the fastest schedule that HiGHS finds; see `SolverSettings`."""
        return claim(profile, budget, self, hint, solve_by_highs)


@dataclass(frozen=True, slots=True, kw_only=True)
class CPSAT(SolverSettings):
    """Solve a chain as a constraint program with OR-Tools' CP-SAT.

    Chains may have skips, stage options, costs by kind of run and options of several stages.

    Attributes:
        time_limit_s: Wall time for the solver, in seconds. Building the model comes on
            top, and so does as much again to find the least budget when nothing fits.
        workers: Threads of the solver.
        seed: Seed of the solver's random decisions. Same seed and one worker, same answer.
        discards: Which operations may remove data, as in `simulate`.

    Raises:
        UnknownMethodError: A setting that does not exist; the text names the choices.

    Example:
        >>> str(CPSAT(time_limit_s=10))
        'cpsat (10 s, table1)'
    """

    workers: int = 1
    threads_setting: ClassVar[str] = "workers"

    def __str__(self) -> str:
        return f"cpsat ({self.time_limit_s:g} s, {self.discards})"

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        """Return the fastest schedule that CP-SAT finds; see `SolverSettings`."""
        return claim(profile, budget, self, hint, solve_by_cpsat)
