"""Generates the code of an option: the forward with stashes, and the replays.

What is run again falls into connected groups of operators, and a group in which much is needed
late in the backward into several (`_in_parts`). Each becomes one function, which is called
when the first of the tensors that it makes is needed. It starts from inputs of the stage and from
*stashes*: results that the forward, or another replay, has set aside, and states of random
generators. Operators of a group are run again in the order of the forward, so that changes in
place come out as then.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, TypeAlias

import networkx as nx
import torch
from torch import fx

from chainstay.runtime.capture.cuts.programs import function_of
from chainstay.runtime.options.graph import OperatorStep, Pack, StageGraph
from chainstay.runtime.options.option_code import (
    OptionCode,
    Origin,
    ReplayCode,
    ReplayInput,
    SavedSlot,
)
from chainstay.runtime.options.selection import Selection
from chainstay.runtime.options.special_operators import (
    arguments_of,
    is_graphless,
    scratch_arguments,
)
from chainstay.runtime.stage.states import changeable

_Stashes: TypeAlias = dict[tuple[fx.Node, bool], int]
"""Places of what is set aside: of a node's result, or of the generators before it.

The forward sets aside what no replay makes again.
"""

_LEAST_SPARED: Final = 2**20
"""The bytes that a replay of its own spares at least: to call it takes as long as moving these."""
_MOST_PARTS: Final = 8
"""The most replays into which operators that read each other are cut."""


def generate(graph: StageGraph, selection: Selection) -> OptionCode:
    """Return the code of a choice of what to keep."""
    stashes: _Stashes = {}
    hooked = hooked_packs(graph, selection)
    packs: list[tuple[int, int] | None] = [None] * len(graph.packs)
    replays: list[ReplayCode] = []
    for group in groups_of(graph, selection):
        wanted = _wanted(graph, group, selection)
        if wanted:
            for slot, index in enumerate(wanted):
                packs[index] = len(replays), slot
            writer = _ReplayWriter(graph, sorted(group), selection.redrawn, stashes)
            replays.append(writer.replay(tuple(wanted.values())))
    again = {
        step.node for step in map(graph.steps.__getitem__, selection.replayed) if not step.cast
    }
    places = {key: place for key, place in stashes.items() if key[1] or key[0] not in again}
    forward = function_of(_forward(graph, places, hooked))
    return OptionCode(graph, forward, len(stashes), tuple(packs), tuple(replays))


def hooked_packs(graph: StageGraph, selection: Selection) -> list[range]:
    """Return the saved tensors around which the forward has hooks, in uninterrupted ranges.

    They are those of operators that save what is dropped. All others are saved as in plain
    training, which takes a fraction of the time.
    """
    savers = {
        pack.saver for pack in graph.packs if pack.is_dropped(selection.replayed, selection.redrawn)
    }
    numbers = [number for number, pack in enumerate(graph.packs) if pack.saver in savers]
    starts = [number for number in numbers if number - 1 not in numbers]
    ends = [number + 1 for number in numbers if number + 1 not in numbers]
    return [range(start, end) for start, end in zip(starts, ends, strict=True)]


def _forward(graph: StageGraph, places: _Stashes, hooked: Sequence[range]) -> fx.Graph:
    """Return the stage's own graph, with what sets values aside, and with hooks."""
    own = graph.composition
    kinds = {step.node: step.traits.generators for step in graph.steps}
    savers = [graph.steps[pack.saver].node for pack in graph.packs]
    first = {savers[numbers.start]: numbers.start for numbers in hooked}
    last = {savers[numbers.stop - 1]: numbers.stop for numbers in hooked}
    forward = fx.Graph()
    run = forward.placeholder("run")
    copies: dict[fx.Node, fx.Node] = {}
    for node in own.graph.nodes:
        if node.op == "output":
            break
        if (place := places.get((node, True))) is not None:
            forward.call_method("stash_random", (run, place, kinds[node]))
        if (number := first.get(node)) is not None:
            forward.call_method("hook", (run, number))
        copies[node] = forward.node_copy(node, copies.__getitem__)
        if (number := last.get(node)) is not None:
            forward.call_method("unhook", (run, number))
        if (place := places.get((node, False))) is not None:
            forward.call_method("stash", (run, place, copies[node]))
    forward.output(tuple(copies[leaf] for leaf in own.results))
    return forward


def groups_of(graph: StageGraph, selection: Selection) -> list[set[int]]:
    """Operators to be run again, in groups; those that read from another one stand in front of it.

    Operators that read each other are a group, or several (`_in_parts`).
    """
    replayed = sorted(selection.replayed)
    reading = nx.Graph()
    reading.add_nodes_from(replayed)
    reading.add_edges_from(
        (index, source)
        for index in replayed
        for source in graph.operators[index].inputs
        if source in selection.replayed
    )
    alone = ({index} for index in sorted(selection.redrawn))
    connected = nx.connected_components(reading)
    return [*(part for group in connected for part in _in_parts(graph, group, selection)), *alone]


