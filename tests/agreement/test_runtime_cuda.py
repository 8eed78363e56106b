"""The same promises on a CUDA device: equal bits, and a peak that the prediction covers."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import chainstay
from chainstay.runtime import measure, trace_memory
from chainstay.runtime.device_memory import free_bytes
from chainstay.validation.simulate import simulate
from models import gpt2, resnet50
from runtime_support import some_schedules, train
from zoo import build, loss_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SCHEDULES = ("keep all", "5 segments", "random 0", "drop everything", "inputs gone")


@pytest.fixture
def _deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(mode=True)
    with sdpa_kernel(SDPBackend.MATH):  # the other backends have no deterministic backward
        yield
    torch.use_deterministic_algorithms(mode=False)


@pytest.mark.usefixtures("_deterministic")
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


@pytest.mark.usefixtures("_deterministic")
@pytest.mark.parametrize("share", [1.0, 0.7, 0.5])
@pytest.mark.parametrize("family", ["U-Net", "DenseNet-121", "GPT-2", "T5"])
def test_fitted_models_are_equal_and_within_their_budget(family: str, share: float) -> None:
    sample = build(family)
    model, args = sample.model.cuda(), tuple(each.cuda() for each in sample.args)
    kwargs = {name: each.cuda() for name, each in sample.kwargs.items()}

    def step() -> list[torch.Tensor]:
        torch.manual_seed(5)
        model.zero_grad(set_to_none=False)
        output = model(*args, **kwargs)
        loss = loss_of(output)
        loss.backward()
        return [
            loss.detach(),
            *(each.grad.clone() for each in model.parameters() if each.grad is not None),
        ]

    def quiet_step() -> None:
        output = model(*args, **kwargs)
        loss_of(output).backward()

    step()
    initial = {name: each.clone() for name, each in model.state_dict().items()}
    expected = step()
    model.load_state_dict(initial)
    try:
        chainstay.fit(model, args, kwargs, budget=share, loss=loss_of, repeats=1)
    except chainstay.InfeasibleBudgetError as error:
        chainstay.fit(model, args, kwargs, budget=error.required, loss=loss_of, repeats=1)
    assert all(map(torch.equal, step(), expected))
    inputs = sum(each.nbytes for each in (*args, *kwargs.values()))
    peak = trace_memory(quiet_step, "cuda").peak_bytes + inputs
    assert peak <= model.chainstay.solution.budget  # type: ignore[union-attr]


def test_a_budget_of_what_is_free_leaves_a_margin() -> None:
    model = torch.nn.Linear(1024, 1024).cuda()
    free = torch.cuda.mem_get_info()[0]
    assert 0.9 * free < free_bytes(model, 0) < free
    assert free_bytes(model, 0) - free_bytes(model, 2**20) == pytest.approx(0.95 * 2**20, abs=2)
    with pytest.raises(chainstay.InvalidBudgetError, match="nothing is left, so free some memory"):
        free_bytes(model, 2**60)
