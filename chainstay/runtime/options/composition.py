"""The programs of consecutive stages as one graph, so that a span has options as a stage has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx, nn

from chainstay.runtime.capture.blocks.chain import BlockStage
from chainstay.runtime.capture.cuts.programs import Program
from chainstay.runtime.options.operator_parts import SplitLevel, split_operators
from chainstay.runtime.stage.chain_stage import Part


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """Programs one behind another.

    Attributes:
        graph: Takes the state of the first and the shared values used, gives the last state.
        root: The modules that the graph calls, by name.
        width: How many tensors the first state has.
        shared: Positions of the shared values used, in the order of the graph's inputs.
        results: The last state.
        split: The operators that are split into parts; `WHOLE` if there are none of these.
    """

    graph: fx.Graph
    root: nn.Module
    width: int
    shared: tuple[int, ...]
    results: tuple[fx.Node, ...]
    split: SplitLevel


def compose(parts: Sequence[Part], width: int, split: SplitLevel) -> Composition | None:
    """Put programs together, the first of which is given `width` tensors.

    ``None`` if a part has no graph that tells what autograd saves, or its input does not last.
    """
    programs = [program for program in map(_program_of, parts) if program is not None]
    if len(programs) < len(parts):
        return None
    graph, root = fx.Graph(), nn.Module()
    state = [graph.placeholder(f"state{index}") for index in range(width)]
    used = dict.fromkeys(position for part in parts for position in part.effects.reads)
    shared = {position: graph.placeholder(f"shared{position}") for position in used}
    for number, (part, program) in enumerate(zip(parts, programs, strict=True)):
        taken, carried = state, list[fx.Node]()
        if isinstance(part, BlockStage):
            taken = [state[position] for position in part.taken]
            carried = [state[position] for position in part.carried]
        given = [*taken, *(shared[position] for position in part.effects.reads)]
        state = [*_append(graph, root, program, given, number), *carried]
    output = graph.output(tuple(state))
    if not split_operators(graph, split):
        split = SplitLevel.WHOLE
    return Composition(graph, root, width, tuple(shared), tuple(output.args[0]), split)


def _program_of(part: Part) -> Program | None:
    """Return the operators of a part, if options can be made of them.

    What a block's own torch.compile makes of them saves something else. Where the input of a block
    is changed in place, the model may do so behind the block: no replay could start from there.
    """
    if isinstance(part, BlockStage):
        is_known = not (part.is_input_changed or part.graph.is_compiled)
        return part.program if is_known else None
    return part if isinstance(part, Program) else None


def _append(
    graph: fx.Graph, root: nn.Module, program: Program, given: Sequence[fx.Node], number: int
) -> list[fx.Node]:
    """Copy a program behind what is there; return its results."""
    body = program.body.graph
    copies = dict(zip(body.find_nodes(op="placeholder"), given, strict=True))
    results: Any = graph.graph_copy(body, copies)
    for node, copy in copies.items():
        if node.op in ("call_module", "get_attr"):
            copy.target = f"{node.target}_of_{number}"
            if not hasattr(root, copy.target):
                root.add_module(copy.target, program.body.get_submodule(str(node.target)))
    return list(results)
