"""A fitted model trains bit for bit as a plain one, whatever the training loop does with it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from training_conditions import (
    BLOCKS_IN_PART,
    IN_PART,
    SUBJECTS,
    Sample,
    differences,
    pair,
    plain_step,
    require_equal,
    trained,
)

pytestmark = pytest.mark.usefixtures("equal_times")


def accumulate(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
    """Gradients of three forwards are added up."""
    optimizer.zero_grad()
    losses = []
    for _ in range(3):
        losses.append(sample.loss(model))
        losses[-1].backward()
    optimizer.step()
    return torch.stack(losses)


def forwards_first(
    model: nn.Module, sample: Sample, optimizer: Optimizer, *, turned: bool
) -> torch.Tensor:
    """Two graphs live at a time; the later may go first."""
    optimizer.zero_grad()
    losses = [sample.loss(model), sample.loss(model)]
    for loss in reversed(losses) if turned else losses:
        loss.backward()
    optimizer.step()
    return torch.stack(losses)


def one_backward_of_two(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
    """Autograd walks through two graphs in one go."""
    optimizer.zero_grad()
    loss = sample.loss(model) + 3 * sample.loss(model)
    loss.backward()
    optimizer.step()
    return loss


def twice_backward(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
    """The graph is kept and used again."""
    optimizer.zero_grad()
    loss = sample.loss(model)
    loss.backward(retain_graph=True)
    (2 * loss).backward()
    optimizer.step()
    return loss


def of_some_parameters(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
    """Only parts of the graph are walked, front and back, before all of it is."""
    optimizer.zero_grad()
    loss = sample.loss(model)
    parameters = list(model.parameters())
    ends = [parameters[0], parameters[-1], parameters[len(parameters) // 2]]
    found = [torch.autograd.grad(loss, end, retain_graph=True)[0] for end in ends]
    loss.backward()
    for end, gradient in zip(ends, found, strict=True):
        assert end.grad is not None
        end.grad += gradient
    optimizer.step()
    return loss


def with_autograd_grad(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
    """Gradients are returned, not accumulated."""
    loss = sample.loss(model)
    parameters = list(model.parameters())
    gradients = torch.autograd.grad(loss, parameters)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()
    return loss


def penalized(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
    """The loss has the norm of a gradient in it: autograd walks through a backward."""
    optimizer.zero_grad()
    loss = sample.loss(model)
    gradients = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
    loss = loss + 1e-4 * sum(gradient.square().sum() for gradient in gradients)
    loss.backward()
    optimizer.step()
    return loss


def clipped(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
    """By their common norm."""
    optimizer.zero_grad()
    loss = sample.loss(model)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1, foreach=True)
    optimizer.step()
    return torch.stack([loss.detach(), norm])


def scaled(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
    """By a gradient scaler."""
    optimizer.zero_grad()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    loss = sample.loss(model)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    return loss


def unused_forwards(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
    """Some without a backward, one without gradients."""
    dropped = sample.loss(model)
    with torch.no_grad():
        looked_at = sample.loss(model)
    return torch.stack([plain_step(model, sample, optimizer), dropped, looked_at])


def evaluated_between(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
    """As most loops do; also between forward and backward."""
    with torch.no_grad():
        before = sample.loss(model.eval())
    optimizer.zero_grad()
    loss = sample.loss(model.train())
    with torch.no_grad():
        between = sample.loss(model)
    loss.backward()
    optimizer.step()
    return torch.stack([loss, before, between])


def evaluating_with_gradients(
    model: nn.Module, sample: Sample, optimizer: Optimizer
) -> torch.Tensor:
    """A step in evaluation mode in between, as for adversarial examples."""
    before = plain_step(model.eval(), sample, optimizer)
    return torch.stack([before, plain_step(model.train(), sample, optimizer)])


def gradients_kept(model: nn.Module, sample: Sample, optimizer: Optimizer) -> torch.Tensor:
    """They are zeroed in place and never let go."""
    optimizer.zero_grad(set_to_none=False)
    loss = sample.loss(model)
    loss.backward()
    optimizer.step()
    return loss


STEPS: Final[tuple[Callable[[nn.Module, Sample, Optimizer], torch.Tensor], ...]] = (
    plain_step,
    accumulate,
    partial(forwards_first, turned=False),
    partial(forwards_first, turned=True),
    one_backward_of_two,
    twice_backward,
    of_some_parameters,
    with_autograd_grad,
    penalized,
    clipped,
    scaled,
    unused_forwards,
    evaluated_between,
    gradients_kept,
)


def name_of(step: Callable[..., torch.Tensor]) -> str:
    if isinstance(step, partial):
        return f"{step.func.__name__} {step.keywords}"
    return step.__name__


@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("step", [plain_step, twice_backward, penalized], ids=name_of)
def test_a_plan_that_keeps_all(
    step: Callable[[nn.Module, Sample, Optimizer], torch.Tensor], subject: str
) -> None:
    require_equal(subject, "all", step)


@pytest.mark.parametrize("share", ["60 %", "least", IN_PART, BLOCKS_IN_PART])
@pytest.mark.parametrize("subject", SUBJECTS)
@pytest.mark.parametrize("step", STEPS, ids=name_of)
def test_any_loop_trains_as_it_did(
    step: Callable[[nn.Module, Sample, Optimizer], torch.Tensor], subject: str, share: str
) -> None:
    require_equal(subject, share, step)


@pytest.mark.long
@pytest.mark.parametrize("subject", SUBJECTS)
def test_gradients_in_evaluation_mode_get_a_plan_of_their_own(subject: str) -> None:
    planned = require_equal(subject, "least", evaluating_with_gradients, plans_there=True)
    assert len(planned.chainstay.plans) == 2  # type: ignore[union-attr, arg-type]


@pytest.mark.long
@pytest.mark.parametrize(
    "make_optimizer",
    [
        lambda model: torch.optim.AdamW(model.parameters(), foreach=True),
        lambda model: torch.optim.AdamW(model.parameters(), fused=True),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True),
    ],
    ids=["AdamW foreach", "AdamW fused", "SGD foreach"],
)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_any_optimizer_trains_as_it_did(
    make_optimizer: Callable[[nn.Module], Optimizer], subject: str
) -> None:
    require_equal(subject, "least", make_optimizer=make_optimizer)


@pytest.mark.long
@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_comparison_is_sharp(subject: str) -> None:
    """Other random numbers would be found out in every quantity that is compared."""
    plain, planned, sample = pair(subject, "least")
    found = differences(trained(plain, sample), trained(planned, sample, seed=8))
    kinds = {name.split()[0] for name in found}
    assert kinds >= {"loss", "gradient", "parameter", "random"}
