"""Which stages are alike: the same operators on tensors that lie in memory alike.

Such stages cost the same, so that of a network's repeated blocks one need be looked at.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

import torch
from torch import fx, nn

from chainstay.runtime.boundary import Gradients
from chainstay.runtime.extraction.regions import RegionModule
from chainstay.runtime.extraction.stage import GraphStage
from chainstay.runtime.layout import MemoryLayout
from chainstay.runtime.stages import ChainStage
from chainstay.runtime.states import State, address_of

__all__ = ["likeness_of"]


def likeness_of(
    stage: ChainStage, state: State, shared: State, gradients: Gradients | None
) -> Hashable:
    """Equal for stages that cost the same.

    Args:
        stage: Of what is not made of operators, nothing but itself is known to be alike.
        state: Its input.
        shared: What it shares with others.
        gradients: Of its output.
    """
    programs = [part.program for part in stage.parts if isinstance(part, GraphStage)]
    if len(programs) < len(stage.parts):
        return object()
    tensors = list(state)
    for program in programs:
        tensors += [shared[position] for position in program.shared]
        tensors += [source.read() for source in program.reads]
    return tuple(_text_of(each.body) for each in programs), _places_of(tensors), gradients


def _places_of(tensors: Iterable[torch.Tensor]) -> tuple[Hashable, ...]:
    """How tensors lie, which of them share a storage, and what wants a gradient."""
    storages: dict[int, int] = {}
    objects: dict[int, int] = {}
    return tuple(
        (
            MemoryLayout.of(tensor),
            storages.setdefault(address_of(tensor), len(storages)),
            objects.setdefault(id(tensor), len(objects)),
            tensor.requires_grad,
            isinstance(tensor, nn.Parameter),
        )
        for tensor in tensors
    )


def _text_of(module: fx.GraphModule) -> str:
    """The operators of a graph without the names of its values."""
    numbers = {node: f"%{index}" for index, node in enumerate(module.graph.nodes)}
    lines = []
    for node in module.graph.nodes:
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda each: _Name(numbers[each]))
        lines.append(f"{node.op} {_target_of(module, node)} {args} {kwargs}")
    return "\n".join(lines)


class _Name(str):
    """Stands in the text of arguments without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _target_of(module: fx.GraphModule, node: fx.Node) -> str:
    """What a node calls; graphs within the graph in full."""
    if node.op == "placeholder":
        return ""
    if node.op not in ("call_module", "get_attr"):
        return str(node.target)
    inner = module.get_submodule(str(node.target))
    if isinstance(inner, RegionModule):
        return f"{inner.regions}\n{_text_of(_body_of(inner))}"
    assert isinstance(inner, fx.GraphModule), f"{inner} is no graph"
    return _text_of(inner)


def _body_of(region: RegionModule) -> fx.GraphModule:
    """The graph whose forward a region runs."""
    body: fx.GraphModule = region.function.__self__  # type: ignore[attr-defined]  # a bound method
    return body
