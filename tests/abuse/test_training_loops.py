"""Loops as people write them, step by step the same with a plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.profiler import profile, schedule
from torch.utils.checkpoint import checkpoint

import chainstay
from chainstay.errors import InfeasibleBudgetError, UnsupportedModelError
from chainstay.fitting.planner import StageSource
from twins import (
    SAMPLE,
    Step,
    backward_step,
    fit_to_least,
    fitted_twins,
    recomputes,
    require_equal_steps,
    shown,
)
from zoo import loss_of

X = SAMPLE.args[0]
LOOPS: dict[str, Step] = {}


class Net(nn.Module):
    """What is needed of a model: branches, dropout, statistics, something to recompute."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 48), nn.GELU(), nn.Dropout(0.1), nn.Linear(48, 16))
            for _ in range(3)
        )
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        y: torch.Tensor = self.norm(x)
        return y


def loop(step: Step) -> Step:
    LOOPS[step.__name__.replace("_", " ").strip()] = step
    return step


@loop
def gradient_accumulation(model: nn.Module, _: int) -> torch.Tensor:
    losses = [loss_of(model(X * scale)) / 3 for scale in (1, 2)]
    for loss in losses:
        loss.backward()
    (loss_of(model(X)) / 3).backward()
    return losses[0]


@loop
def two_backwards_of_one_graph(model: nn.Module, _: int) -> torch.Tensor:
    output = model(X)
    loss_of(output).backward(retain_graph=True)
    output.mean().backward()
    return loss_of(output)


@loop
def gradients_of_some_parameters(model: nn.Module, _: int) -> torch.Tensor:
    loss, first = loss_of(model(X)), next(model.parameters())
    (first.grad,) = torch.autograd.grad(loss, [first])
    return loss


@loop
def gradients_of_several_outputs_at_once(model: nn.Module, _: int) -> torch.Tensor:
    output, first = model(X), next(model.parameters())
    rows = torch.eye(3, output.numel()).view(3, *output.shape)
    (several,) = torch.autograd.grad(output, [first], rows, is_grads_batched=True)
    first.grad = several.sum(0)
    return several


@loop
def backward_to_some_inputs(model: nn.Module, _: int) -> torch.Tensor:
    loss = loss_of(model(X))
    loss.backward(inputs=list(model.parameters())[2:4])
    return loss


@loop
def a_gradient_penalty(model: nn.Module, _: int) -> torch.Tensor:
    x = X.clone().requires_grad_()
    output = model(x)
    (gradient,) = torch.autograd.grad(output.sum(), x, create_graph=True)
    loss = loss_of(output) + gradient.square().sum()
    loss.backward()
    return loss


@loop
def a_hessian_vector_product(model: nn.Module, _: int) -> torch.Tensor:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss_of(model(X)), parameters, create_graph=True)
    loss = torch.stack([gradient.square().sum() for gradient in gradients]).sum()
    loss.backward()
    return loss


@loop
def evaluation_between_forward_and_backward(model: nn.Module, _: int) -> torch.Tensor:
    loss = loss_of(model(X))
    with torch.no_grad():
        model(X * 2)
    with torch.inference_mode():
        model(X * 3)
    loss.backward()
    return loss


@loop
def evaluation_between_steps(model: nn.Module, number: int) -> torch.Tensor | None:
    model.eval()
    with torch.no_grad():
        model(X[:7])
    model.train()
    return backward_step(SAMPLE)(model, number)


@loop
def training_in_evaluation_mode(model: nn.Module, number: int) -> torch.Tensor | None:
    model.train(number != 1)
    return backward_step(SAMPLE)(model, number)


@loop
def freezing_in_the_middle(model: Any, number: int) -> torch.Tensor | None:
    model.layers[0].requires_grad_(number != 1)
    return backward_step(SAMPLE)(model, number)


@loop
def freezing_between_forward_and_backward(model: nn.Module, number: int) -> torch.Tensor:
    """And training again: autograd's graph is there, and takes no notice."""
    frozen = list(model.parameters())[:: 1 + number]
    loss = loss_of(model(X))
    for parameter in frozen:
        parameter.requires_grad_(False)  # noqa: FBT003  # torch's own
    others = loss_of(model(X)) if number else loss
    for parameter in frozen:
        parameter.requires_grad_(bool(number))
    loss.backward()
    assert all(parameter.requires_grad == bool(number) for parameter in frozen)
    if number:
        others.backward()
    model.requires_grad_()
    return loss


