"""A range of a graph's operators as one function, and as a stage."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any

from torch import fx, nn

from chainstay.runtime.capture.graph import CapturedGraph
from chainstay.runtime.capture.regions import Region, RegionModule
from chainstay.runtime.stage.states import State


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Operators that run one after another.

    Attributes:
        body: A graph that takes the state and the shared values used, in order.
        function: The body's forward, shared by all bodies that are alike.
        shared: Positions of the shared values used.
    """

    body: fx.GraphModule
    function: Callable[..., tuple[Any, ...]]
    shared: tuple[int, ...]

    def __call__(self, state: State, shared: Sequence[Any]) -> tuple[Any, ...]:
        """Run on `state`; what passes through comes out as the same object."""
        return self.function(self.body, *state, *[shared[position] for position in self.shared])

    @property
    def text(self) -> str:
        """A text of the computation, for a digest: equal for programs that compute the same."""
        return "\n".join(_texts(self.body))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphStage(Program):
    """Part of a captured forward, from one state to the next; a `chain_stage.Part`.

    It can be run any number of times, on detached copies as well.

    Attributes:
        name: The modules that it runs, as text for people.
        operators: How many it has.
        saved_bytes: Bytes that autograd saves in it, its incoming state left out.
        draws_random: Whether it may draw random numbers.
        written: Positions of the shared values that it changes in place.
        changes_input: Whether it changes its incoming state in place.
        fills_what_it_saved: Whether an operator of its saves a tensor and then writes it.
    """

    name: str
    operators: int
    saved_bytes: int
    draws_random: bool
    written: tuple[int, ...]
    changes_input: bool = False
    fills_what_it_saved: bool = False

    @property
    def reads(self) -> tuple[int, ...]:
        """Positions of the shared values that it reads."""
        return self.shared


def _texts(body: nn.Module) -> Iterator[str]:
    if isinstance(body, fx.GraphModule):
        yield body.code
    for name, module in body.named_children():
        inner = getattr(module, "function", None)
        yield f"{name}: {getattr(module, 'regions', '')}"
        yield from _texts(getattr(inner, "__self__", module))


def compile_program(
    captured: CapturedGraph,
    nodes: Sequence[fx.Node],
    state: Sequence[fx.Node],
    shared: Mapping[fx.Node, int],
    results: Sequence[fx.Node],
) -> Program:
    """`nodes` as a function of `state` that gives `results`.

    Args:
        captured: The graph whose operators `nodes` are.
        nodes: The operators in order.
        state: Values that are given.
        shared: Values that are there for everyone, and their positions.
        results: Values of `nodes` or of `state`, or shared ones.
    """
    used = _outside(nodes, known={*state}, results=results)
    body = _Body(captured, [*state, *used])
    for regions, group in groupby(nodes, key=lambda node: captured.regions.get(node, ())):
        members = list(group)
        if regions:
            body.add_region(regions, members, _used_behind(members, nodes, results))
        else:
            body.add(members)
    module = body.finish(results)
    return Program(
        body=module,
        function=function_of(module.graph),
        shared=tuple(shared[node] for node in used),
    )


def function_of(graph: fx.Graph) -> Callable[..., tuple[Any, ...]]:
    """Return `graph` as a function of its module and its inputs."""
    code = graph.python_code("self")
    return _compiled(code.src, tuple(code.globals.items()))


@lru_cache(maxsize=1024)
def _compiled(source: str, names: tuple[tuple[str, object], ...]) -> Callable[..., tuple[Any, ...]]:
    """Many stages are alike: only one function's code has to be at hand while they run."""
    space: dict[str, Any] = dict(names)
    exec(source, space)  # noqa: S102  # what torch.fx writes and runs itself
    function: Callable[..., tuple[Any, ...]] = space["forward"]
    return function


def _outside(
    nodes: Iterable[fx.Node], known: set[fx.Node], results: Iterable[fx.Node] = ()
) -> list[fx.Node]:
    """Values that `nodes` use and neither make nor know, in order of first use."""
    made = known | set(nodes)
    used = [value for node in nodes for value in node.all_input_nodes if value.op != "get_attr"]
    return [value for value in dict.fromkeys([*used, *results]) if value not in made]


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

    captured: CapturedGraph
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
        inputs = _outside(nodes, known=set())
        inner = _Body(self.captured, inputs)
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
            self._adopt(str(node.target))
            self.copies[node] = self.graph.create_node("get_attr", str(node.target))
        return self.copies[node]

    def _adopt(self, name: str) -> None:
        if not hasattr(self.root, name):
            self.root.add_module(name, self.captured.modules[name])
