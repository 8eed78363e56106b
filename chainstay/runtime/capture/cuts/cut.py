"""Cutting of a captured graph into a chain of stages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from torch import fx

from chainstay.errors import NotAJoinError
from chainstay.runtime.capture.cuts.branches import find_towers
from chainstay.runtime.capture.cuts.chain import GraphChain, Position, SharedValue, Value
from chainstay.runtime.capture.cuts.crossings import (
    Crossings,
    find_crossings,
    forbidden_places,
    with_makers,
)
from chainstay.runtime.capture.cuts.cut_points import Granularity, choose_cuts
from chainstay.runtime.capture.cuts.programs import GraphStage, Program, compile_program
from chainstay.runtime.capture.cuts.stage_names import name_ranges
from chainstay.runtime.capture.graph import CapturedGraph, NoStagesError
from chainstay.runtime.capture.operators import Observations, ObservedGraph
from chainstay.runtime.stage.chain_stage import Effects


@dataclass(frozen=True)
class CutGraph:
    """A graph, and the places where it is cut.

    Attributes:
        observed: The graph.
        crossings: The values that cross each place.
        cuts: Places where it is cut.
    """

    observed: ObservedGraph
    crossings: Crossings
    cuts: tuple[int, ...]

    @property
    def captured(self) -> CapturedGraph:
        """The graph's operators."""
        return self.observed.captured

    @property
    def seen(self) -> Observations:
        """The effects of the graph's operators."""
        return self.observed.seen

    @property
    def places(self) -> tuple[int, ...]:
        """Places of the cuts, and those in front of the first and behind the last stage."""
        return (-1, *self.cuts, len(self.crossings.operators) - 1)

    @cached_property
    def early(self) -> set[fx.Node]:
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

    def ranges(self, operators: Sequence[fx.Node], places: Sequence[int]) -> list[list[fx.Node]]:
        """Return the operators of each stage: those between two places that are not made early."""
        return [
            [node for node in operators[before + 1 : after + 1] if node not in self.early]
            for before, after in pairwise(places)
        ]

    def shared(self, ranges: Iterable[Sequence[fx.Node]]) -> dict[fx.Node, int]:
        """Return the positions of shared values: inputs, and those made early and used later."""
        users = {node for nodes in ranges for node in nodes} | {self.captured.graph.output_node()}
        made = (
            node
            for node in self.crossings.operators
            if node in self.early and users.intersection(node.users)
        )
        nodes = (*self.captured.placeholders, *made)
        return {node: index for index, node in enumerate(nodes)}

    def stages(
        self,
        ranges: Sequence[Sequence[fx.Node]],
        states: Sequence[Sequence[fx.Node]],
        shared: Mapping[fx.Node, int],
    ) -> list[GraphStage]:
        """Return one stage per range of operators, between two states each."""
        seen = self.seen
        stages: list[GraphStage] = []
        read: set[int] = set()
        for name, nodes, (before, after) in zip(
            name_ranges(ranges), ranges, pairwise(states), strict=True
        ):
            given = {storage for node in before for storage in seen[node].storages}
            saved = {storage for node in nodes for storage in seen[node].saved}
            written = {storage for node in nodes for storage in seen[node].written}
            program = compile_program(self.captured.modules, nodes, before, shared, after)
            effects = Effects(
                reads=program.shared,
                written=tuple(
                    position
                    for node, position in shared.items()
                    if node not in self.observed.state_inputs
                    and written.intersection(seen[node].storages)
                ),
                draws_random=any(seen[node].draws_random for node in nodes),
                changes_input=bool(written & given),
                fills_what_it_saved=any(seen[node].fills_saved for node in nodes),
                tied=tuple(position for position in program.shared if position in read),
            )
            stages.append(
                GraphStage(
                    name=name,
                    body=program.body,
                    function=program.function,
                    shared=program.shared,
                    operators=len(nodes),
                    saved_bytes=seen.size_of(saved - given),
                    effects=effects,
                )
            )
            read.update(program.shared)
        return stages

    def prologue(self, shared: Mapping[fx.Node, int]) -> Program:
        """Return the program that makes the values that are made early."""
        nodes = [node for node in self.crossings.operators if node in self.early]
        results = list(shared)[len(self.captured.inputs) :]
        return compile_program(self.captured.modules, nodes, (), shared, results)

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

        def position(leaf: object) -> Position | object:
            if not isinstance(leaf, fx.Node):
                return leaf
            if leaf in state:
                return Position(state.index(leaf), is_shared=False)
            return Position(shared[leaf], is_shared=True)

        return tuple(map(position, self.captured.output))

    def value(self, node: fx.Node, first_cut: int, last_cut: int) -> Value:
        """Return `node` as a value that crosses cuts."""
        tensor = self.seen[node].tensor
        assert tensor is not None, f"{node} is no tensor, so nothing is cut behind it"
        (storage,) = self.seen[node].storages
        return Value(
            name=node.name,
            shape=tensor.shape,
            dtype=tensor.dtype,
            device=tensor.device,
            storage=storage,
            storage_bytes=self.seen.storage_bytes[storage],
            requires_grad=tensor.requires_grad,
            is_external=storage in self.seen.external,
            first_cut=first_cut,
            last_cut=last_cut,
        )


