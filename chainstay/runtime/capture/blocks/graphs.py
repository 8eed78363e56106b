"""The graphs of a model's blocks; blocks of one class share what is traced.

A block that the user has compiled with torch.compile is traced as it was before; its graph is
then compiled by the same settings, and compared with the compiled block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn

from chainstay.runtime.capture.blocks.entrances import (
    compiler_of,
    traced_forward,
    traced_module,
)
from chainstay.runtime.capture.cuts.chain import GraphChain, written_inputs
from chainstay.runtime.capture.cuts.cut import cut_into_chain, observe_graph
from chainstay.runtime.capture.dynamo import (
    CapturedForward,
    GraphCapture,
    GraphForward,
    UnplannedGraphError,
    wants_gradients,
)
from chainstay.runtime.capture.graph import as_captured_graph
from chainstay.runtime.capture.graph_key import graph_key
from chainstay.runtime.capture.tracing import NotRunError
from chainstay.runtime.capture.trials.equivalence import NotTheModelError, Trial
from chainstay.runtime.devices.autocast import Autocast


@dataclass(frozen=True, slots=True, eq=False)
class BlockGraph:
    """A block's graph, as one stage.

    Attributes:
        key: Equal for graphs that differ in numbers only.
        chain: The stage, and what it takes to run it.
        is_compiled: Whether it is run by what torch.compile has made of it.
    """

    key: Hashable
    chain: GraphChain
    is_compiled: bool = False


BlockRunner = Callable[[BlockGraph, tuple[Any, ...]], Sequence[Any]]
"""Runs a block's graph on its inputs; gives its outputs."""


@dataclass(slots=True, eq=False)
class BlockGraphs:
    """Traces blocks, and lets their graphs be run by whoever runs the model.

    Attributes:
        name: The model's name, for messages.
        device: The model's device.
        captures: The captures by class and forward of the blocks.
    """

    name: str
    device: torch.device
    captures: dict[Hashable, GraphCapture] = field(default_factory=dict)

    def call(
        self,
        block: nn.Module,
        call: tuple[tuple[Any, ...], Mapping[str, Any]],
        runner: BlockRunner,
        *,
        checked: bool = True,
    ) -> Any:  # noqa: ANN401  # the block's own
        """Return the result of the forward of `block`, its graph run by `runner`.

        Args:
            block: The module, whose hooks are left to whoever calls it.
            call: Its arguments and keyword arguments.
            runner: Called once, in the middle of what the block does.
            checked: Whether graphs that are new are compared with the block.

        Raises:
            UnsupportedModelError: The block cannot be traced, or its graph is not the block;
                nothing of it has been run.
        """
        args, kwargs = call
        module, function = traced_module(block), traced_forward(block)
        key = (type(module), function)
        if key not in self.captures:
            self.captures[key] = GraphCapture(function, _receive, type(module).__name__)
        with _running(runner):
            try:
                return self.captures[key].run(module, *args, **kwargs)
            except NotRunError:
                pass
            while True:
                try:
                    return self.captures[key].capture(module, *args, **kwargs)
                except UnplannedGraphError as found:
                    if not self._add(found, block, call, checked=checked):
                        denying = self.captures[key].denying()
                        assert denying is not None, "else it would have been refused"
                        self.captures[key] = denying

    def _add(
        self,
        found: UnplannedGraphError,
        block: nn.Module,
        call: tuple[tuple[Any, ...], Mapping[str, Any]],
        *,
        checked: bool,
    ) -> bool:
        """Make a stage of a new graph; whether it is the block."""
        forward = found.forward
        captured = as_captured_graph(forward.graph, forward.inputs)
        observed = observe_graph(self.name, captured, found.inputs)
        key = graph_key(observed, found.inputs, Autocast.now(self.device))
        chain = cut_into_chain(observed, granularity=1, blocks=frozenset())
        compiler = compiler_of(block)
        if compiler is not None:
            chain = _compiled(chain, compiler)
        if checked:
            function = traced_forward(block)
            trial = Trial(
                traced_module(block),
                *call,
                found.inputs,
                chain,
                written_inputs(chain.stages, chain.state_inputs, found.inputs),
                self.device,
                function if compiler is None else compiler(function),
            )
            try:
                trial.require_same()
            except NotTheModelError:
                if self.captures[type(trial.model), function].denying() is None:
                    raise
                return False
        graph = BlockGraph(key, chain, is_compiled=compiler is not None)

        def run(*inputs: Any) -> Sequence[Any]:  # noqa: ANN401  # tensors and numbers
            return _current()(graph, inputs)

        forward.plans[forward.sizes(found.inputs)] = run
        return True


def _compiled(chain: GraphChain, compiler: Callable[..., Any]) -> GraphChain:
    """The same, run by what torch.compile makes of it."""
    (stage,) = chain.stages
    return replace(chain, stages=(replace(stage, function=compiler(stage.function)),))


_thread = threading.local()


@contextmanager
def _running(runner: BlockRunner) -> Iterator[None]:
    """Inside, this thread's blocks are run by `runner`."""
    before = getattr(_thread, "runner", None)
    _thread.runner = runner
    try:
        yield
    finally:
        _thread.runner = before


def _current() -> BlockRunner:
    runner: BlockRunner = _thread.runner
    return runner


def _receive(graph: fx.GraphModule, inputs: Sequence[Any]) -> CapturedForward:
    if torch.is_grad_enabled() and wants_gradients(inputs):
        return GraphForward.from_graph(graph, inputs)
    return graph.forward
