"""A range of a graph's operators as one function."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any

from torch import fx, nn
from torch._ops import OpOverload

from chainstay.runtime.extraction.flattening import FlatGraph
from chainstay.runtime.extraction.regions import Region, RegionModule
from chainstay.runtime.extraction.sources import CallInput, Constant, ModelTensor
from chainstay.runtime.states import State

__all__ = ["Program", "compile_program"]


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Operators that run one after another.

    Attributes:
        body: Takes the state, the shared values used, and the tensors read; all in order.
        function: The body's forward, shared by all bodies that are alike.
        shared: Positions of the shared values used.
        reads: The model's tensors and constants used.
    """

    body: fx.GraphModule
    function: Callable[..., State]
    shared: tuple[int, ...]
    reads: tuple[ModelTensor | Constant, ...]

    def __call__(self, state: State, shared: State) -> State:
        """Run on `state`; what passes through comes out as the same object."""
        used = [shared[position] for position in self.shared]
        read = [source.read() for source in self.reads]
        return self.function(self.body, *state, *used, *read)


def compile_program(
    flat: FlatGraph,
    nodes: Sequence[fx.Node],
    state: Sequence[fx.Node],
    shared: Mapping[fx.Node, int],
    results: Sequence[fx.Node],
) -> Program:
    """`nodes` as a function of `state` that gives `results`.

    Args:
        flat: Whose operators `nodes` are.
        nodes: In order.
        state: Values that are given.
        shared: Values that are there for everyone, and their positions.
        results: Values of `nodes` or of `state`.
    """
    outside = _outside(nodes, known={*state}, results=results)
    used = [node for node in outside if node in shared]
    read = [node for node in outside if node not in shared]
    inputs = [*state, *used, *read]
    body = _Body(flat, inputs)
    for regions, group in groupby(nodes, key=lambda node: flat.regions.get(node, ())):
        members = list(group)
        if regions:
            body.add_region(regions, members, _used_behind(members, nodes, results))
        else:
            body.add(members)
    module = body.finish(results)
    return Program(
        body=module,
        function=_function_of(module.graph),
        shared=tuple(shared[node] for node in used),
        reads=tuple(_tensor_source(flat, node) for node in read),
    )


def _function_of(graph: fx.Graph) -> Callable[..., State]:
    """What `graph` computes, of its module and its inputs.

    Operators are called without the frame of Python that torch has around each.
    """
    code = graph.python_code("self")
    source, names = code.src, dict(code.globals)
    for target in {node.target for node in graph.nodes if type(node.target) is OpOverload}:
        name = str(target).replace(".", "_")
        source = source.replace(f"torch.ops.{target}(", f"{name}(")
        names[name] = target._op  # noqa: SLF001  # all that its own call calls
    return _compiled(source, tuple(names.items()))


@lru_cache(maxsize=1024)
def _compiled(source: str, names: tuple[tuple[str, object], ...]) -> Callable[..., State]:
    """Many stages are alike: only one function's code has to be at hand while they run."""
    space: dict[str, Any] = dict(names)
    exec(source, space)  # noqa: S102  # what torch.fx writes and runs itself
    function: Callable[..., State] = space["forward"]
    return function


def _tensor_source(flat: FlatGraph, node: fx.Node) -> ModelTensor | Constant:
    source = flat.sources[node]
    assert not isinstance(source, CallInput), f"{node} is neither state nor shared"
    return source


def _outside(
    nodes: Iterable[fx.Node], known: set[fx.Node], results: Iterable[fx.Node] = ()
) -> list[fx.Node]:
    """Values that `nodes` use and neither make nor know, in order of first use."""
    made = known | set(nodes)
    used = [each for node in nodes for each in node.all_input_nodes if each.op != "get_attr"]
    return [each for each in dict.fromkeys([*used, *results]) if each not in made]


def _used_behind(
    members: Sequence[fx.Node], nodes: Sequence[fx.Node], results: Sequence[fx.Node]
) -> list[fx.Node]:
    """Values of `members` that others of `nodes` use, or that are results."""
    others = set(nodes) - set(members)
    wanted = set(results)
    return [
        node for node in members if node in wanted or any(user in others for user in node.users)
    ]


@dataclass(slots=True)
class _Body:
    """A graph in the making; none of its names tell where in the model it comes from."""

    flat: FlatGraph
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
            self.copies[node] = self.graph.create_node(node.op, node.target, args, kwargs)

    def add_region(
        self, regions: tuple[Region, ...], nodes: Sequence[fx.Node], results: Sequence[fx.Node]
    ) -> None:
        """Add `nodes` as one call that enters `regions`."""
        inputs = _outside(nodes, known=set())
        inner = _Body(self.flat, inputs)
        inner.add(nodes)
        name = f"region{len(self.graph.nodes)}"
        self.root.add_module(name, RegionModule(regions, inner.finish(results).forward))
        call = self.graph.call_module(name, tuple(self._copied(node) for node in inputs))
        for index, node in enumerate(results):
            self.copies[node] = self.graph.call_function(operator.getitem, (call, index))

    def finish(self, results: Sequence[fx.Node]) -> fx.GraphModule:
        """The graph as a module that gives `results`."""
        self.graph.output(tuple(self._copied(node) for node in results))
        return fx.GraphModule(self.root, self.graph)

    def _copied(self, node: fx.Node) -> fx.Node:
        if node.op == "get_attr" and node not in self.copies:
            name = str(node.target)
            self.root.add_module(name, self.flat.modules[name])
            self.copies[node] = self.graph.create_node("get_attr", name)
        return self.copies[node]
