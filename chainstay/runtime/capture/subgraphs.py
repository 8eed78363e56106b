"""A range of a graph's operators as a graph of its own.

The modes that a model switches on in its own forward (autocast, gradients) are no operators
here: `regions_of` tells an operator's, and the subgraph enters them again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import cache
from itertools import groupby
from typing import Any, Final

import torch
from torch import fx, nn
from torch._ops import OpOverloadPacket

REGIONS: Final = "regions"
"""The key in a node's ``meta`` of the modes that the operator runs in."""

CHECKPOINTS: Final = ("tag_activation_checkpoint", "wrap_activation_checkpoint")
"""Operators that call a graph in a `torch.utils.checkpoint`: their first argument."""


@dataclass(frozen=True, slots=True)
class AutocastRegion:
    """A ``with torch.autocast(...)`` inside the model; whether it caches weights is not kept."""

    device_type: str
    dtype: torch.dtype
    enabled: bool

    def entered(self) -> AbstractContextManager[object]:
        """Return the region as a context."""
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.enabled)


@dataclass(frozen=True, slots=True)
class GradientRegion:
    """A ``with torch.no_grad()`` or ``torch.enable_grad()`` inside the model."""

    enabled: bool

    def entered(self) -> AbstractContextManager[object]:
        """Return the region as a context."""
        return torch.set_grad_enabled(self.enabled)


Region = AutocastRegion | GradientRegion


def regions_of(node: fx.Node) -> tuple[Region, ...]:
    """Return the modes that an operator runs in, the outermost first."""
    regions: tuple[Region, ...] = node.meta.get(REGIONS, ())
    return regions


def called_name(node: fx.Node) -> str:
    """Return the bare name of what a node calls; that of a module is empty."""
    target: str | Callable[..., object] = "" if node.op == "call_module" else node.target
    return target if isinstance(target, str) else getattr(target, "__name__", "")


@cache
def tags_of(name: str) -> frozenset[torch.Tag]:
    """Return the tags of all overloads of torch's operator of that name, if there is one."""
    packet = getattr(torch.ops.aten, name, None)  # Python's own of a name such as __eq__
    overloads = packet.overloads() if isinstance(packet, OpOverloadPacket) else []
    return frozenset(tag for overload in overloads for tag in getattr(packet, overload).tags)


def example_of(node: object) -> torch.Tensor | None:
    """Return the tensor that a node gave when TorchDynamo traced it, if it gave one."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return value if isinstance(value, torch.Tensor) else None


def node_result(
    node: fx.Node, values: Mapping[fx.Node, Any], module_called: Callable[[str], nn.Module]
) -> Any:
    """Run an operator.

    Args:
        node: The operator.
        values: The values of the nodes that it reads.
        module_called: Finds a module by its name in the graph.
    """
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
    function: Any = node.target
    match node.op:
        case "call_method":
            function = getattr(args[0], str(node.target))
            args = args[1:]
        case "call_module":
            function = module_called(str(node.target))
    return function(*args, **kwargs)


class RegionModule(nn.Module):
    """Part of a subgraph that runs inside regions, the outermost first."""

    def __init__(
        self, regions: tuple[Region, ...], function: Callable[..., tuple[torch.Tensor, ...]]
    ) -> None:
        super().__init__()
        self.regions = regions
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the function of the part, with its regions entered."""
        with ExitStack() as stack:
            for region in self.regions:
                stack.enter_context(region.entered())
            return self.function(*inputs)


def subgraph(
    modules: Mapping[str, nn.Module],
    nodes: Sequence[fx.Node],
    inputs: Sequence[fx.Node],
    results: Sequence[fx.Node],
) -> fx.GraphModule:
    """Return a graph that makes `results` of `inputs`.

    None of its names tell where in the model it comes from.

    Args:
        modules: Graphs that operators call or take as arguments, by name.
        nodes: The operators in order.
        inputs: What they read and do not make; it may be a result, too.
        results: Values of `nodes` or of `inputs`.
    """
    body = _Body(modules, inputs)
    for regions, group in groupby(nodes, key=regions_of):
        members = list(group)
        if regions:
            body.add_region(regions, members, values_behind(members, results))
        else:
            body.add(members)
    return body.finish(results)


def values_read(nodes: Iterable[fx.Node], results: Iterable[fx.Node] = ()) -> list[fx.Node]:
    """Return the values that `nodes` read, or that are results, and that none of them makes."""
    made = set(nodes)
    read = [value for node in nodes for value in node.all_input_nodes if value.op != "get_attr"]
    return [value for value in dict.fromkeys([*read, *results]) if value not in made]


def values_behind(nodes: Sequence[fx.Node], results: Iterable[fx.Node] = ()) -> list[fx.Node]:
    """Return the values of `nodes` that any other operator reads, or that are results."""
    own, wanted = set(nodes), set(results)
    return [node for node in nodes if node in wanted or not own.issuperset(node.users)]


def text_of(module: nn.Module) -> str:
    """Return a text of what a graph computes: equal for graphs that compute the same."""
    return "\n".join(_texts(module))


def _texts(module: nn.Module) -> Iterator[str]:
    if isinstance(module, fx.GraphModule):
        yield module.code
    for name, child in module.named_children():
        inner = getattr(child, "function", None)
        yield f"{name}: {getattr(child, 'regions', '')}"
        yield from _texts(getattr(inner, "__self__", child))


@dataclass(slots=True)
class _Body:
    """A subgraph in the making."""

    modules: Mapping[str, nn.Module]
    inputs: Sequence[fx.Node]
    graph: fx.Graph = field(default_factory=fx.Graph)
    root: nn.Module = field(default_factory=nn.Module)
    copies: dict[fx.Node, fx.Node] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for index, node in enumerate(self.inputs):
            self.copies[node] = self.graph.placeholder(f"input{index}")

    def add(self, nodes: Iterable[fx.Node]) -> None:
        """Copy `nodes` behind those that are there."""
        for node in nodes:
            args, kwargs = fx.node.map_arg((node.args, node.kwargs), self._copied)
            if node.op == "call_module":
                self._adopt(str(node.target))
            self.copies[node] = self.graph.create_node(node.op, node.target, args, kwargs)

    def add_region(
        self, regions: tuple[Region, ...], nodes: Sequence[fx.Node], results: Sequence[fx.Node]
    ) -> None:
        """Add `nodes` as one call that enters `regions`."""
        inputs = values_read(nodes)
        inner = _Body(self.modules, inputs)
        inner.add(nodes)
        name = f"region{len(self.graph.nodes)}"
        self.root.add_module(name, RegionModule(regions, inner.finish(results).forward))
        call = self.graph.call_module(name, tuple(self._copied(node) for node in inputs))
        for index, node in enumerate(results):
            self.copies[node] = self.graph.call_function(operator.getitem, (call, index))

    def finish(self, results: Sequence[fx.Node]) -> fx.GraphModule:
        """Return the graph as a module that gives `results`."""
        self.graph.output(tuple(self._copied(node) for node in results))
        return fx.GraphModule(self.root, self.graph)

    def _copied(self, node: fx.Node) -> fx.Node:
        if node.op == "get_attr" and node not in self.copies:
            self._adopt(str(node.target))
            self.copies[node] = self.graph.create_node("get_attr", str(node.target))
        return self.copies[node]

    def _adopt(self, name: str) -> None:
        if not hasattr(self.root, name):
            self.root.add_module(name, self.modules[name])
