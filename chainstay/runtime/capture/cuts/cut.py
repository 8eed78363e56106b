"""Cutting of a captured graph into a chain of stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from torch import fx

from chainstay.errors import NotAJoinError
from chainstay.runtime.capture.cuts.branches import find_parts
from chainstay.runtime.capture.cuts.chain import GraphChain, Position, Value
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
from chainstay.runtime.capture.operators import ObservedGraph
from chainstay.runtime.stage.chain_stage import Effects


@dataclass(frozen=True)
class CutGraph:
    """A graph, and the places where it is cut.

    Attributes:
        crossings: The values that cross each place.
        cuts: Places where it is cut.
    """

    crossings: Crossings
    cuts: tuple[int, ...]

    @property
    def observed(self) -> ObservedGraph:
        """The graph, with the effects of its operators."""
        return self.crossings.observed

    @property
    def captured(self) -> CapturedGraph:
        """The graph's operators."""
        return self.observed.captured

    @property
    def places(self) -> tuple[int, ...]:
        """Places of the cuts, and those in front of the first and behind the last stage."""
        return (-1, *self.cuts, len(self.crossings.operators) - 1)

    @cached_property
    def early(self) -> set[fx.Node]:
        """Movable values that cross a cut or leave the graph, numbers, and all that make them.

        What a stage saves may depend on a number, which whoever runs it has to see.
        """
        observed, crossings = self.observed, self.crossings
        outputs = {leaf for leaf in self.captured.output if isinstance(leaf, fx.Node)}
        wanted = [
            node
            for node in crossings.movable
            if node in outputs
            or node in observed.numbers
            or any(crossings.first[node] <= cut <= crossings.last[node] for cut in self.cuts)
        ]
        for node in with_makers(wanted, crossings.movable, observed):
            if observed[node].tensor is None and observed[node].storages:  # tensors are shared
                wanted += [user for user in node.users if user in crossings.movable]
        return with_makers(wanted, crossings.movable, observed)

    @cached_property
    def made(self) -> list[fx.Node]:
        """Values that are made early and used later."""
        return [
            node
            for node in self.crossings.operators
            if node in self.early and not self.early.issuperset(node.users)
        ]

    @cached_property
    def shared(self) -> Mapping[fx.Node, int]:
        """Positions of shared values: inputs, and those that are made early."""
        nodes = (*self.captured.placeholders, *self.made)
        return {node: index for index, node in enumerate(nodes)}

    def ranges(self, operators: Sequence[fx.Node], places: Sequence[int]) -> list[list[fx.Node]]:
        """Return the operators of each stage: those between two places that are not made early."""
        return [
            [node for node in operators[before + 1 : after + 1] if node not in self.early]
            for before, after in pairwise(places)
        ]

    def stages(
        self, ranges: Sequence[Sequence[fx.Node]], states: Sequence[Sequence[fx.Node]]
    ) -> list[GraphStage]:
        """Return one stage per range of operators, between two states each."""
        observed, shared = self.observed, self.shared
        inputs = [observed[node].tensor for node in self.captured.placeholders]
        stages: list[GraphStage] = []
        read: set[int] = set()
        for name, nodes, (before, after) in zip(
            name_ranges(ranges), ranges, pairwise(states), strict=True
        ):
            given = {storage for node in before for storage in observed[node].storages}
            saved = {storage for node in nodes for storage in observed[node].saved}
            written = {storage for node in nodes for storage in observed[node].written}
            program = compile_program(self.captured.modules, nodes, before, shared, after)
            tensors = [inputs[position] for position in program.shared if position < len(inputs)]
            effects = Effects(
                reads=program.shared,
                written=tuple(
                    position
                    for node, position in shared.items()
                    if node not in observed.state_inputs
                    and written.intersection(observed[node].storages)
                ),
                draws_random=any(observed[node].draws_random for node in nodes),
                changes_input=bool(written & given),
                fills_what_it_saved=any(observed[node].fills_saved for node in nodes),
                tied=tuple(position for position in program.shared if position in read),
            )
            stages.append(
                GraphStage(
                    name=name,
                    body=program.body,
                    function=program.function,
                    shared=program.shared,
                    operators=len(nodes),
                    elements=sum(tensor.numel() for tensor in tensors if tensor is not None),
                    saved_bytes=observed.size_of(saved - given),
                    effects=effects,
                )
            )
            read.update(program.shared)
        return stages

    def prologue(self) -> Program:
        """Return the program that makes the values that are made early."""
        nodes = [node for node in self.crossings.operators if node in self.early]
        return compile_program(self.captured.modules, nodes, (), self.shared, self.made)

    def output(self, state: Sequence[fx.Node]) -> tuple[Position | object, ...]:
        """Return the place of each output when the stages have run, and `state` is the last."""

        def position(leaf: object) -> Position | object:
            if not isinstance(leaf, fx.Node):
                return leaf
            if leaf in state:
                return Position(state.index(leaf), is_shared=False)
            return Position(self.shared[leaf], is_shared=True)

        return tuple(map(position, self.captured.output))

    def value(self, node: fx.Node) -> Value:
        """Return `node` as a value that crosses cuts."""
        tensor = self.observed[node].tensor
        assert tensor is not None, f"{node} is no tensor, so nothing is cut behind it"
        (storage,) = self.observed[node].storages
        return Value(
            name=node.name,
            shape=tensor.shape,
            dtype=tensor.dtype,
            device=tensor.device,
            storage=storage,
            storage_bytes=self.observed.storage_bytes[storage],
            requires_grad=tensor.requires_grad,
            is_external=storage in self.observed.external,
        )


