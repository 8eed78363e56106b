"""A fitted model trains bit for bit as a plain one in any mode: precision, memory format, frozen
parts, inputs that want gradients.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.flop_counter import FlopCounterMode

import chainstay
from training_conditions import (
    PLANS,
    SUBJECTS,
    Sample,
    differences,
    fit_to,
    pair,
    plain_step,
    require_equal,
    require_plan,
    shown,
    trained,
)

pytestmark = pytest.mark.usefixtures("equal_times")

each_subject = pytest.mark.parametrize("subject", SUBJECTS)
each_share = pytest.mark.parametrize("share", PLANS)


FIRST_STAGES: Final = {
    "transformer": ("blocks.0", "blocks.1"),  # the words before them are tied to the head
    "convolutional": ("enter", "blocks.0"),
    "layered": ("0.", "2.", "3.", "6."),
}


def under_autocast(
    model: nn.Module, sample: Sample, optimizer: Optimizer, *, has_cache: bool
) -> torch.Tensor:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=has_cache):
        loss = sample.loss(model)
    loss.backward()
    optimizer.step()
    return loss


def backward_under_autocast(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
    """Two forwards share autocast's copies of the weights, and so does the backward."""
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = [sample.loss(model), sample.loss(model)]
        for loss in losses:
            loss.backward()
    optimizer.step()
    return torch.stack(losses)


@each_share
@each_subject
@pytest.mark.parametrize("has_cache", [True, False], ids=["weights cached", "not cached"])
def test_autocast(subject: str, share: str, *, has_cache: bool) -> None:
    require_equal(subject, share, partial(under_autocast, has_cache=has_cache), plans_there=True)


@pytest.mark.long
@each_subject
def test_autocast_over_several_forwards_and_backwards(subject: str) -> None:
    require_equal(subject, "least", backward_under_autocast, plans_there=True)


@each_subject
def test_a_low_precision_model(subject: str) -> None:
    def to_low(model: nn.Module) -> None:
        model.to(torch.bfloat16)

    plain, planned, sample = pair(subject, "least")
    for model in (plain, planned):
        to_low(model)
    low = Sample(
        tuple(_low(tensor) for tensor in sample.args),
        {k: _low(v) for k, v in sample.kwargs.items()},
    )
    assert differences(trained(planned, low), trained(plain, low)) == []


def _low(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor


@each_share
@each_subject
def test_frozen_first_stages(subject: str, share: str) -> None:
    def freeze(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            if name.startswith(FIRST_STAGES[subject]):
                parameter.requires_grad = False

    require_equal(subject, share, prepare=freeze, plans_there=True)


@each_share
@pytest.mark.parametrize("subject", ["convolutional", "layered"])
def test_an_input_that_wants_a_gradient(subject: str, share: str) -> None:
    plain, planned, sample = pair(subject, share)
    found = []
    for model in (plain, planned):
        image = sample.args[0].clone().requires_grad_()
        record = trained(model, Sample((image,)))
        assert image.grad is not None
        found.append({**record, "input's gradient": image.grad})
    assert differences(found[1], found[0]) == []
    require_plan(planned, share)


@pytest.mark.long
@each_share
def test_nothing_but_the_input_wants_a_gradient(share: str) -> None:
    plain, planned, sample = pair("convolutional", share)
    found = []
    for model in (plain, planned):
        model.requires_grad_(requires_grad=False)
        image = sample.args[0].clone().requires_grad_()
        torch.manual_seed(3)
        loss = Sample((image,)).loss(model)
        found.append(torch.autograd.grad(loss, image)[0])
    assert torch.equal(*found)


@each_share
@pytest.mark.parametrize("weights", ["channels last", "contiguous"])
@pytest.mark.parametrize("fitted_on", ["channels last", "contiguous"])
def test_images_with_channels_last(share: str, weights: str, fitted_on: str) -> None:
    """Also when the sample lay otherwise in memory."""
    plain, _, sample = pair("convolutional", share)
    image = sample.args[0].to(memory_format=torch.channels_last)
    planned, _, _ = pair("convolutional", share)
    if weights == "channels last":
        for model in (plain, planned):
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as documented
    fit_to(planned, Sample((image,)) if fitted_on == "channels last" else sample, share)
    expected = trained(plain, Sample((image,)))
    assert differences(trained(planned, Sample((image,))), expected) == []


def test_a_sequential_with_a_forward_of_its_own() -> None:
    """Some libraries put one in front of the class's, for precision above all."""

    def wrap(model: nn.Module) -> None:
        forward = model.forward

        def in_low_precision(x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output: torch.Tensor = forward(x)
            return output.float()

        model.forward = in_low_precision

    plain, planned, sample = pair("layered", "all")
    planned = chainstay.unfit(planned)
    for model in (plain, planned):
        wrap(model)
    fit_to(planned, sample, "60 %")
    assert differences(trained(planned, sample), trained(plain, sample)) == []


@pytest.mark.long
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_forward_wrapped_after_fitting(subject: str) -> None:
    """What is around the fitted forward is not planned, only what is in it."""

    def wrap(model: nn.Module) -> None:
        forward = model.forward

        def in_low_precision(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return forward(*args, **kwargs)

        model.forward = in_low_precision

    require_equal(subject, "least", prepare=wrap, plans_there=True)


@each_subject
def test_evaluation_mode_with_gradients_all_along(subject: str) -> None:
    require_equal(subject, "least", prepare=nn.Module.eval, plans_there=True)


@pytest.mark.long
@each_subject
def test_parts_in_evaluation_mode(subject: str) -> None:
    """As in fine-tuning: BatchNorm and dropout of some layers stand still."""

    def freeze_statistics(model: nn.Module) -> None:
        for index, module in enumerate(model.modules()):
            if index % 2 and not list(module.children()):
                module.eval()

    require_equal(subject, "least", prepare=freeze_statistics, plans_there=True)


@pytest.mark.long
@each_subject
def test_a_part_unfrozen_on_the_way(subject: str) -> None:
    calls = {"count": 0}

    def unfreezing(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
        first = next(model.parameters())
        first.requires_grad = calls["count"] % 3 != 0
        calls["count"] += 1
        return plain_step(model, sample, optimizer)

    planned = require_equal(subject, "least", unfreezing, plans_there=True)
    assert len(shown(planned).plans) == 2


@pytest.mark.long
@pytest.mark.parametrize("subject", ["convolutional", "layered"])
def test_a_counter_of_operators_around_it(subject: str) -> None:
    """The first call within it makes a plan, which it does not count; other calls go by that.

    Its hooks on all modules cannot be traced, so this is for models that can go by blocks.
    """
    plain, planned, sample = pair(subject, "all")
    chainstay.fit(chainstay.unfit(planned), budget="100%")
    counts, records = [], []
    for model in (plain, planned):
        with FlopCounterMode(display=False) as counter:
            records.append(trained(model, sample))
        counts.append(counter.get_total_flops())
    assert differences(*records) == []
    assert counts[0] == counts[1] > 0
