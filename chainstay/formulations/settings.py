"""Limits of a solve, and how it may end: the same for all formulations."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, TypeGuard

from chainstay.errors import UnknownMethodError
from chainstay.schedule import Discards

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
class SolverSettings:
    """The settings of a method, as claims need them.

    Attributes:
        method: The method with its settings, for messages.
        discards: The rules for discards.
        limits: Limits of the solver.
    """

    method: str
    discards: Discards
    limits: Limits

    def __str__(self) -> str:
        return self.method


def require_settings(
    *, discards: object, time_limit_s: object, seed: object, **threads: object
) -> None:
    """Refuse settings that no solve can have.

    Raises:
        UnknownMethodError: The text names the setting, its value and the choices.
    """
    if discards not in set(Discards):
        raise UnknownMethodError(f"discards is {discards!r}, must be one of: {', '.join(Discards)}")
    if not _is_real(time_limit_s) or not 0 < time_limit_s < math.inf:
        raise UnknownMethodError(
            f"time_limit_s is {time_limit_s!r}, must be a positive number of seconds"
        )
    for name, count in threads.items():
        if not _is_whole(count) or count < 1:
            raise UnknownMethodError(f"{name} is {count!r}, must be a positive integer")
    if not _is_whole(seed) or not 0 <= seed <= _LARGEST_SEED:
        raise UnknownMethodError(f"seed is {seed!r}, must be an integer from 0 to {_LARGEST_SEED}")


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: object) -> TypeGuard[float]:
    return isinstance(value, float) or _is_whole(value)