def cut_into_chain(
    observed: ObservedGraph, granularity: Granularity, blocks: frozenset[str]
) -> GraphChain:
    """Cut a graph where little crosses.

    Raises:
        NoStagesError: It gives something that is neither a tensor nor a number.
    """
    crossings = find_crossings(observed)
    cuts = choose_cuts(crossings, granularity, blocks)
    chain = _cut_at(observed, crossings, cuts)
    between_blocks = choose_cuts(crossings, "blocks", blocks)
    borders = (index for index, cut in enumerate(cuts, 1) if cut in between_blocks)
    return replace(chain, borders=(0, *borders, len(chain.stages)))


def cut_again(observed: ObservedGraph, cuts: tuple[int, ...]) -> GraphChain | None:
    """Cut a graph where one that is alike was cut; ``None`` where that is not allowed."""
    crossings = find_crossings(observed)
    forbidden = forbidden_places(crossings)
    places = tuple(cut + len(observed.seen.numbers) for cut in cuts)
    if not forbidden.isdisjoint(places) or any(n >= len(crossings.operators) for n in places):
        return None
    return _cut_at(observed, crossings, places)


def _cut_at(observed: ObservedGraph, crossings: Crossings, cuts: tuple[int, ...]) -> GraphChain:
    for node in crossings.at(len(crossings.operators) - 1):
        if observed.seen[node].tensor is None:
            raise NoStagesError(
                f"the forward returns {node.name}, which is neither a tensor nor a number that is "
                "known before; return tensors"
            )
    chain = _assemble(CutGraph(observed, crossings, cuts))
    try:
        find_towers(observed, crossings.movable)  # changes the graph, so it comes last
    except NotAJoinError as refusal:
        return replace(chain, not_a_join=str(refusal))
    return chain


def _assemble(cut: CutGraph) -> GraphChain:
    """Return the chain of a graph that has been cut."""
    crossings, captured = cut.crossings, cut.captured
    ranges = cut.ranges(crossings.operators, cut.places)
    states = [crossings.at(place) for place in cut.places]
    last_cuts = {node: index for index, state in enumerate(states) for node in state}
    first_cuts = {n: i for i, state in reversed(list(enumerate(states))) for n in state}
    shared = cut.shared(ranges)
    return GraphChain(
        name=cut.observed.name,
        stages=tuple(cut.stages(ranges, states, shared)),
        boundaries=tuple(
            tuple(cut.value(node, first_cuts[node], last_cuts[node]) for node in state)
            for state in states
        ),
        inputs=captured.inputs,
        constants=captured.constants,
        shared=tuple(map(cut.shared_value, shared)),
        prologue=cut.prologue(shared),
        state_inputs=tuple(shared[node] for node in states[0]),
        output=cut.output(states[-1], shared),
        cuts=tuple(place - len(cut.seen.numbers) for place in cut.cuts),
    )
