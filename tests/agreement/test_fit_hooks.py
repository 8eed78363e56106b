"""Hooks of the user's run as often and see the same as without a plan."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

import chainstay
from training_conditions import (
    PLANS,
    SUBJECTS,
    Sample,
    differences,
    fit_to,
    pair,
    recomputes,
    require_equal,
    shown,
    trained,
)
from zoo import loss_of

each_subject = pytest.mark.parametrize("subject", SUBJECTS)
each_share = pytest.mark.parametrize("share", PLANS)


@each_share
@each_subject
def test_hooks_on_gradients_of_parameters(subject: str, share: str) -> None:
    seen: dict[int, list[torch.Tensor]] = {}

    def watch(model: nn.Module) -> None:
        calls = seen[id(model)] = []
        for parameter in model.parameters():

            def halve(gradient: torch.Tensor) -> torch.Tensor:
                calls.append(gradient.clone())
                return gradient / 2

            parameter.register_hook(halve)

    plain, planned, sample = pair(subject, share)
    for model in (plain, planned):
        watch(model)
    assert differences(trained(planned, sample), trained(plain, sample)) == []
    assert len(seen[id(plain)]) == 3 * len(list(plain.parameters()))
    assert all(map(torch.equal, seen[id(plain)], seen[id(planned)])), "in the same order"


@each_share
@each_subject
def test_an_optimizer_inside_the_backward(subject: str, share: str) -> None:
    """Parameters change as soon as their gradients are there, which are freed then."""

    def update(model: nn.Module) -> None:
        for parameter in model.parameters():
            optimizer = torch.optim.SGD([parameter], lr=0.01, momentum=0.9)

            def step(tensor: torch.Tensor, optimizer: torch.optim.Optimizer = optimizer) -> None:
                optimizer.step()
                tensor.grad = None

            parameter.register_post_accumulate_grad_hook(step)

    def without_step(model: nn.Module, sample: Sample, _: Optimizer) -> torch.Tensor:
        loss = sample.loss(model)
        loss.backward()
        return loss

    require_equal(subject, share, without_step, prepare=update)


@each_share
@each_subject
def test_a_hook_on_the_output(subject: str, share: str) -> None:
    def hooked(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
        optimizer.zero_grad()
        output = model(*sample.args, **sample.kwargs)
        first = next(tensor for tensor in _tensors(output) if tensor.requires_grad)
        first.register_hook(lambda gradient: gradient * 3)
        loss = loss_of(output)
        loss.backward()
        optimizer.step()
        return loss

    require_equal(subject, share, hooked)


def _tensors(output: object) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(output)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


@pytest.mark.long
@each_share
@pytest.mark.parametrize("subject", ["convolutional", "layered"])
def test_hooks_on_the_model_itself(subject: str, share: str) -> None:
    """Registered after fitting, they are around the plan, as they are around the forward."""
    plain, planned, sample = pair(subject, share)
    image = sample.args[0].clone().requires_grad_()  # so that torch calls backward hooks
    calls: dict[nn.Module, list[str]] = {}
    for model in (plain, planned):
        called = calls[model] = []
        _watch(model, called)
    records = [trained(model, Sample((image,))) for model in (plain, planned)]
    assert differences(*records) == []
    assert calls[plain] == calls[planned] == 3 * ["before", "after", "backward"]


def _watch(model: nn.Module, called: list[str]) -> None:
    model.register_forward_pre_hook(lambda *_: called.append("before"))
    model.register_forward_hook(lambda *_: called.append("after"))
    model.register_full_backward_hook(lambda *_: called.append("backward"))


@each_share
def test_hooks_on_the_stages_of_a_sequential(share: str) -> None:
    """Forward hooks run as often as their module does; backward hooks once per step."""
    plain, planned, sample = pair("layered", "all")
    counts: dict[nn.Module, list[int]] = {plain: [0, 0], planned: [0, 0]}
    for model, count in counts.items():
        _count_and_change(model[3], count)  # type: ignore[index]  # a Sequential
    chain = chainstay.unfit(planned)
    fit_to(chain, sample, share)
    for count in counts.values():
        count[:] = [0, 0]
    assert differences(trained(chain, sample), trained(plain, sample)) == []
    assert counts[plain] == [3, 3]
    assert counts[planned][0] >= 3
    assert counts[planned][1] == 3


def _count_and_change(module: nn.Module, count: list[int]) -> None:
    def after(_module: nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
        count[0] += 1
        return output * 1.5

    def behind(_module: nn.Module, gradients: Any, _: Any) -> Any:
        count[1] += 1
        return tuple(None if gradient is None else gradient * 0.5 for gradient in gradients)

    module.register_forward_hook(after)
    module.register_full_backward_hook(behind)


@pytest.mark.long
@each_subject
def test_fitting_calls_no_hooks_of_parameters(subject: str) -> None:
    """An optimizer inside the backward would step by measured gradients."""
    plain, planned, sample = pair(subject, "all")
    model = chainstay.unfit(planned)
    called = []
    for parameter in model.parameters():
        parameter.register_hook(lambda _: called.append("gradient"))
        parameter.register_post_accumulate_grad_hook(lambda _: called.append("accumulated"))
    fit_to(model, sample, "60 %")
    assert not called
    assert differences(trained(model, sample), trained(plain, sample)) == []
    assert called.count("gradient") == 3 * len(list(model.parameters()))


@pytest.mark.parametrize("subject", ["transformer", "layered"])
def test_hooks_on_the_model_itself_are_there_before_fitting(subject: str) -> None:
    """They see as many calls as without a plan, none of them while it is made."""
    plain, planned, sample = pair(subject, "all")
    model = chainstay.unfit(planned)
    called: list[object] = []
    model.register_forward_pre_hook(lambda *_: called.append("before"))
    model.register_forward_hook(lambda *_: called.append("after"))
    fit_to(model, sample, "60 %")
    assert not called
    assert differences(trained(model, sample), trained(plain, sample)) == []
    assert called == 3 * ["before", "after"]


def _scale_forward(_module: nn.Module, _args: object, output: torch.Tensor) -> torch.Tensor:
    return output * 1.5


def _scale_input(_module: nn.Module, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (args[0] * 0.5, *args[1:])


def _scale_gradients(_module: nn.Module, gradients: Any, *_: object) -> Any:
    return tuple(None if gradient is None else gradient * 0.5 for gradient in gradients)


Register = Callable[[nn.Module], Any]
KINDS: dict[str, Register] = {
    "forward pre-hooks": lambda module: module.register_forward_pre_hook(_scale_input),
    "forward hooks": lambda module: module.register_forward_hook(_scale_forward),
    "backward hooks": lambda module: module.register_full_backward_hook(_scale_gradients),
    "backward pre-hooks": lambda module: module.register_full_backward_pre_hook(_scale_gradients),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("subject", ["transformer", "convolutional"])
def test_hooks_inside_a_model_count_whenever_they_come_and_go(subject: str, kind: str) -> None:
    """Registered before fitting or after it, on a module that runs again."""
    plain, planned, sample = pair(subject, "60 %")
    expected = trained(copy.deepcopy(plain), sample)
    plain_hook, hook = (KINDS[kind](model.get_submodule("blocks.1")) for model in (plain, planned))
    hooked = trained(copy.deepcopy(plain), sample)
    assert differences(hooked, expected), "the hook does something"
    initial = copy.deepcopy(planned.state_dict())
    assert differences(trained(planned, sample), hooked) == []
    assert recomputes(planned)
    _start_again(planned, initial)
    fit_to(planned, sample, "60 %")
    assert recomputes(planned)
    assert differences(trained(planned, sample), hooked) == []
    hook.remove()
    plain_hook.remove()
    _start_again(planned, initial)
    assert differences(trained(planned, sample), expected) == []
    assert recomputes(planned)


def _start_again(model: nn.Module, initial: dict[str, torch.Tensor]) -> None:
    model.load_state_dict(initial)
    model.zero_grad()


def test_hooks_that_count_on_a_parameter() -> None:
    """As those of opacus do."""
    layers: list[Any] = [nn.Linear(8, 8) for _ in range(3)]

    def count(module: Any, *_: object) -> None:
        module.weight.calls += 1
        module.weight.seen.append(module)

    for layer in layers:
        layer.weight.calls, layer.weight.seen = 0, []
        layer.register_forward_hook(count)
    model, batch = nn.Sequential(*layers), torch.randn(4, 8)
    chainstay.fit(model, (batch,), budget="100%", progress=False)
    assert [(layer.weight.calls, layer.weight.seen) for layer in layers] == [(0, [])] * 3
    model(batch).sum().backward()
    assert [(layer.weight.calls, layer.weight.seen) for layer in layers] == [
        (1, [layer]) for layer in layers
    ]


@pytest.mark.long
def test_a_global_hook_that_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """TorchDynamo traces each call again, as the number differs: that is told, once."""
    calls: list[int] = []
    counts = [0]

    def count(*_: object) -> None:
        counts[0] += 1

    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.GELU()) for _ in range(4)))
    chainstay.fit(model, budget="80%", repeats=1)
    hook = nn.modules.module.register_module_forward_hook(count)
    try:
        for _ in range(7):
            model(torch.randn(8, 16)).mean().backward()
            calls.append(counts[0])
    finally:
        hook.remove()
    assert calls == [13 * number for number in range(1, 8)]
    assert capsys.readouterr().err.count("the last 4 calls of Sequential were each traced") == 1


def test_calls_that_are_traced_again_now_and_then_are_not_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Tagged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))
            self.tag = ""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert self.tag in "abcdef"
            output: torch.Tensor = self.layers(x)
            return output

    model = chainstay.fit(Tagged(), budget="100%", repeats=1)
    for tag in "aabbccddeeff":
        model.tag = tag
        model(torch.randn(8, 16)).mean().backward()
    assert len(shown(model).plans) == 1
    assert "traced again" not in capsys.readouterr().err
