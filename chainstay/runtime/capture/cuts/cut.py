"""Cutting of a captured graph into a chain of stages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import torch
from torch import fx

from chainstay.errors import NotAJoinError
from chainstay.runtime.capture.cuts.branches import find_towers
from chainstay.runtime.capture.cuts.chain import CutGraph, GraphChain, assemble
from chainstay.runtime.capture.cuts.crossings import Crossings, find_crossings, forbidden_places
from chainstay.runtime.capture.cuts.cut_points import Granularity, choose_cuts
from chainstay.runtime.capture.cuts.movable_nodes import movable_nodes
from chainstay.runtime.capture.graph import CapturedGraph, NoStagesError
from chainstay.runtime.capture.graph_inputs import InputKind
from chainstay.runtime.capture.operators import Observations, observe_operators


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedGraph:
    """A captured graph, and what its operators do.

    Attributes:
        name: The model's name, for messages.
        captured: The graph.
        seen: The effects of its operators.
        state_inputs: Inputs whose gradients go on, to whatever made them.
        movable: Operators that may run before the first stage.
    """

    name: str
    captured: CapturedGraph
    seen: Observations
    state_inputs: Collection[fx.Node]
    movable: frozenset[fx.Node]


def observe_graph(name: str, captured: CapturedGraph, inputs: Sequence[object]) -> ObservedGraph:
    """Observe the operators of a graph.

    Raises:
        NoStagesError: A shape depends on values.
    """
    given = (*inputs, *captured.constants)
    captured, seen = observe_operators(captured, given)
    state_inputs = {
        node: None
        for node, value, kind in zip(
            captured.placeholders, given, (each.kind for each in captured.inputs), strict=True
        )
        if isinstance(value, torch.Tensor)
        and value.requires_grad
        and (kind is InputKind.ARGUMENT or not value.is_leaf)
    }
    return ObservedGraph(
        name=name,
        captured=captured,
        seen=seen,
        state_inputs=state_inputs.keys(),
        movable=movable_nodes(captured, seen),
    )


def cut_into_chain(
    observed: ObservedGraph, granularity: Granularity, blocks: frozenset[str]
) -> GraphChain:
    """Cut a graph where little crosses.

    Raises:
        NoStagesError: It gives something that is neither a tensor nor a number.
    """
    crossings = find_crossings(observed.captured, observed.state_inputs, observed.movable)
    cuts = choose_cuts(crossings, observed.seen, granularity, blocks)
    chain = _cut_at(observed, crossings, cuts)
    between_blocks = choose_cuts(crossings, observed.seen, "blocks", blocks)
    borders = (index for index, cut in enumerate(cuts, 1) if cut in between_blocks)
    return replace(chain, borders=(0, *borders, len(chain.stages)))


def cut_again(observed: ObservedGraph, cuts: tuple[int, ...]) -> GraphChain | None:
    """Cut a graph where one that is alike was cut; ``None`` where that is not allowed."""
    crossings = find_crossings(observed.captured, observed.state_inputs, observed.movable)
    forbidden = forbidden_places(crossings, observed.seen)
    places = tuple(cut + len(observed.seen.numbers) for cut in cuts)
    if not forbidden.isdisjoint(places) or any(n >= len(crossings.operators) for n in places):
        return None
    return _cut_at(observed, crossings, places)


def _cut_at(observed: ObservedGraph, crossings: Crossings, cuts: tuple[int, ...]) -> GraphChain:
    captured, seen = observed.captured, observed.seen
    for node in crossings.at(len(crossings.operators) - 1):
        if seen[node].tensor is None:
            raise NoStagesError(
                f"the forward returns {node.name}, which is neither a tensor nor a number that is "
                "known before; return tensors"
            )
    cut = CutGraph(
        name=observed.name,
        captured=captured,
        seen=seen,
        crossings=crossings,
        cuts=cuts,
        state_inputs=observed.state_inputs,
    )
    chain = assemble(cut)
    try:
        find_towers(captured, seen, observed.movable)  # changes the graph, so it comes last
    except NotAJoinError as refusal:
        return replace(chain, not_a_join=str(refusal))
    return chain
