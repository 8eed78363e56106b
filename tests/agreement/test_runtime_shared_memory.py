"""What stages share, at the least budget: tied gradients and autocast's copies of weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import chainstay
from chainstay import Skip
from chainstay.runtime import PlannedChain, measure, trace_memory
from chainstay.validation.simulate import simulate
from runtime_support import some_schedules

Loss = Callable[[torch.Tensor], torch.Tensor]
Case = tuple[nn.Sequential, torch.Tensor, Loss]


class Block(nn.Module):
    """A residual block of two linear layers."""

    def __init__(self, width: int = 64, hidden: int = 256) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = activation + self.down(self.up(activation).tanh())
        return total


def square(output: torch.Tensor) -> torch.Tensor:
    return output.float().square().mean()


def linear_five_times() -> Case:
    linear = nn.Linear(64, 64)
    layers = [layer for _ in range(5) for layer in (linear, nn.Tanh())]
    return nn.Sequential(*layers), torch.randn(32, 64), square


def block_at_both_ends() -> Case:
    block = Block()
    return nn.Sequential(block, Block(), Block(), Block(), block), torch.randn(32, 64), square


def head_tied_to_embedding() -> Case:
    embedding, head = nn.Embedding(5000, 64), nn.Linear(64, 5000, bias=False)  # above 1 MiB
    head.weight = embedding.weight
    tokens, following = torch.randint(0, 5000, (4, 8)), torch.randint(0, 5000, (32,))

    def loss(scores: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(scores.flatten(0, 1), following)

    return nn.Sequential(embedding, Block(), Block(), Block(), head), tokens, loss


def tied_in_the_middle() -> Case:
    block = Block(hidden=1024)
    return nn.Sequential(Block(), block, Block(), block, Block()), torch.randn(32, 64), square


def weight_decay_in_the_loss() -> Case:
    model = nn.Sequential(*(Block() for _ in range(4)))

    def loss(output: torch.Tensor) -> torch.Tensor:
        return square(output) + model.get_parameter("1.up.weight").square().sum()

    return model, torch.randn(32, 64), loss


def blocks() -> Case:
    return nn.Sequential(*(Block() for _ in range(6))), torch.randn(32, 64), square


def convolutions() -> Case:
    layers = [
        nn.Sequential(nn.Conv2d(8, 32, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(32, 8, 1))
        for _ in range(5)
    ]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 4)), torch.randn(4, 8, 8, 8), square


def convolutions_with_input_gradient() -> Case:
    model, batch, loss = convolutions()
    return model, batch.requires_grad_(), loss


class Busy(nn.Module):
    """Needs most memory in its forward, after the low-precision copy of its input has gone.

    A frozen layer does not save that copy, so that the peak of a kept run does not hide it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16).requires_grad_(requires_grad=False)

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.linear(activation).float()
        with torch.no_grad():
            scale = output.repeat(1, 6).exp().mean()
        return output * scale


def busy_forwards() -> Case:
    return (
        nn.Sequential(nn.Linear(16, 16), *(Busy() for _ in range(5))),
        torch.randn(512, 16),
        square,
    )


Surroundings = Callable[[], AbstractContextManager[object]]
PLAIN: Surroundings = nullcontext
AUTOCAST: Surroundings = partial(torch.autocast, "cpu", dtype=torch.bfloat16)


def peak_of_a_step(
    planned: PlannedChain, batch: torch.Tensor, loss: Loss, near: Surroundings
) -> int:
    """Measured peak in bytes, the batch included; gradients exist beforehand."""

    def step() -> None:
        with near():
            output = planned(batch)
            value = loss(output)
        value.backward()

    for tensor in (batch, *planned.parameters()):
        tensor.grad = torch.zeros_like(tensor) if tensor.requires_grad else None
    step()
    return trace_memory(step, "cpu").peak_bytes + batch.nbytes


TIED = (
    linear_five_times,
    block_at_both_ends,
    head_tied_to_embedding,
    tied_in_the_middle,
    weight_decay_in_the_loss,
)

UNTIED = (blocks, busy_forwards, convolutions, convolutions_with_input_gradient)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "near"),
    [
        *((make, PLAIN) for make in (*TIED, blocks)),
        *((make, AUTOCAST) for make in (*TIED, *UNTIED)),
    ],
)
def test_prediction_covers_the_peak(make: Callable[[], Case], near: Surroundings) -> None:
    torch.manual_seed(0)
    model, batch, loss = make()
    with near():
        measured = measure(model, batch, loss=loss, repeats=1)
    least = chainstay.least_budget(measured.profile)
    solution = chainstay.solve_chain(measured.profile, least, method="dp")
    found = {"least budget": (solution.peak_bytes, measured.planned(solution))}
    for name, schedule in some_schedules(len(measured.profile)).items():
        predicted = simulate(measured.profile, schedule, discards="free").peak_bytes
        found[name] = (predicted, measured.planned(schedule))
    exceeded = {
        name: (peak, predicted)
        for name, (predicted, planned) in found.items()
        if (peak := peak_of_a_step(planned, batch, loss, near)) > predicted
    }
    assert exceeded == {}


def residuals_that_share_weights() -> Case:
    linear = nn.Linear(64, 64)
    return nn.Sequential(*(Residual(linear) for _ in range(6))), torch.randn(256, 64), square


def residuals() -> Case:
    layers = (Residual(nn.Linear(64, 64)) for _ in range(6))
    return nn.Sequential(*layers), torch.randn(256, 64), square


