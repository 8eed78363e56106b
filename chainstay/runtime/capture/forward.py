"""A captured graph, and the plans it goes by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from chainstay.runtime.capture.dynamo import NotRunError
from chainstay.runtime.capture.graph_inputs import GraphInput, inputs_of

__all__ = ["GraphForward", "Sizes", "UnplannedGraphError", "wants_gradients"]

Sizes = tuple[torch.Size, ...]
"""Of the tensors in a call."""


class UnplannedGraphError(NotRunError):
    """A captured graph was called before there was a plan for it; nothing has run.

    Attributes:
        forward: The graph.
        inputs: What it was called with.
    """

    def __init__(self, forward: GraphForward, inputs: tuple[Any, ...]) -> None:
        super().__init__("a captured graph has no plan")
        self.forward = forward
        self.inputs = inputs


@dataclass(slots=True, eq=False)
class GraphForward:
    """Runs a captured graph by a plan.

    Attributes:
        graph: The graph as TorchDynamo gave it.
        inputs: What its inputs are.
        is_dynamic: Whether sizes of tensors may differ between its calls.
        plans: The plans, by the sizes of all tensors where these may differ.
    """

    graph: fx.GraphModule
    inputs: tuple[GraphInput, ...]
    is_dynamic: bool = False
    plans: dict[Sizes, Callable[..., Sequence[Any]]] = field(default_factory=dict)

    @classmethod
    def from_graph(cls, graph: fx.GraphModule, inputs: Sequence[object]) -> GraphForward:
        """Without a plan; for use inside a backend of TorchDynamo."""
        is_dynamic = any(map(_has_symbols, graph.graph.nodes))
        return cls(graph, inputs_of(graph, inputs), is_dynamic)

    def __call__(self, *inputs: Any) -> Sequence[Any]:  # noqa: ANN401  # tensors and numbers
        """Run the plan of the graph for such inputs.

        Raises:
            UnplannedGraphError: There is no plan for such inputs.
        """
        planned = self.plans.get(self.sizes(inputs))
        if planned is None:
            raise UnplannedGraphError(self, inputs)
        return planned(*inputs)

    def sizes(self, inputs: Sequence[Any]) -> Sizes:
        """Return the sizes of the inputs, which tell plans apart."""
        if not self.is_dynamic:
            return ()
        return tuple(value.shape for value in inputs if isinstance(value, torch.Tensor))


def wants_gradients(inputs: Sequence[object]) -> bool:
    """Whether any of the inputs requires a gradient."""
    return any(isinstance(value, torch.Tensor) and value.requires_grad for value in inputs)


def _has_symbols(node: fx.Node) -> bool:
    """Whether an input has a size that is not known before the call."""
    value = node.meta.get("example_value")
    return (
        node.op == "placeholder"
        and isinstance(value, torch.Tensor)
        and any(isinstance(size, torch.SymInt) for size in value.shape)
    )
