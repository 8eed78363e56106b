"""Keys of graphs: two graphs that differ only in numbers have one key, and one plan.

A rate of dropout or a scale that changes from step to step makes another graph, but takes the
same memory and, as good as, the same time. Numbers that sizes depend on are part of a key.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx, nn

from chainstay.runtime.capture.graph import CapturedGraph
from chainstay.runtime.capture.graph_inputs import sizing_numbers
from chainstay.runtime.capture.operators import ObservedGraph
from chainstay.runtime.capture.subgraphs import regions_of, text_of


def graph_key(
    observed: ObservedGraph,
    inputs: Sequence[object],
    settings: Hashable,
    *,
    has_sizes: bool = True,
    tells_parameters: bool = True,
) -> Hashable:
    """Return a key, equal for graphs that differ in numbers only, constants or inputs.

    Args:
        observed: The graph.
        inputs: The inputs of a call.
        settings: What it is traced under: of autocast, for instance.
        has_sizes: Whether tensors of other sizes make another key.
        tells_parameters: Whether other tensors in place of parameters make another key.
    """
    layout_of = partial(_layout, has_sizes=has_sizes)
    captured = observed.captured
    kinds = [given.kind for given in captured.inputs]
    given = (*inputs, *captured.constants)
    values = [v for v, kind in zip(given, kinds, strict=True) if not kind.is_number]
    sizes = sizing_numbers(captured.inputs, given)
    numbers = set(observed.numbers)
    numbers |= {
        node for node, kind in zip(captured.placeholders, kinds, strict=True) if kind.is_number
    }
    nodes = [node for node in captured.graph.nodes if node not in numbers]
    places = {node: index for index, node in enumerate(nodes)}
    return (
        settings,
        tuple(kind for kind in kinds if not kind.is_number),
        sizes if has_sizes else len(sizes),
        tuple(map(layout_of, values)),
        tuple(isinstance(value, nn.Parameter) and tells_parameters for value in values),
        _aliases(values),
        tuple(
            (*_text(node, places, captured), layout_of(node.meta.get("example_value")))
            for node in nodes
            if node.op != "output"
        ),
        tuple(places[leaf] for leaf in captured.output if leaf in places),
    )


def _layout(value: object, *, has_sizes: bool) -> Hashable:
    """Return the layout of a tensor, or as much of it as holds for tensors of any size."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    if not has_sizes:
        return (value.dim(), value.layout, value.dtype, value.device, value.requires_grad)
    strides = value.stride() if value.layout == torch.strided else str(value.layout)
    shape = str(tuple(value.shape))  # as text: sizes may be symbols
    return (shape, str(strides), value.dtype, value.device, value.requires_grad)


def _aliases(inputs: Sequence[object]) -> tuple[int, ...]:
    """Return equal numbers for inputs that are one object or lie in one memory."""
    first: dict[object, int] = {}
    found = []
    for index, value in enumerate(inputs):
        key: object = index
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and value.numel():
            key = value.untyped_storage()._cdata  # noqa: SLF001  # its identity
        found.append(first.setdefault(key, index))
    return tuple(found)


def _text(
    node: fx.Node, places: Mapping[fx.Node, int], captured: CapturedGraph
) -> tuple[Hashable, ...]:
    if node.op == "placeholder":
        return (node.op,)
    target = node.target
    if node.op in ("call_module", "get_attr"):
        inner = captured.modules[str(target)]
        target = f"{getattr(inner, 'code', '')}{text_of(inner)}"
    arguments = _masked((node.args, node.kwargs), places)
    return (node.op, str(target), arguments, regions_of(node))


def _masked(arguments: Any, places: Mapping[fx.Node, int]) -> str:
    """Return arguments as a text, a mark in place of every number; flags and texts stay."""

    def mask(value: object) -> str:
        if isinstance(value, fx.Node):
            return f"%{places[value]}" if value in places else "#"
        is_number = isinstance(value, int | float | complex) and not isinstance(value, bool)
        return "#" if is_number else str(value)

    return repr(fx.node.map_aggregate(arguments, mask))
