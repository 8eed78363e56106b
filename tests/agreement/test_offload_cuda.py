"""Transfers on a CUDA device: equal bits, the allocator's peak, and no time lost."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import chainstay
from chainstay.problems.offload import OffloadSolution
from chainstay.runtime import MeasuredChain, measure, trace_memory
from chainstay.runtime.transfer import measure_link
from chainstay.runtime.transfer.stream_engine import StreamEngine
from chainstay.solve.offload import solve_offload
from cuda_support import deterministic, no_synchronisation  # noqa: F401  # a fixture
from models import gpt2, resnet50
from runtime_support import train

# cuBLAS reads it once, when it is first used, whichever test that is.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    # Autograd's own thread meets cuBLAS first in some backwards; torch then helps itself.
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS"),
]

Loss = Callable[[torch.Tensor], torch.Tensor]


def subject(network: str, size: int) -> tuple[torch.nn.Sequential, torch.Tensor, Loss]:
    """A network on the device, a batch of `size` and a loss."""
    torch.manual_seed(0)
    if network == "GPT-2":
        model = gpt2(width=384, heads=6, vocabulary=1000, context=256).cuda()
        tokens = torch.randint(0, 1000, (size, 256), device="cuda")
        following = torch.randint(0, 1000, (size * 256,), device="cuda")
        return (
            model,
            tokens,
            lambda scores: functional.cross_entropy(scores.flatten(0, 1), following),
        )
    model = resnet50().cuda()
    images = torch.randn(size, 3, 128, 128, device="cuda")
    classes = torch.randint(0, 1000, (size,), device="cuda")
    return model, images, lambda scores: functional.cross_entropy(scores, classes)


def solved(measured: MeasuredChain, tenths: int) -> OffloadSolution:
    profile = measured.offload_profile
    least = profile.required_bytes
    budget = least + (profile.peak_bytes - least) * tenths // 10
    return solve_offload(profile, budget, link=measure_link("cuda"), method="heuristics")


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("tenths", range(10))
@pytest.mark.parametrize("network", ["ResNet-50", "GPT-2"])
def test_equal_bit_for_bit_and_within_the_budget(network: str, tenths: int) -> None:
    model, batch, loss = subject(network, 4)
    measured = measure(model, batch, loss=loss, repeats=1)
    solution = solved(measured, tenths)
    chain = measured.planned(solution)
    expected = train(copy.deepcopy(model), batch, loss)
    assert train(copy.deepcopy(chain), batch, loss).differences(expected) == []
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step() -> None:
        output = chain(batch)
        loss(output).backward()

    step()
    step()
    trace = trace_memory(step, "cuda")
    assert trace.peak_bytes + batch.nbytes <= solution.budget
    chain.close()


@pytest.mark.parametrize("network", ["ResNet-50", "GPT-2"])
def test_a_step_never_waits_for_the_device(network: str) -> None:
    model, batch, loss = subject(network, 4)
    measured = measure(model, batch, loss=loss, repeats=1)
    chain = measured.planned(solved(measured, 2))
    for _ in range(2):  # the second finds its pinned memory
        loss(chain(batch)).backward()
    with no_synchronisation():
        loss(chain(batch)).backward()
    chain.close()


def least_ns(step: Callable[[], None]) -> int:
    for _ in range(3):
        step()
    times = []
    for _ in range(10):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - begin)
    return min(times)


def test_transfers_overlap_and_beat_save_on_cpu() -> None:
    model, batch, loss = subject("GPT-2", 64)
    measured = measure(model, batch, loss=loss)
    solution = solved(measured, 5)
    chain = measured.planned(solution)

    def planned() -> None:
        loss(chain(batch)).backward()

    def saved_on_cpu() -> None:
        with torch.autograd.graph.save_on_cpu(pin_memory=True):
            loss(model(batch)).backward()

    took = least_ns(planned)
    assert took <= 1.15 * solution.makespan
    assert took < least_ns(saved_on_cpu)
    chain.close()


def test_two_hundred_steps_leave_nothing() -> None:
    model, batch, loss = subject("GPT-2", 2)
    measured = measure(model, batch, loss=loss, repeats=1)
    engine = StreamEngine(torch.device("cuda"))
    chain = measured.planned(solved(measured, 0), engine=engine)

    def census() -> tuple[int, int, int]:
        torch.cuda.synchronize()
        pool = engine.pool
        return torch.cuda.memory_allocated(), pool.allocated_bytes, pool.used_bytes

    for _ in range(3):
        loss(chain(batch)).backward()
    before = census()
    for _ in range(200):
        loss(chain(batch)).backward()
    assert census() == before
    assert before[2] == 0
    output = chain(batch)  # and no backward
    del output
    assert census()[0] == before[0]
    assert engine.pool.used_bytes == 0
    chain.close()
    assert engine.pool.allocated_bytes == 0


def test_links_are_measured() -> None:
    link = measure_link("cuda")
    assert 1 <= link.bandwidth <= 1000, "GB/s"
    assert link.latency <= 1_000_000, "ns"


def test_fit_offloads() -> None:
    model, batch, loss = subject("ResNet-50", 4)
    chainstay.fit(model, (batch,), budget=0.7, loss=loss, offload=True, recompute=False, repeats=1)
    loss(model(batch)).backward()
    chainstay.unfit(model)
