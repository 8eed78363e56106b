"""The graphs of a model's blocks; blocks of one class share what is traced.

A block that the user has compiled with torch.compile is traced as it was before; its graph is
then compiled by the same settings, and compared with the compiled block.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import nn

from chainstay.runtime.capture.blocks.entrances import traced_forward, traced_module
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.capture.cuts.cut import cut_into_chain
from chainstay.runtime.capture.dynamo import (
    CapturedForward,
    GraphCapture,
    GraphForward,
    UnplannedGraphError,
)
from chainstay.runtime.capture.graph_key import graph_key
from chainstay.runtime.capture.operators import observe_graph
from chainstay.runtime.capture.tracing import NotRunError
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.capture.trials.compiled_calls import compiler_of
from chainstay.runtime.capture.trials.equivalence import Trial
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.devices.thread_value import ThreadValue


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
    is_compiled: bool

    def retained(self, shared: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shared values to keep for a repetition: the state is not among them."""
        taken = set(self.chain.state_inputs)
        return tuple(None if position in taken else value for position, value in enumerate(shared))


BlockRunner = Callable[[BlockGraph, tuple[Any, ...]], Sequence[Any]]
"""Runs a block's graph on its inputs; gives its outputs."""

_runner: Final = ThreadValue[BlockRunner | None](None)
"""Runs the blocks of a thread."""


@dataclass(slots=True, eq=False)
class BlockGraphs:
    """Traces blocks, and lets their graphs be run by whoever runs the model.

    Attributes:
        name: The model's name, for messages.
        device: The model's device.
        captures: The captures by class and forward of the blocks, and whether these are compiled.
        count: How many graphs there are.
    """

    name: str
    device: torch.device
    captures: dict[Hashable, GraphCapture] = field(default_factory=dict)
    count: int = 0

    def call(
        self,
        block: nn.Module,
        arguments: tuple[tuple[Any, ...], Mapping[str, Any]],
        runner: BlockRunner,
        *,
        checked: bool = True,
    ) -> Any:
        """Return the result of the forward of `block`, its graph run by `runner`.

        Args:
            block: The module, whose hooks are left to whoever calls it.
            arguments: Its arguments and keyword arguments.
            runner: Called once, in the middle of what the block does.
            checked: Whether graphs that are new are compared with the block.

        Raises:
            UnsupportedModelError: The block cannot be traced, takes nested tensors, or its graph
                is not the block; nothing of it has been run.
        """
        args, kwargs = arguments
        compiler = compiler_of(block)
        call = Call(traced_module(block), args, dict(kwargs), traced_forward(block))
        key = (type(call.model), call.function, compiler is not None)
        if key not in self.captures:
            self.captures[key] = GraphCapture(call.function, GraphForward.if_trained, call.name)
        with _runner.set_to(runner):
            try:
                return self.captures[key].run(call.model, *args, **kwargs)
            except NotRunError:
                call.require_plannable()

            def plan(found: UnplannedGraphError) -> CapturedForward:
                return self._planned(found, call, compiler, checked=checked)

            return self.captures[key].capture(plan, (call.model, *args), kwargs)

    def _planned(
        self,
        found: UnplannedGraphError,
        call: Call,
        compiler: Callable[..., Any] | None,
        *,
        checked: bool,
    ) -> CapturedForward:
        """Return a new graph as one stage that this thread's runner runs, if it is the block."""
        observed = observe_graph(self.name, found.forward, found.inputs)
        key = (graph_key(observed, found.inputs, Autocast.now(self.device)), compiler is not None)
        chain = cut_into_chain(observed, granularity=1, blocks=frozenset())
        if compiler is not None:
            (stage,) = chain.stages
            chain = replace(chain, stages=(replace(stage, function=compiler(stage.function)),))
            call = replace(call, function=compiler(call.function))
        if checked:
            Trial.of(call, observed, chain, found.inputs, self.device).require_same()
        graph = BlockGraph(key, chain, is_compiled=compiler is not None)
        self.count += 1

        def run(*inputs: Any) -> Sequence[Any]:
            runner = _runner.now
            assert runner is not None, "`call` has set it"
            return runner(graph, inputs)

        return run
