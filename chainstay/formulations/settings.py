"""Settings and limits of a solve, and how it may end: the same for all formulations."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum, auto
from typing import ClassVar, Final, TypeGuard

from chainstay.errors import UnknownMethodError
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Claim

_LARGEST_SEED: Final = 2**31 - 1


class TerminationStatus(Enum):
    """The way in which a solve ended.

    Attributes:
        OPTIMAL: The answer is proved optimal.
        INFEASIBLE: The model is proved to have no answer.
        LIMIT: A limit was reached first; there may be an answer and a bound.
    """

    OPTIMAL = auto()
    INFEASIBLE = auto()
    LIMIT = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a solve.

    Attributes:
        time_s: Wall time in seconds.
        threads: Threads of the solver.
        seed: Seed of its random decisions.
    """

    time_s: float
    threads: int = 1
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverSettings(ABC):
    """A method that hands integer programs to a solver: what `MIP` and `CPSAT` have in common.

    Attributes:
        time_limit_s: Wall time for the solver, in seconds. Building the model comes on
            top, and so does as much again to find the least budget when nothing fits.
        seed: Seed of the solver's random decisions.
        discards: Which operations may remove data, as in `simulate`.

    Raises:
        UnknownMethodError: A setting that does not exist; the text names the choices.
    """

    time_limit_s: float = 60.0
    seed: int = 0
    discards: Discards | str = Discards.TABLE1
    threads_setting: ClassVar[str] = "threads"

    def __post_init__(self) -> None:
        object.__setattr__(self, "discards", Discards(self.discards))
        if not _is_real(self.time_limit_s) or not 0 < self.time_limit_s < math.inf:
            raise UnknownMethodError(
                f"time_limit_s is {self.time_limit_s!r}, must be a positive number of seconds"
            )
        threads = getattr(self, self.threads_setting)
        if not _is_whole(threads) or threads < 1:
            raise UnknownMethodError(
                f"{self.threads_setting} is {threads!r}, must be a positive integer"
            )
        if not _is_whole(self.seed) or not 0 <= self.seed <= _LARGEST_SEED:
            raise UnknownMethodError(
                f"seed is {self.seed!r}, must be an integer from 0 to {_LARGEST_SEED}"
            )

    @property
    def limits(self) -> Limits:
        """The limits of a solve."""
        threads = getattr(self, self.threads_setting)
        return Limits(time_s=self.time_limit_s, threads=threads, seed=self.seed)

    @abstractmethod
    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        """Return the fastest schedule of `profile` within `budget` bytes, as far as time allows.

        Args:
            profile: The chain.
            budget: Bytes.
            hint: A schedule known to be valid within the budget: the solver starts from
                it and looks for no slower one.

        Returns:
            The schedule, and a bound for its family: `Family.ALL` that `discards` allows
            when gradients, saved data and overheads are of the usual proportions
            (`problems.exactness.is_complete`), else `Family.SINGLE_SWEEP`.

        Raises:
            InfeasibleBudgetError: No schedule of the family fits.
            SolverLimitError: Time ran out with nothing to show, or, after proving that
                nothing fits, before the least budget was known.
            InvalidProfileError: CP-SAT only: the sizes or times add up to more than 2**53.
            BackendError: The solver (for `MIP`, or Pyomo) is missing, or the solver failed.
        """


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> TypeGuard[float]:
    return isinstance(value, float) or _is_whole(value)