@loop
def batches_of_other_sizes(model: nn.Module, number: int) -> torch.Tensor:
    loss = loss_of(model(X[: (64, 17, 33)[number]]))
    loss.backward()
    return loss


@loop
def an_input_that_requires_a_gradient(model: nn.Module, number: int) -> torch.Tensor:
    x = X.clone().requires_grad_(number != 1)
    loss = loss_of(model(x))
    loss.backward()
    return loss if x.grad is None else x.grad.sum()


@loop
def a_transposed_input(model: nn.Module, number: int) -> torch.Tensor:
    loss = loss_of(model(X[:16].T if number else X[:16]))
    loss.backward()
    return loss


@loop
def autocast_with_a_scaler(model: nn.Module, _: int) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(model(X))
    (loss * 1024).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad /= 1024
    return loss


@loop
def an_infinite_loss(model: nn.Module, _: int) -> torch.Tensor:
    loss = (model(X) * float("inf")).sum().nan_to_num(0)
    loss.backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.nan_to_num_(0, 0, 0)
    return loss


@loop
def sharpness_aware_minimisation(model: nn.Module, _: int) -> torch.Tensor:
    loss_of(model(X)).backward()
    moves = [None if p.grad is None else p.grad * 0.1 for p in model.parameters()]
    with torch.no_grad():
        for p, move in zip(model.parameters(), moves, strict=True):
            if move is not None:
                p.add_(move)
    model.zero_grad()
    loss = loss_of(model(X))
    loss.backward()
    with torch.no_grad():
        for p, move in zip(model.parameters(), moves, strict=True):
            if move is not None:
                p.sub_(move)
    return loss


@loop
def an_optimizer_that_calls_the_model(model: nn.Module, _: int) -> torch.Tensor:
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, lr=0.01)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model(X))
        loss.backward()
        return loss

    loss: torch.Tensor = optimizer.step(closure)
    return loss


@loop
def an_optimizer_step_in_the_backward(model: nn.Module, _: int) -> torch.Tensor:
    def update(parameter: torch.Tensor) -> None:
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.05)  # type: ignore[arg-type]
        parameter.grad = None

    hooks = [
        parameter.register_post_accumulate_grad_hook(update) for parameter in model.parameters()
    ]
    loss = loss_of(model(X))
    loss.backward()
    for hook in hooks:
        hook.remove()
    return loss


