"""The programs of consecutive stages as one graph, so that a span has options as a stage has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx, nn

from chainstay.runtime.capture.cuts.programs import Program
from chainstay.runtime.stage.chain_stage import Part

__all__ = ["Composition", "compose"]


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """Programs one behind another.

    Attributes:
        graph: Takes the state of the first and the shared values used, gives the last state.
        root: The modules that the graph calls, by name.
        width: How many tensors the first state has.
        shared: Positions of the shared values used, in the order of the graph's inputs.
        results: The last state.
    """

    graph: fx.Graph
    root: nn.Module
    width: int
    shared: tuple[int, ...]
    results: tuple[fx.Node, ...]


def compose(parts: Sequence[Part]) -> Composition | None:
    """Put programs together; ``None`` if a part has no graph."""
    programs = [part for part in parts if isinstance(part, Program)]
    if len(programs) < len(parts):
        return None
    graph, root = fx.Graph(), nn.Module()
    first = programs[0]
    width = len(list(first.body.graph.find_nodes(op="placeholder"))) - len(first.shared)
    state = [graph.placeholder(f"state{index}") for index in range(width)]
    used = dict.fromkeys(position for program in programs for position in program.shared)
    shared = {position: graph.placeholder(f"shared{position}") for position in used}
    for number, program in enumerate(programs):
        given = [*state, *(shared[position] for position in program.shared)]
        state = _append(graph, root, program, given, number)
    graph.output(tuple(state))
    return Composition(graph, root, width, tuple(shared), tuple(state))


def _append(
    graph: fx.Graph, root: nn.Module, program: Program, given: Sequence[fx.Node], number: int
) -> list[fx.Node]:
    """Copy a program behind what is there; return its results."""
    nodes = program.body.graph.nodes
    copies = dict(zip((node for node in nodes if node.op == "placeholder"), given, strict=True))
    for node in nodes:
        if node.op == "placeholder":
            continue
        if node.op == "output":
            return [copies[leaf] for leaf in node.args[0]]
        copies[node] = copy = graph.node_copy(node, copies.__getitem__)
        if node.op in ("call_module", "get_attr"):
            copy.target = f"{node.target}_of_{number}"
            if not hasattr(root, copy.target):
                root.add_module(copy.target, program.body.get_submodule(str(node.target)))
    raise AssertionError("a graph without an output")
