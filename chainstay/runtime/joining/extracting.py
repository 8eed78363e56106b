"""The front of extraction of joins: any module and a sample call in, an `ExtractedJoin` out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import fx, nn

from chainstay.errors import NotAJoinError
from chainstay.runtime.extraction.assembling import (
    Parts,
    made_early,
    output_leaf,
    position_of,
    shared_nodes,
    stages_of,
)
from chainstay.runtime.extraction.calling import CallSignature, OutputPlan
from chainstay.runtime.extraction.compiling import compile_program
from chainstay.runtime.extraction.crossing import Crossings, find_crossings
from chainstay.runtime.extraction.cutting import Granularity, choose_cuts
from chainstay.runtime.extraction.extracting import require_granularity, trace
from chainstay.runtime.extraction.flattening import FlatGraph
from chainstay.runtime.extraction.likeness import Likeness
from chainstay.runtime.extraction.naming import repeated_blocks
from chainstay.runtime.extraction.observing import Observations
from chainstay.runtime.extraction.referee import require_same
from chainstay.runtime.extraction.sharing import movable_nodes
from chainstay.runtime.extraction.stage import GraphStage
from chainstay.runtime.extraction.towers import find_towers, title_of
from chainstay.runtime.joining.extracted import ExtractedJoin
from chainstay.runtime.joining.ordering import sort_by_part, uses_of_leaves

__all__ = ["extract_join"]


def extract_join(
    model: nn.Module,
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    granularity: Granularity = "fine",
) -> ExtractedJoin:
    """Cut the forward of `model` into branches that meet, and a tail behind them.

    As `chainstay.runtime.extraction.extract`: the model is traced, then run once, as is what
    was found, and left as it was.

    Args:
        model: Any module with two parts or more that know nothing of each other, and save at
            least 5 % of what the model saves each. They may share parameters and inputs.
            They meet in the model, or in a loss behind it.
        sample_args: Positional arguments of a call like those to come.
        sample_kwargs: Keyword arguments, likewise.
        granularity: Of each branch and the tail, as for `extract`; a number is divided among
            them.

    Raises:
        NotAJoinError: There are no such parts; the text says where they exchange values.
        UnsupportedModelError: The model cannot be traced.

    Example:
        >>> import torch
        >>> class Siamese(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.tower = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        ...     def forward(self, left, right):
        ...         return (self.tower(left) - self.tower(right)).square().mean()
        >>> join = extract_join(Siamese(), (torch.zeros(2, 8), torch.zeros(2, 8)))
        >>> len(join.branches), [len(branch) for branch in join.branches], len(join.tail)
        (2, [2, 2], 1)
    """
    kwargs = dict(sample_kwargs or {})
    require_granularity(granularity)
    flat, seen, device = trace(model, sample_args, kwargs)
    towers = find_towers(flat, seen, movable_nodes(flat, seen))
    sort_by_part(flat, seen, towers)
    crossings = find_crossings(flat, seen, movable_nodes(flat, seen))
    pieces = _pieces(flat, seen, crossings, towers.part_of, towers.count)
    if isinstance(granularity, int):
        granularity = max(1, granularity // len(pieces))
    blocks = repeated_blocks(model)
    cuts = [piece.cuts(seen, granularity, blocks) for piece in pieces]
    join = _assemble(
        _Joined(model, flat, seen, crossings, pieces, cuts, towers.count),
        CallSignature.of(sample_args, kwargs),
    )
    require_same(model, join, sample_args, kwargs, device)
    return join


@dataclass(frozen=True, slots=True)
class _Piece:
    """A branch or the tail.

    Attributes:
        start: Place behind which its first operator lies.
        given: Its first state.
        result: Its last one.
        crossings: Of its own operators.
    """

    start: int
    given: list[fx.Node]
    result: list[fx.Node]
    crossings: Crossings

    def cuts(
        self, seen: Observations, granularity: Granularity, blocks: frozenset[str]
    ) -> list[int]:
        """Places among its own operators where it is cut: no value crosses two of them.

        A join's profile has no skips. What crosses less goes first.
        """
        ends = (-1, len(self.crossings.operators) - 1)
        states = {-1: self._held(self.given, seen), ends[1]: self._held(self.result, seen)}
        chosen = sorted(ends)
        places = choose_cuts(self.crossings, seen, granularity, blocks)
        held = {place: self._held(self.crossings.at(place), seen) for place in places}
        for place in sorted(places, key=lambda each: (_size(held[each], seen), each)):
            before = max(each for each in chosen if each < place)
            behind = min(each for each in chosen if each > place)
            if held[place].isdisjoint(states[before] | states[behind]):
                states[place] = held[place]
                chosen.append(place)
        return sorted(set(chosen) - set(ends))

    def states(self, cuts: Sequence[int]) -> list[list[fx.Node]]:
        """At its beginning, its cuts and its end."""
        return [self.given, *(self.crossings.at(place) for place in cuts), self.result]

    def _held(self, nodes: Iterable[fx.Node], seen: Observations) -> frozenset[object]:
        """Tensors with gradients, and storages that are nobody else's."""
        nodes = list(nodes)
        storages = {storage for node in nodes for storage in seen[node].storages}
        return frozenset(
            [*(n for n in nodes if seen[n].requires_grad), *(storages - seen.external)]
        )


def _size(held: frozenset[object], seen: Observations) -> int:
    return seen.size_of(each for each in held if isinstance(each, int))


def _pieces(
    flat: FlatGraph,
    seen: Observations,
    crossings: Crossings,
    part_of: Mapping[fx.Node, int],
    towers: int,
) -> list[_Piece]:
    """The branches, and the tail if there are operators in it.

    Raises:
        NotAJoinError: The tail needs an input's gradient, or what is no tensor.
    """
    pieces = []
    start = -1
    for part in range(towers + 1):
        members = [node for node in crossings.operators if part_of[node] == part]
        if part == towers:
            _refuse_strange(flat, seen, crossings.at(start))
        if members:
            end = start + len(members)
            given = crossings.at(start)
            if part < towers:
                given = [
                    node
                    for node in given
                    if node in flat.sources and any(part_of.get(u) == part for u in node.users)
                ]
            result = [n for n in crossings.at(end) if part == towers or part_of.get(n) == part]
            own = _own_crossings(flat, members, given, crossings.movable)
            pieces.append(_Piece(start, given, result, own))
            start = end
    return pieces


def _own_crossings(
    flat: FlatGraph,
    members: list[fx.Node],
    given: list[fx.Node],
    movable: frozenset[fx.Node],
) -> Crossings:
    """What crosses the places between `members`; what others need crosses the last one."""
    index = {node: position for position, node in enumerate(members)}
    outputs = {leaf for leaf in flat.output if isinstance(leaf, fx.Node)}

    def last_place(node: fx.Node) -> int:
        users = [user for user in node.users if user.op == "call_function"]
        is_needed = node in index and any(user not in index for user in users)
        if node in outputs or is_needed:
            return len(members) - 1
        return max((index[user] - 1 for user in users if user in index), default=-2)

    first = dict.fromkeys(given, -1) | index
    return Crossings(members, first, {node: last_place(node) for node in first}, movable)


def _refuse_strange(flat: FlatGraph, seen: Observations, met: Sequence[fx.Node]) -> None:
    for node in met:
        if node in flat.sources:
            raise NotAJoinError(
                f"the tail needs the gradient of the model's input {node.name}, and a tail reads "
                "nothing but what the branches give; let a branch hand it on"
            )
        if seen[node].tensor is None:
            raise NotAJoinError(f"the branches meet inside {title_of(node)}, which is no tensor")


@dataclass(frozen=True, slots=True)
class _Joined:
    """All that a join is made of; cuts are places among the operators of each piece."""

    model: nn.Module
    flat: FlatGraph
    seen: Observations
    crossings: Crossings
    pieces: list[_Piece]
    cuts: list[list[int]]
    towers: int


def _assemble(joined: _Joined, call: CallSignature) -> ExtractedJoin:
    flat, pieces, towers = joined.flat, joined.pieces, joined.towers
    inner = [p.start + 1 + cut for p, cuts in zip(pieces, joined.cuts, strict=True) for cut in cuts]
    linear = sorted([*inner, *(piece.start for piece in pieces[1:])])
    parts = Parts(
        model=joined.model,
        flat=flat,
        seen=joined.seen,
        crossings=joined.crossings,
        cuts=tuple(linear),
    )
    early = made_early(parts)
    ranges = [_ranges(piece, cuts, early) for piece, cuts in zip(pieces, joined.cuts, strict=True)]
    inputs, made = shared_nodes(flat, [each for piece in ranges for each in piece], early)
    shared = {node: index for index, node in enumerate([*inputs, *made])}
    stages = [
        tuple(stages_of(parts, own, piece.states(cuts), shared))
        for piece, cuts, own in zip(pieces, joined.cuts, ranges, strict=True)
    ]
    operators = joined.crossings.operators
    last_state = joined.crossings.at(len(operators) - 1)
    return ExtractedJoin(
        model=joined.model,
        branches=tuple(stages[:towers]),
        tail=tuple(stage for piece in stages[towers:] for stage in piece),
        inputs=tuple(
            tuple(position_of(flat, node) for node in piece.given) for piece in pieces[:towers]
        ),
        widths=tuple(len(piece.result) for piece in pieces[:towers]),
        sums=_sums(joined, ranges, stages),
        shared_inputs=tuple(position_of(flat, node) for node in inputs),
        prologue=compile_program(
            flat, [node for node in operators if node in early], (), shared, made
        ),
        call=call,
        output=OutputPlan(
            flat.output_spec,
            tuple(output_leaf(flat, leaf, last_state, shared) for leaf in flat.output),
        ),
        likeness=Likeness.of(joined.model),
    )


def _ranges(piece: _Piece, cuts: Sequence[int], early: set[fx.Node]) -> list[list[fx.Node]]:
    """The operators of each stage."""
    members = piece.crossings.operators
    places = [-1, *cuts, len(members) - 1]
    return [
        [node for node in members[before + 1 : after + 1] if node not in early]
        for before, after in pairwise(places)
    ]


def _sums(
    joined: _Joined,
    ranges: Sequence[Sequence[Sequence[fx.Node]]],
    stages: Sequence[Sequence[GraphStage]],
) -> tuple[tuple[GraphStage, ...], ...]:
    """See `ExtractedJoin.sums`."""
    stage_of = {
        node: stage
        for piece, own in zip(ranges, stages, strict=True)
        for nodes, stage in zip(piece, own, strict=True)
        for node in nodes
    }
    order = {node: index for index, node in enumerate(joined.crossings.operators)}
    found = []
    for _, uses in uses_of_leaves(joined.flat, joined.seen):
        if len(uses) > 2:
            backward = sorted(uses, key=order.__getitem__, reverse=True)
            found.append(tuple(stage_of[node] for node in backward))
    return tuple(dict.fromkeys(found))
