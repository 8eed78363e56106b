"""The answer of a solver to an integer program, whichever solver it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from chainstay.formulations.join.integer_program import IntegerProgram, Key
from chainstay.formulations.settings import Limits, TerminationStatus

__all__ = ["Solve", "SolverAnswer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverAnswer:
    """The answer of a solver.

    Attributes:
        status: How the solve ended.
        on: The variables that are 1; None without a feasible point.
        objective: The objective at this point, in its units.
        bound: A lower bound on the objective.
    """

    status: TerminationStatus
    on: frozenset[Key] | None = None
    objective: int = 0
    bound: int = 0


Solve: TypeAlias = Callable[[IntegerProgram, Limits], SolverAnswer]
"""A solver of integer programs."""


class SolverCall(NamedTuple):
    """A solver, its limits, and the method's name with its settings for messages."""

    solve: Solve
    limits: Limits
    method: str
