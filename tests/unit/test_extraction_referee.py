"""A graph that is not the model is refused, and told from it by what it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import chainstay
from captured_graphs import chain_of
from chainstay.runtime.capture.tracing import NotTheModelError
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.capture.trials.equivalence import Trial

Graph = Callable[..., Sequence[Any]]

ROUNDING = iter(range(10**6))


@torch.library.custom_op("chainstay_tests::rounded_anyhow", mutates_args=())
def rounded_anyhow(x: torch.Tensor) -> torch.Tensor:
    """As kernels of accelerators that add in any order, its backward never repeats itself."""
    return x.clone()


rounded_anyhow.register_fake(torch.empty_like)
rounded_anyhow.register_autograd(lambda _, gradient: gradient * (1 + 1e-6 * (next(ROUNDING) % 5)))


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


class Rounding(Counting):
    """Other gradients each time."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounded: torch.Tensor = rounded_anyhow(super().forward(x))
        return rounded


def refereed(change: Callable[[Graph], Graph], kind: type[Counting] = Counting) -> None:
    torch.manual_seed(0)
    model, args = kind(), (torch.randn(3, 4),)
    graph, inputs = chain_of(model, *args)
    written = graph.written_by(inputs)
    before = torch.get_rng_state()
    device = torch.device("cpu")
    trial = Trial(Call.of(model, args), inputs, change(graph), written, device)
    try:
        trial.require_same()
    finally:
        assert model.calls == 0, "trying leaves no trace"
        assert all(parameter.grad is None for parameter in model.parameters())
        assert torch.equal(torch.get_rng_state(), before)


def test_the_graph_of_the_model_passes() -> None:
    refereed(lambda graph: graph)


def changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Graph], Graph]:
    """The same for all outputs but the counter."""
    return lambda graph: (
        lambda *inputs: [change(output) if output.dim() else output for output in graph(*inputs)]
    )


def test_another_graph_passes_if_values_and_gradients_are_the_same() -> None:
    refereed(changed(lambda output: 2 * (output / 2)))


def test_gradients_that_never_repeat_themselves_may_differ_by_rounding() -> None:
    refereed(changed(lambda output: 2 * (output / 2)), Rounding)
    with pytest.raises(NotTheModelError, match=r"gradient \d of its parameters is another one"):
        refereed(changed(lambda output: output + 0.1 * (output - output.detach())), Rounding)


def counts_twice(graph: Graph) -> Graph:
    def twice(*inputs: Any) -> Sequence[Any]:
        (count,) = (value for value in inputs if value.dim() == 0)
        count += 1
        return graph(*inputs)

    return twice


def draws_once_more(graph: Graph) -> Graph:
    def drawing(*inputs: Any) -> Sequence[Any]:
        output = graph(*inputs)
        torch.rand(1)
        return output

    return drawing


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (changed(lambda output: output + 1), "leaf 0 of the output is another one"),
        (changed(lambda output: output.double()), "leaf 0 of the output is another one"),
        (changed(lambda output: output[:, :3]), "leaf 0 of the output is another one"),
        (changed(lambda output: output.detach()), "leaf 0 of the output is another one"),
        (counts_twice, r"it leaves other values in a buffer of shape \(\)"),
        (draws_once_more, "it draws other random numbers"),
        (
            changed(lambda output: output + (output - output.detach())),
            r"gradient \d of its parameters is another one",
        ),
        (
            changed(lambda output: output + 1e-6 * (output - output.detach())),
            r"gradient \d of its parameters is another one",
        ),
    ],
)
def test_a_graph_that_does_something_else_is_refused(
    change: Callable[[Graph], Graph], reason: str
) -> None:
    with pytest.raises(NotTheModelError, match=rf"makes of Counting is not the model: {reason}"):
        refereed(change)


def test_the_operator_is_told_where_they_begin_to_differ() -> None:
    with pytest.raises(NotTheModelError, match=r"first at the operator aten\.\S+"):
        refereed(lambda graph: lambda *inputs: graph(*(2 * value for value in inputs)))


class Asking(nn.Module):
    """Takes another way when it is traced; its own one decides by values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return torch.sin(self.layer(x))
        return torch.tanh(self.layer(x)) if x.sum().isfinite() else x


def test_a_model_whose_own_way_has_no_graph_is_told_what_the_other_way_gives() -> None:
    with pytest.raises(NotTheModelError, match="of Asking is not the model: leaf 0 of the output"):
        chainstay.fit(Asking(), (torch.ones(2, 4),), budget="90%", by="graph", progress=False)
