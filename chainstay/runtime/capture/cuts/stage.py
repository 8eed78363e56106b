"""One stage of a captured chain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chainstay.runtime.capture.cuts.programs import Program
from chainstay.runtime.stage.states import State

__all__ = ["GraphStage"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphStage:
    """Part of a captured forward, from one state to the next; a `stages.Part`.

    Attributes:
        name: The modules that it runs, as text for people.
        program: What it computes.
        operators: How many it has.
        saved_bytes: What autograd saves in it, its incoming state left out.
        draws_random: Whether it may draw random numbers.
        written: Positions of the shared values that it changes in place.
        changes_input: Whether it changes its incoming state in place.
        fills_what_it_saved: Whether an operator of its saves a tensor and then writes it.
    """

    name: str
    program: Program
    operators: int
    saved_bytes: int
    draws_random: bool
    written: tuple[int, ...]
    changes_input: bool = False
    fills_what_it_saved: bool = False

    def __call__(self, state: State, shared: Sequence[Any]) -> State:
        """The next state; it can be run any number of times, on detached copies as well."""
        return self.program(state, shared)

    @property
    def reads(self) -> tuple[int, ...]:
        """Positions of the shared values that it reads."""
        return self.program.shared

    @property
    def text(self) -> str:
        """A text of the computation, for a digest: equal for stages that compute the same."""
        return self.program.text