class Residual(nn.Module):
    """The sum that it gives is saved by nobody but the next one."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = activation + self.linear(activation).tanh()
        return total


@pytest.mark.parametrize(
    "make",
    [
        block_at_both_ends,
        head_tied_to_embedding,
        tied_in_the_middle,
        weight_decay_in_the_loss,
        residuals,
        residuals_that_share_weights,
    ],
)
@pytest.mark.parametrize("share", [0, 0.4, 0.8, 1])
def test_a_predicted_peak_is_the_measured_one(make: Callable[[], Case], share: float) -> None:
    """Weights of several stages have one gradient: from its first summand to its last.

    Schedules are persistent. Under free discards a stage may stay kept for long after the next one
    has gone backwards: the model counts its output for all that time, and the runtime frees it.
    """
    torch.manual_seed(0)
    model, batch, loss = make()
    measured = measure(model, batch, loss=loss, repeats=1)
    plain = chainstay.solve_measured(measured, "100%", method="dp")
    with pytest.raises(chainstay.InfeasibleBudgetError) as caught:
        chainstay.solve_measured(measured, 1, method="dp")
    least = caught.value.required
    budget = least + int(share * (plain.budget - least))
    solution = chainstay.solve_measured(measured, budget, method="dp")
    peak = peak_of_a_step(measured.planned(solution), batch, loss, PLAIN)
    assert peak <= solution.peak_bytes <= 1.001 * peak


def test_plain_training_under_autocast_needs_what_is_predicted() -> None:
    """Copies stand through the step, of the weights that autocast casts: not of an embedding's."""
    torch.manual_seed(0)
    layers = (Block(32, 128) for _ in range(4))
    model = nn.Sequential(nn.Embedding(1000, 32), *layers, nn.LayerNorm(32), nn.Linear(32, 4))
    tokens = torch.randint(0, 1000, (8, 16))
    with AUTOCAST():
        measured = measure(model, tokens, loss=square, repeats=1)
    solution = chainstay.solve_measured(measured, "100%")
    planned = measured.planned(solution)

    def step() -> None:
        with AUTOCAST():
            output = planned(tokens)
            square(output).backward()

    for parameter in planned.parameters():
        parameter.grad = torch.zeros_like(parameter)
    step()
    scalars = 16
    peak = trace_memory(step, "cpu").peak_bytes + tokens.nbytes
    assert peak <= solution.peak_bytes <= peak + scalars


def test_a_gradient_of_several_stages_waits_beside_those_between_them() -> None:
    """Two models differ in nothing but that two stages share their weights."""
    apart = nn.Sequential(*(nn.Linear(64, 64, bias=False) for _ in range(5)))
    tied = nn.Sequential(*apart)
    tied[3] = tied[1]
    batch = torch.randn(8, 64)
    before, after = (
        measure(model, batch, loss=torch.Tensor.mean, repeats=1).profile for model in (apart, tied)
    )
    size = 64 * 64 * 4
    assert before.skips == ()
    assert after.skips == (Skip(first=2, last=3, bytes=0, gradient_bytes=size),)
    pairs = list(zip(before.stages, after.stages, strict=True))
    assert [new.gradient_bytes - old.gradient_bytes for old, new in pairs] == [
        *(0, size, size, 0),
        *(0, 0),
    ]
    assert all(new.forward_overhead_bytes == old.forward_overhead_bytes for old, new in pairs)
    overheads = [new.backward_overhead_bytes - old.backward_overhead_bytes for old, new in pairs]
    # Stage 1 makes the sum beside both summands, for the first is a view; the gradient that it was
    # sent is gone by then. Stage 3 has nothing to add to, and its gradient is the one that waits.
    assert overheads == [0, size - batch.nbytes, 0, -size, 0, 0]


@pytest.mark.parametrize("recomputes", [False, True])
def test_the_gradient_of_a_large_tied_weight_is_summed_in_place(*, recomputes: bool) -> None:
    """Plain training has a third copy of it where the embedding's is added to the head's."""
    torch.manual_seed(0)
    model, batch, loss = head_tied_to_embedding()
    weight = model.get_parameter("0.weight")
    measured = measure(model, batch, loss=loss, repeats=1)
    schedules = some_schedules(len(measured.profile))
    planned = measured.planned(schedules["drop everything" if recomputes else "keep all"])
    gradients: dict[str, list[torch.Tensor]] = {}
    peaks: dict[str, int] = {}
    for name, run in (("plain", model), ("planned", planned)):

        def step() -> None:
            loss(run(batch)).backward()  # noqa: B023  # called at once

        model.zero_grad()
        step()
        first = weight.grad
        assert first is not None
        gradients[name] = [first.clone()]
        peaks[name] = trace_memory(step, "cpu").peak_bytes  # adds to the gradient that is there
        gradients[name].append(first)
    pairs = zip(gradients["plain"], gradients["planned"], strict=True)
    assert all(torch.equal(plain, own) for plain, own in pairs)
    assert peaks["plain"] - peaks["planned"] > 0.9 * weight.nbytes


class Shift(nn.Module):
    """Its graph saves nothing; its output is gone when it runs backward."""

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        return activation + 1


def test_a_backward_may_need_less_than_what_its_stage_saved() -> None:
    """The output that the caller holds is no larger than the one that has gone."""
    batch = torch.randn(256, 64)
    model = nn.Sequential(nn.Linear(64, 64), Shift(), nn.Linear(64, 64))
    measured = measure(model, batch, loss=torch.Tensor.mean, repeats=1)
    _, shift, _, _ = measured.profile.stages
    assert shift.saved_bytes == batch.nbytes
    assert shift.backward_overhead_bytes < 100
