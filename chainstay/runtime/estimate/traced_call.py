"""A call of a model as a graph, and what it gives, on stand-ins.

TorchDynamo reads the model's Python without running it, and the graph that it finds runs on
stand-ins: no cache of the model's or of its libraries' is filled with tensors without memory.

There are no values by which graph and model could be compared. So a model that asks whether it
is being traced is told that it is not, and takes the way that it takes in plain training; it is
told the truth only where there is no graph of that way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.capture.cuts.cut import ObservedGraph, observe_graph
from chainstay.runtime.capture.dynamo import CapturedForward, GraphCapture
from chainstay.runtime.capture.graph import as_captured_graph
from chainstay.runtime.capture.graph_inputs import inputs_of
from chainstay.runtime.capture.trials.equivalence import OutputSample
from chainstay.runtime.capture.trials.model_forward import unbound_forward


@dataclass(frozen=True, slots=True, eq=False)
class TracedCall:
    """A call of a model that was traced on stand-ins.

    Attributes:
        observed: Its graph.
        inputs: The inputs of the graph.
        output: The output of the model.
    """

    observed: ObservedGraph
    inputs: Sequence[Any]
    output: OutputSample

    @classmethod
    def of(cls, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> TracedCall:
        """Trace ``model(*args, **kwargs)``; call it under the stand-ins' mode.

        Raises:
            NoFullGraphError: The model cannot be traced into one graph.
            UnsupportedModelError: It depends on values, or computes nothing.
        """
        name = type(model).__name__
        calls: list[tuple[ObservedGraph, Sequence[Any], Sequence[Any]]] = []

        def receive(graph: fx.GraphModule, examples: Sequence[Any]) -> CapturedForward:
            captured = as_captured_graph(graph, inputs_of(graph, examples))

            def run(*inputs: Any) -> Sequence[Any]:  # noqa: ANN401  # tensors and numbers
                observed = observe_graph(name, captured, inputs)
                outputs: Sequence[Any] = graph.forward(*inputs)
                calls.append((observed, inputs, outputs))
                return outputs

            return run

        value = _called(GraphCapture(unbound_forward(model), receive, name), model, args, kwargs)
        if not calls:
            raise UnsupportedModelError(
                f"{name} computes nothing from its arguments and parameters"
            )
        observed, inputs, outputs = calls[-1]
        positions = {
            id(each): index for index, each in enumerate(outputs) if isinstance(each, torch.Tensor)
        }
        return cls(observed, inputs, OutputSample(value, positions))


def _called(capture: GraphCapture, *args: Any) -> Any:  # noqa: ANN401  # the model's own
    """Return the output of the model, traced without being told so if possible."""
    model, given, named = args
    denying = capture.denying()
    if denying is not None:
        with suppress(UnsupportedModelError):
            return denying.capture(model, *given, **named)
    return capture.capture(model, *given, **named)
