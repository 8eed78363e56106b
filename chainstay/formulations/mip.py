"""`MIP`: the settings of the mixed-integer programs as a method; importing it needs no solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from chainstay.errors import UnknownMethodError
from chainstay.formulations.chain.claims import claim
from chainstay.formulations.settings import Limits, SolverSettings, require_settings
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim

_SOLVERS: Final = ("highs",)


@dataclass(frozen=True, slots=True, kw_only=True)
class MIP:
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
    time_limit_s: float = 60.0
    threads: int = 1
    seed: int = 0
    discards: Discards | str = Discards.TABLE1

    def __post_init__(self) -> None:
        if self.solver not in _SOLVERS:
            raise UnknownMethodError(
                f"solver is {self.solver!r}, must be one of: {', '.join(_SOLVERS)}"
            )
        require_settings(
            discards=self.discards,
            time_limit_s=self.time_limit_s,
            seed=self.seed,
            threads=self.threads,
        )
        object.__setattr__(self, "discards", Discards(self.discards))

    def __str__(self) -> str:
        return f"mip ({self.solver}, {self.time_limit_s:g} s, {self.discards})"

    @property
    def solver_settings(self) -> SolverSettings:
        """These settings, as claims need them."""
        limits = Limits(time_s=self.time_limit_s, threads=self.threads, seed=self.seed)
        return SolverSettings(method=str(self), discards=Discards(self.discards), limits=limits)

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        """Return the fastest schedule of `profile` within `budget` bytes, as far as time allows.

        Args:
            profile: The chain.
            budget: Bytes.
            hint: A schedule known to be valid within the budget: the solver starts from
                it and looks for faster ones only.

        Returns:
            The schedule, and a bound for its family: `Family.ALL` that `discards` allows
            when gradients, saved data and overheads are of the usual proportions
            (`problems.exactness.is_complete`), else `Family.SINGLE_SWEEP`.

        Raises:
            InfeasibleBudgetError: No schedule of the family fits.
            SolverLimitError: Time ran out with nothing to show, or, after proving that
                nothing fits, before the least budget was known.
            BackendError: Pyomo or the solver is missing, or the solver failed.
        """
        return claim(profile, budget, self.solver_settings, hint)