def cut_into_chain(
    observed: ObservedGraph, granularity: Granularity, blocks: frozenset[str]
) -> GraphChain:
    """Cut a graph where little crosses.

    A join is not cut between two runs of a network that counts them, as BatchNorm does: its
    branches are planned apart, or all of it is kept in part, which is as good as cuts within.

    Raises:
        NoStagesError: It gives something that is neither a tensor nor a number.
    """
    crossings = find_crossings(observed)
    _require_tensors(crossings)
    forbidden = forbidden_places(crossings)
    with_counters = forbidden_places(crossings, with_counters=True)
    between_blocks = choose_cuts(crossings, forbidden, "blocks", blocks)

    def chain_at(cuts: tuple[int, ...]) -> GraphChain:
        chain = _assemble(CutGraph(crossings, cuts))
        borders = (index for index, cut in enumerate(cuts, 1) if cut in between_blocks)
        return replace(chain, borders=(0, *borders, len(chain.stages)))

    chain = as_join = chain_at(choose_cuts(crossings, forbidden, granularity, blocks))
    if with_counters != forbidden:
        as_join = chain_at(choose_cuts(crossings, with_counters, granularity, blocks))
    refusal = _refusal_as_join(crossings)
    return replace(chain, not_a_join=refusal) if refusal else as_join


def cut_again(observed: ObservedGraph, cuts: tuple[int, ...]) -> GraphChain | None:
    """Cut a graph where one that is alike was cut; ``None`` where that is not allowed."""
    crossings = find_crossings(observed)
    forbidden = forbidden_places(crossings)
    places = tuple(cut + len(observed.numbers) for cut in cuts)
    if not forbidden.isdisjoint(places) or any(n >= len(crossings.operators) for n in places):
        return None
    _require_tensors(crossings)
    chain = _assemble(CutGraph(crossings, places))
    return replace(chain, not_a_join=_refusal_as_join(crossings))


def _require_tensors(crossings: Crossings) -> None:
    for node in crossings.at(len(crossings.operators) - 1):
        if crossings.observed[node].tensor is None:
            raise NoStagesError(
                f"the forward returns {node.name}, which is neither a tensor nor a number that is "
                "known before; return tensors"
            )


def _refusal_as_join(crossings: Crossings) -> str:
    """Return why a graph is no join, empty if it is one; call it last, as it changes the graph."""
    try:
        find_parts(crossings.observed, crossings.movable)
    except NotAJoinError as refusal:
        return str(refusal)
    return ""


def _assemble(cut: CutGraph) -> GraphChain:
    crossings, captured = cut.crossings, cut.captured
    ranges = cut.ranges(crossings.operators, cut.places)
    states = [crossings.at(place) for place in cut.places]
    return GraphChain(
        name=cut.observed.name,
        stages=tuple(cut.stages(ranges, states)),
        boundaries=tuple(tuple(map(cut.value, state)) for state in states),
        inputs=captured.inputs,
        constants=captured.constants,
        made=tuple(node.name for node in cut.made),
        prologue=cut.prologue(),
        state_inputs=tuple(cut.shared[node] for node in states[0]),
        output=cut.output(states[-1]),
        cuts=tuple(place - len(cut.observed.numbers) for place in cut.cuts),
    )
