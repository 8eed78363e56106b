"""A call of a model as a graph, and what it gives, on stand-ins.

TorchDynamo reads the model's Python without running it, and the graph that it finds runs on
stand-ins: no cache of the model's or of its libraries' is filled with tensors without memory.

There are no values by which graph and model could be compared. So a model that asks whether it
is being traced is told that it is not, and takes the way that it takes in plain training; it is
told the truth only where there is no graph of that way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.capture.dynamo import CapturedForward, GraphCapture, GraphForward
from chainstay.runtime.capture.operators import ObservedGraph, observe_graph
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.capture.trials.equivalence import OutputSample


def traced_call(call: Call) -> tuple[ObservedGraph, Sequence[Any], OutputSample]:
    """Trace a call of a model on stand-ins; do that under their mode.

    Returns:
        The model's graph, the inputs of the graph, and the output of the model.

    Raises:
        NoFullGraphError: The model cannot be traced into one graph.
        UnsupportedModelError: It depends on values, or computes nothing.
    """
    name = call.name
    calls: list[tuple[ObservedGraph, Sequence[Any], Sequence[Any]]] = []

    def receive(graph: fx.GraphModule, examples: Sequence[Any]) -> CapturedForward:
        forward = GraphForward.from_graph(graph, examples)

        def run(*inputs: Any) -> Sequence[Any]:
            observed = observe_graph(name, forward, inputs)
            outputs: Sequence[Any] = graph.forward(*inputs)
            calls.append((observed, inputs, outputs))
            return outputs

        return run

    told, untold = (GraphCapture(call.function, receive, name) for _ in range(2))
    untold.deny()
    try:
        value = untold.trace(call.model, *call.args, **call.kwargs)
    except UnsupportedModelError:
        value = told.trace(call.model, *call.args, **call.kwargs)
    if not calls:
        raise UnsupportedModelError(f"{name} computes nothing from its arguments and parameters")
    observed, inputs, outputs = calls[-1]
    positions = {
        id(output): index
        for index, output in enumerate(outputs)
        if isinstance(output, torch.Tensor)
    }
    return observed, inputs, OutputSample(value, positions)
