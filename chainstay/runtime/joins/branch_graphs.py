"""Cutting of a captured graph into branches of stages that meet, and a tail behind them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from chainstay.errors import NotAJoinError
from chainstay.runtime.capture.cuts.branches import Parts, find_parts, title_of
from chainstay.runtime.capture.cuts.crossings import (
    Crossings,
    crossings_among,
    find_crossings,
    forbidden_places,
    movable_nodes,
)
from chainstay.runtime.capture.cuts.cut import CutGraph
from chainstay.runtime.capture.cuts.cut_points import Granularity, choose_cuts
from chainstay.runtime.capture.cuts.programs import GraphStage
from chainstay.runtime.capture.operators import ObservedGraph
from chainstay.runtime.joins.graph_join import GraphJoin
from chainstay.runtime.joins.part_order import sort_by_part, uses_of_leaves


def cut_into_join(
    observed: ObservedGraph, granularity: Granularity, blocks: frozenset[str]
) -> GraphJoin:
    """Cut a graph into branches that meet, and a tail behind them.

    The graph's operators are put into the order of their parts.

    Args:
        observed: A graph with two parts or more that know nothing of each other, and save at
            least 5 % of what the model saves each. They may share parameters and inputs.
            They meet in the model, or in a loss behind it.
        granularity: The granularity of each branch and the tail; a number is divided among them.
        blocks: Paths of the model's repeated blocks.

    Raises:
        NotAJoinError: There are no such parts; the text says where they exchange values.
    """
    found = find_parts(observed, movable_nodes(observed))
    sort_by_part(observed, found)
    crossings = find_crossings(observed)
    parts = _parts(observed, crossings, found)
    if isinstance(granularity, int):
        granularity = max(1, granularity // len(parts))
    cuts = [part.cuts(granularity, blocks) for part in parts]
    return _assemble(observed, crossings, parts, cuts, found.count)


@dataclass(frozen=True, slots=True)
class _JoinPart:
    """A branch or the tail.

    Attributes:
        start: Place behind which its first operator lies.
        given: Its first state.
        result: Its last one.
        crossings: The crossings of its own operators.
    """

    start: int
    given: list[fx.Node]
    result: list[fx.Node]
    crossings: Crossings

    def cuts(self, granularity: Granularity, blocks: frozenset[str]) -> list[int]:
        """Return the places among its own operators where it is cut: no value crosses two of them.

        A join's profile has no skips. What crosses less goes first.
        """
        ends = (-1, len(self.crossings.operators) - 1)
        states = {-1: self._held(self.given), ends[1]: self._held(self.result)}
        chosen = sorted(ends)
        forbidden = forbidden_places(self.crossings)
        places = choose_cuts(self.crossings, forbidden, granularity, blocks)
        held = {place: self._held(self.crossings.at(place)) for place in places}
        for place in sorted(places, key=lambda cut: (self._size(held[cut]), cut)):
            before = max(other for other in chosen if other < place)
            behind = min(other for other in chosen if other > place)
            if held[place].isdisjoint(states[before] | states[behind]):
                states[place] = held[place]
                chosen.append(place)
        return sorted(set(chosen) - set(ends))

    def places(self, cuts: Sequence[int]) -> list[int]:
        """Return the places of its cuts, in front of its first operator and behind its last."""
        return [-1, *cuts, len(self.crossings.operators) - 1]

    def states(self, cuts: Sequence[int]) -> list[list[fx.Node]]:
        """Return the states at its beginning, its cuts and its end."""
        return [self.given, *(self.crossings.at(place) for place in cuts), self.result]

    def _held(self, nodes: Sequence[fx.Node]) -> frozenset[object]:
        """Return the tensors with gradients, and storages that are nobody else's."""
        observed = self.crossings.observed
        storages = {storage for node in nodes for storage in observed[node].storages}
        return frozenset(
            [*(n for n in nodes if observed[n].requires_grad), *(storages - observed.external)]
        )

    def _size(self, held: frozenset[object]) -> int:
        return self.crossings.observed.size_of(value for value in held if isinstance(value, int))