def _in_parts(graph: StageGraph, group: set[int], selection: Selection) -> list[set[int]]:
    """Cut a group of operators where that keeps results from being made long before their use.

    A backward goes through what saved something from the last operator to the first. The tensor
    that it needs first brings with it what it is made of; other results of the group are made when
    they are needed themselves, from results that are handed on. What is needed last comes first.
    """
    operators = graph.operators
    sizes = {
        index: operators[index].is_saved * operators[index].result_bytes
        + operators[index].extra_bytes
        for index in group
    }
    least = max(_LEAST_SPARED, sum(sizes.values()) // _MOST_PARTS)
    if len(group) == 1 or sum(sizes.values()) < least:
        return [group]
    needed = dict.fromkeys(group, 0)
    for pack in _wanted(graph, group, selection).values():
        assert pack.operator is not None
        needed[pack.operator] = max(needed[pack.operator], pack.saver)
    for index in sorted(group, reverse=True):
        for source in group.intersection(operators[index].inputs):
            if not operators[source].is_keepable:
                return [group]  # an operator changes it in place
            needed[source] = max(needed[source], needed[index])
    parts: list[set[int]] = [set()]
    for _, together in groupby(sorted(group, key=needed.__getitem__), key=needed.__getitem__):
        part = parts[-1]
        part.update(together)
        read = {source for index in part for source in operators[index].inputs}
        handed_on = sum(operators[source].result_bytes for source in (read & group) - part)
        if sum(sizes[index] for index in part) - handed_on >= least:
            parts.append(set())
    return [part for part in parts if part]


def is_recorded(graph: StageGraph, group: Collection[int], selection: Selection) -> bool:
    """Return whether autograd records the operators of a group when they are run again."""
    return _needs_graph(graph, group, _wanted(graph, group, selection).values())


def _wanted(graph: StageGraph, group: Collection[int], selection: Selection) -> dict[int, Pack]:
    """Return the saved tensors that a group makes again, by number."""
    return {
        index: pack
        for index, pack in enumerate(graph.packs)
        if pack.operator in group and pack.is_dropped(selection.replayed, selection.redrawn)
    }


def _needs_graph(graph: StageGraph, group: Collection[int], wanted: Iterable[Pack]) -> bool:
    """Return whether a group draws, makes what operators save, or has operators with a graph."""
    steps = [graph.steps[index] for index in group]
    return (
        any(step.traits.generators for step in steps)
        or any(pack.extra is not None for pack in wanted)
        or not all(step.cast is not None or is_graphless(step.node) for step in steps)
    )


@dataclass(slots=True)
class _ReplayWriter:
    """Writes the function of one group.

    Attributes:
        stage: The stage.
        group: The operators, in order.
        redrawn: Those of which only the noise is wanted.
        stashes: What the forward or another replay sets aside; more is added.
    """

    stage: StageGraph
    group: list[int]
    redrawn: frozenset[int]
    stashes: _Stashes
    graph: fx.Graph = field(default_factory=fx.Graph)
    inputs: list[ReplayInput] = field(default_factory=list)
    copies: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def replay(self, wanted: tuple[Pack, ...]) -> ReplayCode:
        """The code that makes these saved tensors."""
        capture = self.graph.placeholder("capture")
        views = self._take_inputs()
        steps = self.stage.steps
        states = {
            index: self._take(
                ReplayInput(Origin.STASH, self._place(steps[index].node, is_random=True))
            )
            for index in self.group
            if steps[index].traits.generators
        }
        savers = [pack.operator for pack in wanted if pack.extra is not None]
        marks = {operator: number for number, operator in enumerate(dict.fromkeys(savers))}
        made: dict[int | None, fx.Node] = {}
        for node, index in self._ordered(views):
            if index is None:
                self.copies[node] = self.graph.node_copy(node, self.copies.__getitem__)
                continue
            if index in marks:
                self.graph.call_method("begin", (capture, marks[index]))
            if index in states:
                self.graph.call_method("draw_from", (capture, states[index]))
            made[index] = self._again(index)
            if index in states:
                self.graph.call_method("draw_on", (capture,))
            if index in marks:
                self.graph.call_method("begin", (capture, -1))
            if steps[index].cast is None:
                self.copies[node] = made[index]
        results = list(dict.fromkeys(pack.operator for pack in wanted if pack.extra is None))
        own = {steps[i].node for i in self.group if i not in self.redrawn and not steps[i].cast}
        handed_on = {
            place: node
            for (node, is_random), place in self.stashes.items()
            if node in own and not is_random
        }
        outputs = [made[operator] for operator in results]
        self.graph.output((*outputs, *map(self.copies.__getitem__, handed_on.values())))
        slots = [
            SavedSlot(
                pack.layout,
                results.index(pack.operator) if pack.extra is None else marks[pack.operator],
                pack.extra,
            )
            for pack in wanted
        ]
        function = function_of(self.graph)
        needs_graph = _needs_graph(self.stage, self.group, wanted)
        inputs = tuple(self.inputs)
        return ReplayCode(
            function, inputs, tuple(slots), tuple(handed_on), bool(states), needs_graph
        )

    def _take_inputs(self) -> list[fx.Node]:
        """Make an input of all that comes from outside of the group; return the views inside."""
        steps = self.stage.steps
        own = {steps[i].node for i in self.group if steps[i].cast is None}
        pending = [node for index in self.group for node in self._reads(index)]
        views: list[fx.Node] = []
        seen = set(own)
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            if node in self.stage.views:
                views.append(node)
                pending += node.all_input_nodes
            elif node.op != "get_attr":
                self.copies[node] = self._outside(node)
        scratch_nodes = [n for i in self.group for n in scratch_arguments(steps[i].node).values()]
        for node in scratch_nodes:
            if node not in seen:
                seen.add(node)
                self.copies[node] = self._outside(node, is_scratch=True)
        for node in self.stage.composition.graph.find_nodes(op="get_attr"):
            if node in seen:
                self.copies[node] = self.graph.create_node("get_attr", node.target)
        return views

    def _reads(self, index: int) -> list[fx.Node]:
        """The nodes that an operator reads when it is run again."""
        step = self.stage.steps[index]
        if step.cast is not None:
            return [step.cast.argument]
        if index not in self.redrawn:
            updated = scratch_arguments(step.node).values()
            return [node for node in step.node.all_input_nodes if node not in updated]
        rest: list[fx.Node] = []
        fx.node.map_arg((step.node.args[1:], step.node.kwargs), rest.append)
        return rest

    def _outside(self, node: fx.Node, *, is_scratch: bool = False) -> fx.Node:
        composition = self.stage.composition
        if node.op == "placeholder":
            index = list(composition.graph.find_nodes(op="placeholder")).index(node)
            flag = self.stage.flags[index]
            if index < composition.width:
                return self._take(ReplayInput(Origin.STATE, index, flag))
            position = composition.shared[index - composition.width]
            return self._take(ReplayInput(Origin.SHARED, position, flag, is_scratch))
        flags = [step.traits.requires_grad for step in self.stage.steps if step.node is node]
        place = self._place(node, is_random=False)
        return self._take(ReplayInput(Origin.STASH, place, any(flags)))

    def _place(self, node: fx.Node, *, is_random: bool) -> int:
        """The place where the forward stashes a node's result, or the states in front of it."""
        return self.stashes.setdefault((node, is_random), len(self.stashes))

    def _take(self, given: ReplayInput) -> fx.Node:
        self.inputs.append(given)
        return self.graph.placeholder(f"input{len(self.inputs)}")

    def _ordered(self, views: list[fx.Node]) -> Iterator[tuple[fx.Node, int | None]]:
        """All nodes of the group as in the forward, copies by autocast in front of their users."""
        nodes = enumerate(self.stage.composition.graph.nodes)
        position = {node: index for index, node in nodes}
        steps = self.stage.steps
        items: list[tuple[fx.Node, int | None]] = [(steps[i].node, i) for i in self.group]
        items += [(view, None) for view in views]

        def key(item: tuple[fx.Node, int | None]) -> tuple[int, bool]:
            node, index = item
            return position[node], index is None or steps[index].cast is None

        return iter(sorted(items, key=key))

    def _again(self, index: int) -> fx.Node:
        step = self.stage.steps[index]
        if step.cast is not None:
            argument = self.copies[step.cast.argument]
            return self.graph.call_method("to", (argument, step.cast.dtype))
        args, kwargs = self._arguments(step, is_redrawn=index in self.redrawn)
        return self.graph.create_node(step.node.op, step.node.target, args, kwargs)

    def _arguments(
        self, step: OperatorStep, *, is_redrawn: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        node = step.node
        kwargs: dict[str, Any] = fx.node.map_arg(dict(node.kwargs), self.copies.__getitem__)
        if is_redrawn:
            layout = step.traits.noise
            assert layout is not None, "only dropout is redrawn"
            kinds = (tuple(layout.size), layout.stride, layout.dtype, layout.device)
            rest: tuple[Any, ...] = fx.node.map_arg(node.args[1:], self.copies.__getitem__)
            return (self.graph.call_function(blank, kinds), *rest), kwargs
        if not (changed := scratch_arguments(node)):
            return fx.node.map_arg(node.args, self.copies.__getitem__), kwargs
        kwargs = dict(fx.node.map_arg(arguments_of(node), self.copies.__getitem__))
        for name in changed:
            kwargs[name] = self.graph.call_function(scratch, (kwargs[name],))
        return (), kwargs


def scratch(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return a copy that may be changed."""
    return None if tensor is None else tensor.detach().clone()


def blank(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return a tensor of any values that requires a gradient and may be changed in place."""
    state = (torch.empty_strided(size, stride, dtype=dtype, device=device, requires_grad=True),)
    (tensor,) = changeable(state, state)
    return tensor
