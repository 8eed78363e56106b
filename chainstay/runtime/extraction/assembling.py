"""From a graph and its cuts to a chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import fx, nn

from chainstay.runtime.extraction.calling import (
    CallSignature,
    OutputPlan,
    SharedLeaf,
    StateLeaf,
)
from chainstay.runtime.extraction.chain import ExtractedChain
from chainstay.runtime.extraction.compiling import compile_program
from chainstay.runtime.extraction.crossing import Crossings
from chainstay.runtime.extraction.flattening import FlatGraph
from chainstay.runtime.extraction.likeness import Likeness
from chainstay.runtime.extraction.naming import module_paths, name_ranges
from chainstay.runtime.extraction.observing import Observations
from chainstay.runtime.extraction.sharing import with_makers
from chainstay.runtime.extraction.sources import CallInput, ModelTensor
from chainstay.runtime.extraction.stage import GraphStage
from chainstay.runtime.extraction.values import SharedValue, Value

__all__ = [
    "Parts",
    "assemble",
    "made_early",
    "output_leaf",
    "position_of",
    "shared_nodes",
    "stages_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """All that a chain is made of.

    Attributes:
        model: The user's.
        flat: Its graph.
        seen: What the graph's operators do.
        crossings: Which values cross which places.
        cuts: Places where it is cut.
    """

    model: nn.Module
    flat: FlatGraph
    seen: Observations
    crossings: Crossings
    cuts: tuple[int, ...]

    @property
    def places(self) -> tuple[int, ...]:
        """Of the cuts, those in front of the first and behind the last stage included."""
        return (-1, *self.cuts, len(self.crossings.operators) - 1)


def assemble(parts: Parts, call: CallSignature) -> ExtractedChain:
    """The chain."""
    flat, crossings = parts.flat, parts.crossings
    early = made_early(parts)
    ranges = [
        [node for node in crossings.operators[before + 1 : after + 1] if node not in early]
        for before, after in pairwise(parts.places)
    ]
    states = [crossings.at(place) for place in parts.places]
    inputs, made = shared_nodes(flat, ranges, early)
    shared = {node: index for index, node in enumerate([*inputs, *made])}
    first_state = states[0]
    return ExtractedChain(
        model=parts.model,
        stages=tuple(stages_of(parts, ranges, states, shared)),
        boundaries=tuple(tuple(_value(parts, node, states) for node in state) for state in states),
        shared=tuple(_shared_value(parts.seen, node) for node in shared),
        prologue=compile_program(
            flat, [node for node in crossings.operators if node in early], (), shared, made
        ),
        shared_inputs=tuple(position_of(flat, node) for node in inputs),
        state_inputs=tuple(position_of(flat, node) for node in first_state),
        call=call,
        output=OutputPlan(
            flat.output_spec,
            tuple(output_leaf(flat, leaf, states[-1], shared) for leaf in flat.output),
        ),
        likeness=Likeness.of(parts.model),
    )


def made_early(parts: Parts) -> set[fx.Node]:
    """Movable values that cross a cut or leave the model, and all that make them."""
    crossings = parts.crossings
    outputs = {leaf for leaf in parts.flat.output if isinstance(leaf, fx.Node)}
    wanted = [
        node
        for node in crossings.movable
        if node in outputs
        or any(crossings.first[node] <= cut <= crossings.last[node] for cut in parts.cuts)
    ]
    early = with_makers(wanted, crossings.movable, parts.seen)
    several = (node for node in early if parts.seen[node].tensor is None)
    taken = [each for node in several for each in node.users if each in crossings.movable]
    return with_makers([*wanted, *taken], crossings.movable, parts.seen)  # tensors are shared


def shared_nodes(
    flat: FlatGraph, ranges: Sequence[Sequence[fx.Node]], early: set[fx.Node]
) -> tuple[list[fx.Node], list[fx.Node]]:
    """Inputs of the call, and values made early, that stages or the output use."""
    users = {node for nodes in ranges for node in nodes} | {flat.graph.output_node()}
    inputs = [
        node
        for node, source in flat.sources.items()
        if isinstance(source, CallInput) and node.users and _is_tensor(node)
    ]
    made = [node for node in flat.operators if node in early and users.intersection(node.users)]
    return inputs, made


def _is_tensor(node: fx.Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def position_of(flat: FlatGraph, node: fx.Node) -> int:
    """Of an input of the call, among its leaves."""
    source = flat.sources[node]
    assert isinstance(source, CallInput)
    return source.position


def stages_of(
    parts: Parts,
    ranges: Sequence[Sequence[fx.Node]],
    states: Sequence[Sequence[fx.Node]],
    shared: Mapping[fx.Node, int],
) -> list[GraphStage]:
    """One stage per range."""
    seen = parts.seen
    modules = dict(parts.model.named_modules(remove_duplicate=False))
    stages = []
    for name, nodes, (before, after) in zip(
        name_ranges(ranges), ranges, pairwise(states), strict=True
    ):
        given = {storage for node in before for storage in seen[node].storages}
        saved = {storage for node in nodes for storage in seen[node].saved}
        stages.append(
            GraphStage(
                name=name,
                program=compile_program(parts.flat, nodes, before, shared, after),
                runs=_modules_run(modules, nodes),
                operators=len(nodes),
                saved_bytes=seen.size_of(saved - given),
                draws_random=any(seen[node].draws_random for node in nodes),
                changes=_changes(parts, nodes),
            )
        )
    return stages


def _modules_run(
    modules: Mapping[str, nn.Module], nodes: Sequence[fx.Node]
) -> tuple[nn.Module, ...]:
    """Modules of the model whose forwards `nodes` are from, each once, in order."""
    paths = dict.fromkeys(path for node in nodes for path in module_paths(node))
    return tuple(dict.fromkeys(modules[path] for path in paths if path in modules))


def _changes(parts: Parts, nodes: Sequence[fx.Node]) -> tuple[ModelTensor, ...]:
    """The model's tensors that `nodes` change in place."""
    written = {storage for node in nodes for storage in parts.seen[node].written}
    return tuple(
        source
        for node, source in parts.flat.sources.items()
        if isinstance(source, ModelTensor) and written.intersection(parts.seen[node].storages)
    )


def _value(parts: Parts, node: fx.Node, states: Sequence[Sequence[fx.Node]]) -> Value:
    tensor = parts.seen[node].tensor
    assert tensor is not None, f"{node} is no tensor, so nothing is cut behind it"
    (storage,) = parts.seen[node].storages
    cuts = [cut for cut, state in enumerate(states) if node in state]
    return Value(
        name=node.name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        device=tensor.device,
        storage=storage,
        storage_bytes=parts.seen.storage_bytes[storage],
        requires_grad=tensor.requires_grad,
        is_external=storage in parts.seen.external,
        first_cut=cuts[0],
        last_cut=cuts[-1],
    )


def _shared_value(seen: Observations, node: fx.Node) -> SharedValue:
    (storage,) = seen[node].storages
    return SharedValue(
        name=node.name,
        storage_bytes=seen.storage_bytes[storage],
        is_external=storage in seen.external,
    )


def output_leaf(
    flat: FlatGraph, leaf: object, state: Sequence[fx.Node], shared: Mapping[fx.Node, int]
) -> object:
    """Where a leaf of the output is found when the stages have run."""
    if not isinstance(leaf, fx.Node):
        return leaf
    if leaf in state:
        return StateLeaf(state.index(leaf))
    return SharedLeaf(shared[leaf]) if leaf in shared else flat.sources[leaf]
