"""A captured forward as a chain of stages whose states are tuples of tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from rich.table import Table
from torch import fx

from chainstay.runtime.capture.cuts.crossings import Crossings
from chainstay.runtime.capture.cuts.movable_nodes import with_makers
from chainstay.runtime.capture.cuts.programs import GraphStage, Program, compile_program
from chainstay.runtime.capture.cuts.stage_names import name_ranges
from chainstay.runtime.capture.cuts.stage_table import as_text, stage_table
from chainstay.runtime.capture.cuts.values import SharedValue, Value, distinct_bytes
from chainstay.runtime.capture.graph import CapturedGraph
from chainstay.runtime.capture.graph_inputs import GraphInput, InputKind
from chainstay.runtime.capture.operators import Observations
from chainstay.runtime.stage.states import State, address_of
from chainstay.units import format_bytes


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
class GraphChain:
    """A captured forward, cut into stages.

    State i is what crosses cut i, in front of stage i; the last one has the graph's outputs.
    What needs no gradient is shared: inputs of the graph, its constants, and what the prologue
    makes of them.

    Attributes:
        name: The model's name, for messages.
        stages: The stages in order.
        boundaries: The values of each state, ``len(stages) + 1`` of them.
        inputs: The graph's inputs, its constants included.
        constants: Tensors behind the inputs of a call.
        shared: The values that all stages may read.
        prologue: Makes those of them that are no inputs.
        state_inputs: Positions of the inputs in state 0: tensors whose gradients go on.
        output: The position of each output; anything but a `Position` is the output itself.
        cuts: Places of the cuts between the graph's operators, those on numbers not counted.
        borders: Stages in front of which a block of the model ends, and the ends of the chain.
        not_a_join: Why the model has no branches to be planned apart; empty if it has.
    """

    name: str
    stages: tuple[GraphStage, ...]
    boundaries: tuple[tuple[Value, ...], ...]
    inputs: tuple[GraphInput, ...]
    constants: tuple[torch.Tensor, ...]
    shared: tuple[SharedValue, ...]
    prologue: Program
    state_inputs: tuple[int, ...]
    output: tuple[Position | object, ...]
    cuts: tuple[int, ...]
    borders: tuple[int, ...] = ()
    not_a_join: str = ""

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:  # noqa: ANN401  # tensors and numbers
        """All stages in order: what the graph gives, bit for bit."""
        state, shared = self.begin(inputs)
        for stage in self.stages:
            state = stage(state, shared)
        return self.finish(state, shared)

    def begin(self, inputs: Sequence[Any]) -> tuple[State, tuple[Any, ...]]:
        """State 0 and the shared values, from the graph's inputs."""
        given = (*inputs, *self.constants)
        return tuple([given[p] for p in self.state_inputs]), given + self.prologue((), given)

    def finish(self, state: State, shared: Sequence[Any]) -> tuple[Any, ...]:
        """The graph's outputs from the last state."""
        return tuple([leaf_at(leaf, state, shared) for leaf in self.output])

    def counted(self, shared: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Return the shared tensors that a step's memory counts: they come with the call."""
        return counted_among(shared, self.inputs)

    def boundary_bytes(self, cut: int) -> int:
        """Return the bytes of state `cut` kept alone; what model and caller hold is left out."""
        return distinct_bytes(self.boundaries[cut])

    def added_bytes(self, cut: int, *, kept: int) -> int:
        """Return the bytes that keeping state `cut` adds where state `kept` is kept already."""
        held = {value.storage for value in self.boundaries[kept]}
        return distinct_bytes(value for value in self.boundaries[cut] if value.storage not in held)

    def table(self) -> Table:
        """The stages for people, to be printed by rich."""
        rows = (
            (
                stage.name,
                str(stage.operators),
                f"{sum(self.shared[position].elements for position in stage.reads):,}",
                f"{len(state)} of {format_bytes(distinct_bytes(state))}",
                format_bytes(stage.saved_bytes),
            )
            for stage, state in zip(self.stages, self.boundaries[1:], strict=True)
        )
        columns = ("operators", "parameters", "passes on", "saves")
        return stage_table(f"{self.name} in {len(self.stages)} stages", columns, rows)

    def __str__(self) -> str:
        return as_text(self.table())


def counted_among(shared: Sequence[Any], inputs: Sequence[GraphInput]) -> tuple[torch.Tensor, ...]:
    """Return the shared tensors that a step's memory counts: they come with the call."""
    kinds = [given.kind for given in inputs]
    kinds += [InputKind.ARGUMENT] * (len(shared) - len(kinds))
    tensors = [
        (value, kind)
        for value, kind in zip(shared, kinds, strict=True)
        if isinstance(value, torch.Tensor) and value.layout == torch.strided
    ]
    held = {address_of(value) for value, kind in tensors if kind is InputKind.HELD}
    return tuple(
        value
        for value, kind in tensors
        if kind is InputKind.ARGUMENT and address_of(value) not in held
    )


def written_inputs(
    stages: Sequence[GraphStage], state_inputs: Sequence[int], inputs: Sequence[object]
) -> frozenset[int]:
    """Return the identities of the inputs that a graph changes in place."""
    positions = {position for stage in stages for position in stage.written}
    if stages and stages[0].changes_input:
        positions |= set(state_inputs)
    return frozenset(id(inputs[position]) for position in positions if position < len(inputs))


def leaf_at(leaf: object, state: State, shared: Sequence[Any]) -> object:
    """An output, given where it is found."""
    if not isinstance(leaf, Position):
        return leaf
    return shared[leaf.index] if leaf.is_shared else state[leaf.index]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutGraph:
    """All that a chain is made of.

    Attributes:
        name: The model's name, for messages.
        captured: Its graph.
        seen: The effects of the graph's operators.
        crossings: The values that cross each place.
        cuts: Places where it is cut.
        state_inputs: Inputs whose gradients go on.
    """

    name: str
    captured: CapturedGraph
    seen: Observations
    crossings: Crossings
    cuts: tuple[int, ...]
    state_inputs: Collection[fx.Node]

    @property
    def places(self) -> tuple[int, ...]:
        """Places of the cuts, and those in front of the first and behind the last stage."""
        return (-1, *self.cuts, len(self.crossings.operators) - 1)

    def made_early(self) -> set[fx.Node]:
        """Movable values that cross a cut or leave the graph, numbers, and all that make them.

        What a stage saves may depend on a number, which whoever runs it has to see.
        """
        crossings = self.crossings
        outputs = {leaf for leaf in self.captured.output if isinstance(leaf, fx.Node)}
        wanted = [
            node
            for node in crossings.movable
            if node in outputs
            or node in self.seen.numbers
            or any(crossings.first[node] <= cut <= crossings.last[node] for cut in self.cuts)
        ]
        early = with_makers(wanted, crossings.movable, self.seen)
        several = [
            node
            for node in early
            if self.seen[node].tensor is None and not self.seen[node].is_number
        ]
        taken = [user for node in several for user in node.users if user in crossings.movable]
        return with_makers([*wanted, *taken], crossings.movable, self.seen)  # tensors are shared

    def shared_nodes(
        self, ranges: Sequence[Sequence[fx.Node]], early: set[fx.Node]
    ) -> list[fx.Node]:
        """All inputs, and values made early that stages or the output use."""
        users = {node for nodes in ranges for node in nodes} | {self.captured.graph.output_node()}
        made = [
            node
            for node in self.crossings.operators
            if node in early and users.intersection(node.users)
        ]
        return [*self.captured.placeholders, *made]

    def stages(
        self,
        ranges: Sequence[Sequence[fx.Node]],
        states: Sequence[Sequence[fx.Node]],
        shared: Mapping[fx.Node, int],
    ) -> list[GraphStage]:
        """One stage per range of operators, between two states each."""
        seen = self.seen
        stages = []
        for name, nodes, (before, after) in zip(
            name_ranges(ranges), ranges, pairwise(states), strict=True
        ):
            given = {storage for node in before for storage in seen[node].storages}
            saved = {storage for node in nodes for storage in seen[node].saved}
            written = {storage for node in nodes for storage in seen[node].written}
            program = compile_program(self.captured, nodes, before, shared, after)
            stages.append(
                GraphStage(
                    name=name,
                    body=program.body,
                    function=program.function,
                    shared=program.shared,
                    operators=len(nodes),
                    saved_bytes=seen.size_of(saved - given),
                    draws_random=any(seen[node].draws_random for node in nodes),
                    written=tuple(
                        position
                        for node, position in shared.items()
                        if node not in self.state_inputs
                        and written.intersection(seen[node].storages)
                    ),
                    changes_input=bool(written & given),
                    fills_what_it_saved=any(seen[node].fills_saved for node in nodes),
                )
            )
        return stages

    def prologue(self, early: set[fx.Node], shared: Sequence[fx.Node]) -> Program:
        """Return the program that makes the values that are made early."""
        inputs = len(self.captured.inputs)
        positions = {node: position for position, node in enumerate(shared[:inputs])}
        nodes = [node for node in self.crossings.operators if node in early]
        return compile_program(self.captured, nodes, (), positions, shared[inputs:])

    def shared_value(self, node: fx.Node) -> SharedValue:
        """Return `node` as a shared value."""
        tensor, storages = self.seen[node].tensor, self.seen[node].storages
        return SharedValue(
            name=node.name,
            storage_bytes=sum(self.seen.storage_bytes[storage] for storage in set(storages)),
            elements=0 if tensor is None or node.op != "placeholder" else tensor.numel(),
            is_external=self.seen.external.issuperset(storages),
        )

    def output(
        self, state: Sequence[fx.Node], shared: Mapping[fx.Node, int]
    ) -> tuple[Position | object, ...]:
        """Return the place of each output when the stages have run."""
        return tuple(_position(leaf, state, shared) for leaf in self.captured.output)


def assemble(cut: CutGraph) -> GraphChain:
    """The chain of a graph that has been cut."""
    crossings, captured = cut.crossings, cut.captured
    early = cut.made_early()
    ranges = [
        [node for node in crossings.operators[before + 1 : after + 1] if node not in early]
        for before, after in pairwise(cut.places)
    ]
    states = [crossings.at(place) for place in cut.places]
    nodes = cut.shared_nodes(ranges, early)
    shared = {node: index for index, node in enumerate(nodes)}
    return GraphChain(
        name=cut.name,
        stages=tuple(cut.stages(ranges, states, shared)),
        boundaries=tuple(tuple(_value(cut, node, states) for node in state) for state in states),
        inputs=captured.inputs,
        constants=captured.constants,
        shared=tuple(map(cut.shared_value, nodes)),
        prologue=cut.prologue(early, nodes),
        state_inputs=tuple(shared[node] for node in states[0]),
        output=cut.output(states[-1], shared),
        cuts=tuple(place - len(cut.seen.numbers) for place in cut.cuts),
    )


def _value(cut: CutGraph, node: fx.Node, states: Sequence[Sequence[fx.Node]]) -> Value:
    seen = cut.seen
    tensor = seen[node].tensor
    assert tensor is not None, f"{node} is no tensor, so nothing is cut behind it"
    (storage,) = seen[node].storages
    crossed = [index for index, state in enumerate(states) if node in state]
    return Value(
        name=node.name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        device=tensor.device,
        storage=storage,
        storage_bytes=seen.storage_bytes[storage],
        requires_grad=tensor.requires_grad,
        is_external=storage in seen.external,
        first_cut=crossed[0],
        last_cut=crossed[-1],
    )


def _position(
    leaf: object, state: Sequence[fx.Node], shared: Mapping[fx.Node, int]
) -> Position | object:
    if not isinstance(leaf, fx.Node):
        return leaf
    if leaf in state:
        return Position(state.index(leaf), is_shared=False)
    return Position(shared[leaf], is_shared=True)
