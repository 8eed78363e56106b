"""``torch.compile(model, backend="chainstay")``: equal bits by a plan, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._dynamo.exc import BackendCompilerFailed  # what torch makes of a backend's error

from chainstay.errors import InfeasibleBudgetError, InvalidBudgetError
from chainstay.runtime import trace_memory

X = torch.linspace(-2, 2, 256 * 16).reshape(256, 16).sin()


def make_model() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [(nn.Linear(16, 16), nn.Tanh(), nn.Dropout(0.2), nn.GELU()) for _ in range(6)]
    return nn.Sequential(*(module for layer in layers for module in layer), nn.Linear(16, 2))


def compiled(model: nn.Module, **options: Any) -> Any:
    torch._dynamo.reset()
    return torch.compile(model, backend="chainstay", options={"repeats": 1, **options})


def step(model: nn.Module, run: Any) -> list[torch.Tensor]:
    torch.manual_seed(5)
    model.zero_grad()
    output = run(X)
    output.square().mean().backward()
    gradients = [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]
    return [output.detach(), *gradients, torch.get_rng_state()]


def peak(model: nn.Module, run: Any) -> int:
    def one() -> None:
        run(X).square().mean().backward()

    step(model, run)
    return trace_memory(one, "cpu").peak_bytes


@pytest.mark.parametrize("budget", ["100%", "50%"])
def test_steps_are_equal_and_within_the_budget(budget: str) -> None:
    model = make_model()
    plain, plain_peak = step(model, model), peak(model, model)
    run = compiled(model, budget=budget)
    assert all(map(torch.equal, plain, step(model, run)))
    assert all(map(torch.equal, plain, step(model, run)))
    assert (peak(model, run) < 0.7 * plain_peak) == (budget == "50%")


@pytest.mark.long
def test_other_shapes_are_planned_and_evaluation_runs_plainly() -> None:
    model = make_model()
    run = compiled(model, budget="70%")
    run(X).sum().backward()
    half = X[:100]
    torch.manual_seed(1)
    expected = model(half)
    torch.manual_seed(1)
    assert torch.equal(expected, run(half))
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(X), run(X))


def test_the_model_s_input_counts_and_its_shape_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = make_model()
    compiled(model, budget="100%")(X).sum().backward()
    assert "planned for (256, 16)" in capsys.readouterr().err


def test_a_budget_is_needed_and_must_be_feasible() -> None:
    model = make_model()
    for options in ({}, {"budget": None}):
        with pytest.raises(BackendCompilerFailed, match="backend 'chainstay' needs a budget"):
            compiled(model, **options)(X)
    with pytest.raises(InfeasibleBudgetError):
        compiled(model, budget=100)(X)
    with pytest.raises(InvalidBudgetError, match=r"budget is 2\.5"):
        compiled(model, budget=2.5)(X)
    with pytest.raises(
        BackendCompilerFailed, match=r"no option 'colour'; it has bit_for_bit, budget, .*repeats"
    ):
        compiled(model, budget="50%", colour=3)(X)


class Broken(nn.Module):
    """Two graphs for TorchDynamo."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        torch._dynamo.graph_break()
        result: torch.Tensor = self.second(hidden)
        return result


def test_a_forward_in_several_graphs_is_refused() -> None:
    with pytest.raises(BackendCompilerFailed, match="breaks the forward into several graphs"):
        compiled(Broken(), budget="100%")(X)


def test_the_model_keeps_no_more_than_with_any_backend() -> None:
    kept = []
    choices: list[tuple[str, dict[str, Any] | None]]
    choices = [("eager", None), ("chainstay", {"budget": "50%"})]
    for backend, options in choices:
        model = make_model()
        torch._dynamo.reset()
        torch.compile(model, backend=backend, options=options)(X).sum().backward()
        kept.append([sorted(vars(module)) for module in model.modules()])
    assert kept[0] == kept[1]  # torch itself marks the outermost module
