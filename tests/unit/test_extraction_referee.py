"""A chain of stages that is not the model is refused, and told from it by what it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.extraction.referee import require_same

CPU = torch.device("cpu")
Chain = Callable[[torch.Tensor], torch.Tensor]


class Counting(nn.Module):
    """A layer with dropout, and a buffer that counts calls."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return functional.dropout(self.layer(x), 0.5)


def refereed(change: Callable[[Counting], Chain]) -> None:
    torch.manual_seed(0)
    model = Counting()
    before = torch.get_rng_state()
    try:
        require_same(model, change(model), (torch.randn(3, 4),), {}, CPU)
    finally:
        assert model.calls == 0, "trying leaves no trace"
        assert all(each.grad is None for each in model.parameters())
    torch.set_rng_state(before)


def test_the_model_itself_passes() -> None:
    refereed(lambda model: model)


def test_another_graph_passes_if_values_and_gradients_are_the_same() -> None:
    refereed(lambda model: lambda x: 2 * (model(x) / 2))


def counts_twice(model: Counting) -> Chain:
    def chain(x: torch.Tensor) -> torch.Tensor:
        model.calls += 1
        output: torch.Tensor = model(x)
        return output

    return chain


def draws_once_more(model: Counting) -> Chain:
    def chain(x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = model(x)
        torch.rand(1)
        return output

    return chain


def has_twice_the_gradient(model: Counting) -> Chain:
    def chain(x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = model(x)
        return output + (output - output.detach())

    return chain


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda model: lambda x: model(x) + 1, "leaf 0 of the output is another one"),
        (lambda model: lambda x: model(x).double(), "leaf 0 of the output is another one"),
        (lambda model: lambda x: model(x)[:, :3], "leaf 0 of the output is another one"),
        (lambda model: lambda x: model(x).detach(), "leaf 0 of the output is another one"),
        (counts_twice, "it leaves other values in the buffer calls"),
        (draws_once_more, "it draws other random numbers"),
        (has_twice_the_gradient, "the gradient of layer.weight is another one"),
    ],
)
def test_a_chain_that_does_something_else_is_refused(
    change: Callable[[Counting], Chain], reason: str
) -> None:
    with pytest.raises(
        UnsupportedModelError,
        match=rf"of Counting is not the model: {reason}; use intercept\(\) on its blocks",
    ):
        refereed(change)
