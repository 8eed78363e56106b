"""The same promises on a CUDA device: equal bits, and a peak that the prediction covers."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from models import gpt2, resnet50
from runtime_support import some_schedules, train
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from chainstay.runtime import measure, trace_memory
from chainstay.validation.simulate import simulate

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
