"""The two ends of a stage that is run alone, as its neighbours in a chain would be.

The stage's input hangs below a node that swallows the input's gradient, its output below
a node that makes the output's gradient, so that both gradients live exactly as long as in
the backward of a whole chain, where a neighbour consumes or produces them. Chains are
probed from the end, so that every stage gets its gradient in the memory layout in which
the stage after it leaves it: a transposed one costs a copy, an expanded one no memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from chainstay.runtime.layout import MemoryLayout

__all__ = ["seeded", "swallow"]


def swallow(
    activation: torch.Tensor, receive: Callable[[torch.Tensor], None] | None = None
) -> torch.Tensor:
    """`activation` as a stage in mid-chain gets it: not a leaf, its gradient goes on below.

    What hangs below is an empty leaf: the activation itself would be held by the graph.

    Args:
        activation: Does not require a gradient itself.
        receive: Called with the gradient before it is forgotten.
    """
    anchor = torch.empty(0, device=activation.device, requires_grad=True)
    passed: torch.Tensor = _Swallow.apply(anchor, activation, receive)  # type: ignore[no-untyped-call]
    return passed


class _Swallow(torch.autograd.Function):
    """Hands the activation on; takes its gradient and forgets it."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # autograd's context has no type
        anchor: torch.Tensor,  # noqa: ARG004  # makes the output want a gradient
        activation: torch.Tensor,
        receive: Callable[[torch.Tensor], None] | None,
    ) -> torch.Tensor:
        ctx.receive = receive
        return activation.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:  # noqa: ANN401
        if ctx.receive is not None:
            ctx.receive(gradients[0])
        return None, None, None


def seeded(activation: torch.Tensor, layout: MemoryLayout) -> torch.Tensor:
    """A scalar whose backward allocates a gradient of `layout` for the activation."""
    root: torch.Tensor = _Seed.apply(activation, layout)  # type: ignore[no-untyped-call]
    return root


class _Seed(torch.autograd.Function):
    """Makes the gradient when backward reaches it, not before."""

    @staticmethod
    def forward(ctx: Any, activation: torch.Tensor, layout: MemoryLayout) -> torch.Tensor:  # noqa: ANN401
        ctx.layout = layout
        return torch.zeros((), dtype=activation.dtype.to_real(), device=activation.device)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:  # noqa: ANN401, ARG004
        return ctx.layout.allocate(), None
