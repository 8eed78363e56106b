"""A model as a chain of stages whose states are tuples of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table
from torch import nn

from chainstay.runtime.extraction.calling import CallSignature, OutputPlan
from chainstay.runtime.extraction.compiling import Program
from chainstay.runtime.extraction.likeness import Likeness
from chainstay.runtime.extraction.listing import StageRow, as_table, as_text
from chainstay.runtime.extraction.stage import GraphStage
from chainstay.runtime.extraction.values import SharedValue, Value, distinct_bytes
from chainstay.runtime.states import State

__all__ = ["ExtractedChain"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtractedChain:
    """A model's forward, cut into stages.

    The stages read the model's own parameters and buffers each time they run. State i is
    what crosses cut i, in front of stage i; the last one has the model's outputs.

    Attributes:
        model: The user's.
        stages: In order.
        boundaries: The values of each state, ``len(stages) + 1`` of them.
        shared: Values without gradient that all stages may read.
        prologue: Makes those of them that are not inputs of the model.
        shared_inputs: Positions, among the leaves of a call, of those that are.
        state_inputs: Positions of the leaves in state 0: inputs that require a gradient.
        call: What calls must be like.
        output: How the model's output is put together.
        likeness: What the model must be like.
        not_a_join: Why the model has no branches to be planned apart; empty if it has.
    """

    model: nn.Module
    stages: tuple[GraphStage, ...]
    boundaries: tuple[tuple[Value, ...], ...]
    shared: tuple[SharedValue, ...]
    prologue: Program
    shared_inputs: tuple[int, ...]
    state_inputs: tuple[int, ...]
    call: CallSignature
    output: OutputPlan
    likeness: Likeness
    not_a_join: str = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        """All stages in order: what ``model(*args, **kwargs)`` gives, bit for bit.

        Raises:
            PlanMismatchError: The call or the model is not like it was at extraction.
        """
        self.likeness.require_unhooked()
        state, shared = self.begin(args, kwargs)
        for stage in self.stages:
            state = stage(state, shared)
        return self.finish(state, shared)

    def begin(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[State, State]:
        """State 0 and the shared values of a call.

        Raises:
            PlanMismatchError: The call or the model is not like it was at extraction.
        """
        self.likeness.require_kept()
        leaves = self.call.leaves_of(args, kwargs)
        inputs = tuple(leaves[position] for position in self.shared_inputs)
        shared = inputs + self.prologue((), inputs)
        return tuple(leaves[position] for position in self.state_inputs), shared

    def finish(self, state: State, shared: State) -> Any:  # noqa: ANN401  # the model's own
        """The model's output from the last state."""
        return self.output.build(state, shared)

    def boundary_bytes(self, cut: int) -> int:
        """What keeping state `cut` alone takes; what model and caller hold is left out."""
        return distinct_bytes(self.boundaries[cut])

    def added_bytes(self, cut: int, *, kept: int) -> int:
        """What keeping state `cut` takes where state `kept` is kept already."""
        held = {value.storage for value in self.boundaries[kept]}
        return distinct_bytes(value for value in self.boundaries[cut] if value.storage not in held)

    def table(self) -> Table:
        """The stages for people, to be printed by rich."""
        return as_table(type(self.model).__name__, self._rows())

    def __str__(self) -> str:
        return as_text(self.table())

    def _rows(self) -> list[StageRow]:
        return [
            StageRow(
                name=stage.name,
                operators=stage.operators,
                parameters=sum(parameter.numel() for parameter in stage.parameters()),
                tensors=len(self.boundaries[index + 1]),
                boundary_bytes=self.boundary_bytes(index + 1),
                saved_bytes=stage.saved_bytes,
            )
            for index, stage in enumerate(self.stages)
        ]
