"""Graphs that TorchDynamo captures, for tests that look at them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import nn

from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.capture.cuts.cut import cut_into_chain
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.runtime.capture.dynamo import GraphCapture, GraphForward, UnplannedGraphError
from chainstay.runtime.capture.operators import ObservedGraph, observe_graph
from chainstay.runtime.capture.trials.model_forward import unbound_forward

__all__ = ["captured", "chain_of", "observed"]


def captured(
    function: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> tuple[GraphForward, Sequence[Any]]:
    """The graph of a call, which is not run, and the inputs that the graph gets."""
    capture = GraphCapture(function, GraphForward.from_graph, "the function")
    with pytest.raises(UnplannedGraphError) as caught:
        capture.trace(*args, **kwargs)
    return caught.value.forward, caught.value.inputs


def observed(function: Callable[..., Any], *args: Any) -> tuple[ObservedGraph, Sequence[Any]]:
    """What the operators of a call do, and the inputs that the graph gets."""
    forward, inputs = captured(function, *args)
    return observe_graph("the function", forward, inputs), inputs


def chain_of(
    model: nn.Module,
    *args: Any,
    granularity: Granularity = "fine",
) -> tuple[GraphChain, Sequence[Any]]:
    """The model's graph in stages, and the inputs that the graph gets."""
    seen, inputs = observed(unbound_forward(model), model, *args)
    return cut_into_chain(seen, granularity, frozenset()), inputs
