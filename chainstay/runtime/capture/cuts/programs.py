"""A range of a graph's operators as one function, and as a stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import fx, nn

from chainstay.runtime.capture.subgraphs import subgraph, text_of, values_read
from chainstay.runtime.stage.chain_stage import Effects
from chainstay.runtime.stage.states import State
from chainstay.runtime.stage.tied_gradients import add_in_place


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
        return text_of(self.body)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphStage(Program):
    """Part of a captured forward, from one state to the next; a `chain_stage.Part`.

    It can be run any number of times, on detached copies as well.

    Attributes:
        name: The modules that it runs, as text for people.
        operators: How many it has.
        elements: Numbers in the inputs of the graph that it reads, its state left out.
        saved_bytes: Bytes that autograd saves in it, its incoming state left out.
        effects: What it reads and changes besides its state.
    """

    name: str
    operators: int
    elements: int
    saved_bytes: int
    effects: Effects

    def __call__(self, state: State, shared: Sequence[Any]) -> tuple[Any, ...]:
        """Return the next state; see `Part`."""
        output = Program.__call__(self, state, shared)
        if tied := self.effects.tied:
            add_in_place(output, state, [shared[position] for position in tied])
        return output


def compile_program(
    modules: Mapping[str, nn.Module],
    nodes: Sequence[fx.Node],
    state: Sequence[fx.Node],
    shared: Mapping[fx.Node, int],
    results: Sequence[fx.Node],
) -> Program:
    """Return `nodes` as a function of `state` that gives `results`; see `subgraph`.

    Both may read values that are there for everyone, `shared`, by their positions.
    """
    used = [node for node in values_read(nodes, results) if node not in state]
    body = subgraph(modules, nodes, [*state, *used], results)
    return Program(
        body=body,
        function=function_of(body.graph),
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
