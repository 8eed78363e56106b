"""A captured forward as a chain of stages whose states are tuples of tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import torch

from chainstay.runtime.capture.cuts.programs import GraphStage, Program
from chainstay.runtime.capture.cuts.stage_table import as_text, stage_table
from chainstay.runtime.capture.graph_inputs import GraphInput, InputKind
from chainstay.runtime.capture.trials.isolation import StandIns
from chainstay.runtime.stage.states import State, address_of
from chainstay.units import format_bytes

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor that crosses one cut, or several behind one another.

    The same tensor object is in all of these states, so keeping them costs its memory once.

    Attributes:
        name: The name of the operator or input that makes it.
        shape: The shape of the tensor.
        dtype: The type of the tensor's elements.
        device: The device of the tensor.
        storage: Number of the storage it lies in; values with equal numbers share memory.
        storage_bytes: The bytes of that storage.
        requires_grad: Whether it has a gradient.
        is_external: The model or the caller holds its storage anyway.
    """

    name: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    storage: int
    storage_bytes: int
    requires_grad: bool
    is_external: bool


def _distinct_bytes(values: Iterable[Value]) -> int:
    """Return the bytes of the storages of `values`, each counted once, external ones left out."""
    return sum(
        {value.storage: value.storage_bytes for value in values if not value.is_external}.values()
    )


@dataclass(frozen=True, slots=True)
class Position:
    """The place of an output's leaf when the stages have run.

    Attributes:
        index: The index among the tensors of the last state, or among the shared values.
        is_shared: Whether it is among the shared values.
    """

    index: int
    is_shared: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphStages(ABC):
    """A captured forward, cut into stages.

    What needs no gradient is shared: inputs of the graph, its constants, and what the prologue
    makes of them.

    Attributes:
        name: The model's name, for messages.
        stages: The stages in order.
        inputs: The graph's inputs, its constants included.
        constants: Tensors behind the inputs of a call.
        made: The names of the shared values that are no inputs.
        prologue: Makes these.
        state_inputs: Positions of the inputs in first states: tensors whose gradients go on.
        output: The position of each output; anything but a `Position` is the output itself.
    """

    name: str
    stages: tuple[GraphStage, ...]
    inputs: tuple[GraphInput, ...]
    constants: tuple[torch.Tensor, ...]
    made: tuple[str, ...]
    prologue: Program
    state_inputs: tuple[int, ...]
    output: tuple[Position | object, ...]

    @property
    @abstractmethod
    def layout(self) -> object:
        """The layout, which is equal for graphs that are cut alike and differ in numbers only."""

    @property
    def shared_names(self) -> tuple[str, ...]:
        """The names of the shared values in messages."""
        return (*(given.name for given in self.inputs), *self.made)

    def begin(self, inputs: Sequence[Any]) -> tuple[State, tuple[Any, ...]]:
        """Return all first states in one, and the shared values, from the graph's inputs."""
        given = (*inputs, *self.constants)
        return tuple([given[p] for p in self.state_inputs]), given + self.prologue((), given)

    def finish(self, state: State, shared: Sequence[Any]) -> tuple[Any, ...]:
        """Return the graph's outputs from the last state."""
        return tuple(
            [
                (shared if leaf.is_shared else state)[leaf.index]
                if isinstance(leaf, Position)
                else leaf
                for leaf in self.output
            ]
        )

    def counted(self, shared: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Return those of the first shared values that a step's memory counts.

        That is the tensors that come with the call.
        """
        kinds = chain((given.kind for given in self.inputs), repeat(InputKind.ARGUMENT))
        tensors = [
            (value, kind)
            for value, kind in zip(shared, kinds, strict=False)
            if isinstance(value, torch.Tensor) and value.layout in (torch.strided, torch.sparse_coo)
        ]
        held = {address_of(value) for value, kind in tensors if kind is InputKind.HELD}
        return tuple(
            value
            for value, kind in tensors
            if kind is InputKind.ARGUMENT and address_of(value) not in held
        )

    def written_by(self, inputs: Sequence[object]) -> frozenset[int]:
        """Return the identities of the inputs that the graph changes in place."""
        positions = {position for stage in self.stages for position in stage.effects.written}
        if self.stages and self.stages[0].effects.changes_input:
            positions |= set(self.state_inputs)
        return frozenset(id(inputs[position]) for position in positions if position < len(inputs))

    def stand_ins(self, inputs: Sequence[object]) -> StandIns:
        """Return the stand-ins on which the graph can run and leave no trace of a call."""
        return StandIns(self.written_by(inputs))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphChain(GraphStages):
    """A captured forward as one chain.

    State i is what crosses cut i, in front of stage i; the last one has the graph's outputs.

    Attributes:
        boundaries: The values of each state, ``len(stages) + 1`` of them.
        cuts: Places of the cuts between the graph's operators, those on numbers not counted.
        borders: Stages in front of which a block of the model ends, and the ends of the chain.
        not_a_join: Why the model has no branches to be planned apart; empty if it has.
    """

    boundaries: tuple[tuple[Value, ...], ...]
    cuts: tuple[int, ...]
    borders: tuple[int, ...] = ()
    not_a_join: str = ""

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run all stages in order, and return what the graph gives, bit for bit."""
        state, shared = self.begin(inputs)
        for stage in self.stages:
            state = stage(state, shared)
        return self.finish(state, shared)

    @property
    def layout(self) -> object:
        """Shapes, types and gradients of what the stages pass on; see `GraphStages`."""
        return [[(v.shape, v.dtype, v.requires_grad) for v in state] for state in self.boundaries]

    def boundary_bytes(self, cut: int) -> int:
        """Return the bytes of state `cut` kept alone; what model and caller hold is left out."""
        return _distinct_bytes(self.boundaries[cut])

    def table(self) -> Table:
        """Return the stages for people, to be printed by rich."""
        rows = (
            (
                stage.name,
                str(stage.operators),
                f"{stage.elements:,}",
                f"{len(state)} of {format_bytes(_distinct_bytes(state))}",
                format_bytes(stage.saved_bytes),
            )
            for stage, state in zip(self.stages, self.boundaries[1:], strict=True)
        )
        columns = ("operators", "parameters", "passes on", "saves")
        return stage_table(f"{self.name} in {len(self.stages)} stages", columns, rows)

    def __str__(self) -> str:
        return as_text(self.table())
