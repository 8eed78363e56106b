"""The same promises on a CUDA device: equal bits, and a peak that the prediction covers."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import chainstay
from chainstay.runtime import measure, trace_memory
from chainstay.runtime.devices.device_memory import free_bytes
from chainstay.validation.simulate import simulate
from cuda_support import deterministic, no_synchronisation  # noqa: F401  # a fixture
from models import gpt2, resnet50
from runtime_support import some_schedules, train
from zoo import build, loss_of

# cuBLAS reads it once, when it is first used, whichever test that is.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # Autograd's own thread meets cuBLAS first in some backwards; torch then helps itself.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

SCHEDULES = ("keep all", "5 segments", "random 0", "drop everything", "inputs gone")


def three_steps(model: torch.nn.Module, step: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """All that training leaves behind: losses, gradients, parameters, buffers, random states."""
    torch.manual_seed(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    left = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = step()
        loss.backward()
        optimizer.step()
        left.append(loss.detach())
    left += [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]
    left += [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]
    return [*left, torch.get_rng_state(), torch.cuda.get_rng_state()]


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("name", SCHEDULES)
def test_gpt2_is_equal_bit_for_bit(name: str) -> None:
    torch.manual_seed(0)
    model = gpt2(width=192, vocabulary=1000, context=64).cuda()
    tokens = torch.randint(0, 1000, (2, 64), device="cuda")
    following = torch.randint(0, 1000, (128,), device="cuda")

    def loss(scores: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(scores.flatten(0, 1), following)

    measured = measure(model, tokens, loss=loss, repeats=1)
    schedule = some_schedules(len(measured.profile))[name]
    planned = copy.deepcopy(measured.planned(schedule))
    assert train(planned, tokens, loss).differences(train(model, tokens, loss)) == []
    random_state = torch.cuda.get_rng_state()
    train(planned, tokens, loss)
    assert torch.equal(torch.cuda.get_rng_state(), random_state)


@pytest.mark.parametrize("name", SCHEDULES)
def test_prediction_covers_the_allocators_peak(name: str) -> None:
    torch.manual_seed(0)
    model = resnet50().cuda()
    images = torch.randn(8, 3, 128, 128, device="cuda")
    classes = torch.randint(0, 1000, (8,), device="cuda")

    def step() -> None:
        functional.cross_entropy(planned(images), classes).backward()

    measured = measure(
        model, images, loss=lambda scores: functional.cross_entropy(scores, classes), repeats=1
    )
    schedule = some_schedules(len(measured.profile))[name]
    planned = measured.planned(schedule)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    step()
    trace = trace_memory(step, "cuda")
    assert (
        trace.peak_bytes + images.nbytes
        <= simulate(measured.profile, schedule, discards="free").peak_bytes
    )


@pytest.mark.parametrize("share", [0.8, 0.5, 0.0])
@pytest.mark.parametrize("network", ["ResNet-50", "GPT-2"])
def test_a_plan_stays_within_its_budget(network: str, share: float) -> None:
    torch.manual_seed(0)
    if network == "GPT-2":
        model, batch = gpt2(width=192, vocabulary=1000, context=256), torch.ones(4, 256).long()
    else:
        model, batch = resnet50(), torch.randn(8, 3, 128, 128)
    model, batch = model.cuda(), batch.cuda()
    measured = measure(model, batch, loss=lambda scores: scores.square().mean(), repeats=1)
    plain = simulate(
        measured.profile, chainstay.Schedule.keep_all(len(measured.profile))
    ).peak_bytes
    budget = max(int(share * plain), chainstay.least_budget(measured.profile))
    planned = measured.planned(chainstay.solve_chain(measured.profile, budget, chainstay.DP()))

    def step() -> None:
        planned(batch).square().mean().backward()

    step()
    assert trace_memory(step, "cuda").peak_bytes + batch.nbytes <= budget


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_planned_step_never_waits_for_the_device(name: str) -> None:
    torch.manual_seed(0)
    model = resnet50().cuda()
    model.append(torch.nn.Dropout(0.1))  # beside batch norms: buffers and random states
    images = torch.randn(4, 3, 64, 64, device="cuda")
    measured = measure(model, images, loss=lambda scores: scores.square().mean(), repeats=1)
    planned = measured.planned(some_schedules(len(measured.profile))[name])
    for forward in (model, planned):  # the plain one shows that the loss does not wait, either
        forward(images).square().mean().backward()
        with no_synchronisation():
            forward(images).square().mean().backward()


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_a_fitted_step_never_waits_for_the_device(share: float) -> None:
    sample = build("U-Net")
    model, image = sample.model.cuda(), sample.args[0].cuda()
    chainstay.fit(
        model, (image,), budget=share, loss=lambda output: output.square().mean(), repeats=1
    )
    model(image).square().mean().backward()
    with no_synchronisation():
        model(image).square().mean().backward()


def test_waiting_for_the_device_is_noticed() -> None:
    with pytest.raises(RuntimeError, match="synchroniz"), no_synchronisation():
        torch.ones(1, device="cuda").item()


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("share", [1.0, 0.7, 0.5])
@pytest.mark.parametrize("family", ["U-Net", "DenseNet-121", "GPT-2", "T5"])
def test_fitted_models_are_equal_and_within_their_budget(family: str, share: float) -> None:
    sample = build(family)
    model, args = sample.model.cuda(), tuple(tensor.cuda() for tensor in sample.args)
    kwargs = {name: tensor.cuda() for name, tensor in sample.kwargs.items()}

    def loss() -> torch.Tensor:
        return loss_of(model(*args, **kwargs))

    def step() -> None:
        output = model(*args, **kwargs)
        loss_of(output).backward()

    initial = {name: value.clone() for name, value in model.state_dict().items()}
    expected = three_steps(model, loss)
    model.load_state_dict(initial)
    try:
        chainstay.fit(model, args, kwargs, budget=share, loss=loss_of, repeats=1)
    except chainstay.InfeasibleBudgetError as error:
        chainstay.fit(model, args, kwargs, budget=error.required, loss=loss_of, repeats=1)
    assert all(map(torch.equal, three_steps(model, loss), expected))
    inputs = sum(tensor.nbytes for tensor in (*args, *kwargs.values()))
    peak = trace_memory(step, "cuda").peak_bytes + inputs
    assert peak <= model.chainstay.solution.budget  # type: ignore[union-attr]


def test_a_budget_of_what_is_free_leaves_a_margin() -> None:
    model = torch.nn.Linear(1024, 1024).cuda()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # what tests before this one left counts as free
    free = torch.cuda.mem_get_info()[0]
    assert 0.9 * free < free_bytes(model, 0) < free
    assert free_bytes(model, 0) - free_bytes(model, 2**20) == pytest.approx(0.95 * 2**20, abs=2)
    with pytest.raises(chainstay.InvalidBudgetError, match="nothing is left, so free some memory"):
        free_bytes(model, 2**60)