def _parts(observed: ObservedGraph, crossings: Crossings, found: Parts) -> list[_JoinPart]:
    """Return the branches, and the tail if there are operators in it.

    Raises:
        NotAJoinError: The tail needs an input's gradient, or what is no tensor.
    """
    part_of, tail = found.part_of, found.count
    parts = []
    start = -1
    for part in range(tail + 1):
        members = [node for node in crossings.operators if part_of[node] == part]
        if part == tail:
            _refuse_strange(observed, crossings.at(start))
        if members:
            end = start + len(members)
            given = crossings.at(start)
            if part < tail:
                given = [
                    node
                    for node in given
                    if node.op == "placeholder" and any(part_of.get(u) == part for u in node.users)
                ]
            result = [n for n in crossings.at(end) if part == tail or part_of.get(n) == part]
            own = crossings_among(observed, members, given, crossings.movable)
            parts.append(_JoinPart(start, given, result, own))
            start = end
    return parts


def _refuse_strange(observed: ObservedGraph, met: Sequence[fx.Node]) -> None:
    for node in met:
        if node.op == "placeholder":
            raise NotAJoinError(
                f"the tail needs the gradient of the model's input {node.name}, and a tail reads "
                "nothing but what the branches give; let a branch hand it on"
            )
        if observed[node].tensor is None:
            raise NotAJoinError(f"the branches meet inside {title_of(node)}, which is no tensor")


def _assemble(
    observed: ObservedGraph,
    crossings: Crossings,
    parts: Sequence[_JoinPart],
    cuts: Sequence[Sequence[int]],
    branches: int,
) -> GraphJoin:
    """Make a join of `branches` parts and a tail; `cuts` are places among each one's operators."""
    inner = [p.start + 1 + place for p, own in zip(parts, cuts, strict=True) for place in own]
    places = tuple(sorted([*inner, *(part.start for part in parts[1:])]))
    cut = CutGraph(crossings, places)
    ranges = [
        cut.ranges(part.crossings.operators, part.places(own))
        for part, own in zip(parts, cuts, strict=True)
    ]
    stages = [
        tuple(cut.stages(nodes, part.states(own)))
        for part, own, nodes in zip(parts, cuts, ranges, strict=True)
    ]
    last_state = crossings.at(len(crossings.operators) - 1)
    given = tuple(tuple(cut.shared[node] for node in part.given) for part in parts[:branches])
    return GraphJoin(
        name=observed.name,
        stages=tuple(stage for part in stages for stage in part),
        lengths=tuple(map(len, stages[:branches])),
        given=given,
        state_inputs=tuple(position for branch in given for position in branch),
        widths=tuple(len(part.result) for part in parts[:branches]),
        sums=_sums(observed, crossings.operators, ranges, stages),
        inputs=observed.captured.inputs,
        constants=observed.captured.constants,
        made=tuple(node.name for node in cut.made),
        prologue=cut.prologue(),
        output=cut.output(last_state),
    )


def _sums(
    observed: ObservedGraph,
    operators: Sequence[fx.Node],
    ranges: Sequence[Sequence[Sequence[fx.Node]]],
    stages: Sequence[Sequence[GraphStage]],
) -> tuple[tuple[GraphStage, ...], ...]:
    """Return the stages that use each leaf; see `GraphJoin.sums`."""
    stage_of = {
        node: stage
        for part, own in zip(ranges, stages, strict=True)
        for nodes, stage in zip(part, own, strict=True)
        for node in nodes
    }
    order = {node: index for index, node in enumerate(operators)}
    found = []
    for _, uses in uses_of_leaves(observed):
        if len(uses) > 2:
            backward = sorted(uses, key=order.__getitem__, reverse=True)
            found.append(tuple(stage_of[node] for node in backward))
    return tuple(dict.fromkeys(found))