@loop
def weights_loaded_in_the_middle(model: nn.Module, number: int) -> torch.Tensor | None:
    if number == 1:
        state = {name: value * 0.5 for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
        for parameter in model.parameters():
            parameter.requires_grad_()
    return backward_step(SAMPLE)(model, number)


@loop
def a_parameter_that_is_replaced(model: Any, number: int) -> torch.Tensor | None:
    if number == 1:
        model.layers[1][0].weight = nn.Parameter(torch.ones(48, 16) / 16)
    return backward_step(SAMPLE)(model, number)


@loop
def a_module_that_is_replaced(model: Any, number: int) -> torch.Tensor | None:
    if number == 1:
        torch.manual_seed(3)
        model.layers[1] = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    return backward_step(SAMPLE)(model, number)


@loop
def weights_that_are_tied_later(model: Any, number: int) -> torch.Tensor | None:
    if number == 1:
        model.layers[1][0].weight = model.layers[0][0].weight
    return backward_step(SAMPLE)(model, number)


@loop
def data_assigned_in_the_middle(model: nn.Module, number: int) -> torch.Tensor | None:
    for parameter in model.parameters():
        parameter.data = parameter.data * 0.9
    return backward_step(SAMPLE)(model, number)


@loop
def a_hook_that_is_added_later(model: Any, number: int) -> torch.Tensor | None:
    if number == 1:
        model.layers[0].register_forward_hook(lambda _, __, output: output * 2)
    return backward_step(SAMPLE)(model, number)


@loop
def a_hook_on_the_model_itself(model: Any, number: int) -> torch.Tensor | None:
    hook = model.register_forward_hook(lambda _, __, output: output * (1 + number))
    try:
        return backward_step(SAMPLE)(model, number)
    finally:
        hook.remove()


@loop
def a_backward_hook_on_a_module(model: Any, number: int) -> torch.Tensor | None:
    if number == 1:
        model.layers[1].register_full_backward_hook(lambda _, given, __: (given[0] * 2,))
    return backward_step(SAMPLE)(model, number)


@loop
def a_checkpoint_around_the_model(model: nn.Module, number: int) -> torch.Tensor:
    x = X.clone().requires_grad_()
    output: torch.Tensor = checkpoint(model, x, use_reentrant=number == 1)
    loss = loss_of(output)
    loss.backward()
    return loss


@loop
def spectral_norm_that_is_added_later(model: Any, number: int) -> torch.Tensor | None:
    if number == 1:
        torch.manual_seed(3)
        parametrizations.spectral_norm(model.layers[0][0])
    return backward_step(SAMPLE)(model, number)


@pytest.mark.parametrize("stage_options", [False, True], ids=["whole", "in part"])
@pytest.mark.parametrize("name", LOOPS)
def test_by_a_graph(name: str, *, stage_options: bool) -> None:
    _require_equal(LOOPS[name], "auto", stage_options=stage_options)


_OF_BLOCKS = (
    "gradient accumulation",
    "two backwards of one graph",
    "a gradient penalty",
    "evaluation between forward and backward",
    "freezing in the middle",
    "freezing between forward and backward",
    "batches of other sizes",
    "an input that requires a gradient",
    "autocast with a scaler",
    "weights loaded in the middle",
    "a module that is replaced",
    "weights that are tied later",
    "a hook that is added later",
    "a backward hook on a module",
    "a checkpoint around the model",
)


@pytest.mark.parametrize("stage_options", [False, True], ids=["whole", "in part"])
@pytest.mark.parametrize("name", _OF_BLOCKS)
def test_by_blocks(name: str, *, stage_options: bool) -> None:
    _require_equal(LOOPS[name], "blocks", stage_options=stage_options)


def _require_equal(step: Step, by: str, *, stage_options: bool) -> None:
    plain, fitted = fitted_twins(Net, SAMPLE, budget="80%", by=by, stage_options=stage_options)
    assert recomputes(fitted)
    require_equal_steps(plain, fitted, step)


@pytest.mark.long
@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_a_move_to_double_precision(by: str) -> None:
    """It needs more: within the same budget it is refused, by its shape."""

    def step(model: nn.Module, number: int) -> torch.Tensor:
        model.to(torch.float64 if number == 1 else torch.float32)
        loss = loss_of(model(X.to(next(model.parameters()).dtype)))
        loss.backward()
        return loss

    tight = fit_to_least(Net(), SAMPLE, by=by)
    step(tight, 0)
    with pytest.raises(InfeasibleBudgetError, match=r"for a call with \(64, 16\)"):
        step(tight, 1)
    plain, fitted = fitted_twins(Net, SAMPLE, budget=10**6, by=by)
    require_equal_steps(plain, fitted, step)


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_a_profiler_around_the_call_that_plans(by: StageSource) -> None:
    """Measuring would end it: it goes on, and the model is planned without it."""
    plain, fitted = fitted_twins(Net, SAMPLE, by=by, budget=10**6)
    with profile(acc_events=True) as profiler:
        require_equal_steps(plain, fitted, backward_step(SAMPLE), 1)
        with pytest.raises(UnsupportedModelError, match="torch's profiler is on"):
            fitted(X[:9])
        X.double()
    assert {"aten::linear", "aten::to"} <= {event.key for event in profiler.key_averages()}
    assert len(shown(fitted).plans) == 1
    require_equal_steps(plain, fitted, lambda model, _: loss_of(model(X[:9])))
    assert len(shown(fitted).plans) == 2


def test_a_profiler_that_warms_up_around_the_call_that_plans() -> None:
    """Another session crashes the process."""
    fitted = chainstay.fit(Net(), budget=10**6, progress=False)
    with profile(schedule=schedule(wait=1, warmup=1, active=1), acc_events=True) as profiler:
        backward_step(SAMPLE)(fitted, 0)
        profiler.step()
        with pytest.raises(UnsupportedModelError, match="torch's profiler is on"):
            fitted(X[:9])
        profiler.step()
        backward_step(SAMPLE)(fitted, 0)
    assert "aten::addmm" in {event.key for event in profiler.key_averages()}
    fitted(X[:9])
    assert len(shown(fitted).plans) == 2
