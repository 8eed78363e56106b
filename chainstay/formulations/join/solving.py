"""What a solver says of a program, whichever it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from chainstay.formulations.join.program import Key, Program
from chainstay.formulations.settings import Limits, Verdict

__all__ = ["Answer", "Solve"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a solver said.

    Attributes:
        verdict: How it ended.
        on: The variables that are 1; None without a feasible point.
        objective: There, in units of the objective.
        bound: On the objective.
    """

    verdict: Verdict
    on: frozenset[Key] | None = None
    objective: int = 0
    bound: int = 0


Solve: TypeAlias = Callable[[Program, Limits], Answer]
