"""Threads that train at the same time, each its own model or all the same one."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from threading import Barrier, BrokenBarrierError, Event, Thread
from typing import Any, cast

import pytest
import torch
from torch import fx, nn

from chainstay.runtime.execute.repeatable import OperatorLog
from chainstay.runtime.measures.measured import measuring
from fault_threads import in_threads, inconsistent_steps, planned_products
from torch_release import IS_TORCH_2_6

_STEPS = 25


@pytest.fixture(autouse=True)
def _many_switches() -> Iterator[None]:
    """Threads take turns after microseconds, so that whatever can go wrong does."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.mark.long
def test_two_threads_that_train_two_models() -> None:
    """A third of all steps had the dropout of the other thread in their gradients once."""
    models = [planned_products() for _ in range(2)]
    assert in_threads([partial(inconsistent_steps, model, _STEPS) for model in models]) == [0, 0]


def test_two_threads_that_train_the_same_model() -> None:
    """No count in a buffer is lost, either."""
    model = planned_products()
    before = [int(buffer) for buffer in model.buffers()]
    assert in_threads([partial(inconsistent_steps, model, _STEPS)] * 2) == [0, 0]
    assert [int(buffer) for buffer in model.buffers()] == [n + 2 * _STEPS for n in before]


@pytest.mark.long
def test_two_threads_that_plan_compiled_models() -> None:
    """The profiler of one thread was ended by the other, and the process with it."""

    def gradients(model: nn.Module) -> list[torch.Tensor]:
        model(torch.ones(8, 16)).square().sum().backward()
        return [cast("torch.Tensor", parameter.grad) for parameter in model.parameters()]

    layers = [nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16)) for _ in range(8)]
    plain = nn.Sequential(*layers)
    planned: list[Any] = [
        torch.compile(copy.deepcopy(plain), backend="chainstay", options={"budget": "80%"})
        for _ in range(2)
    ]
    expected = gradients(plain)
    for found in in_threads([partial(gradients, model) for model in planned]):
        assert isinstance(found, list), found
        assert all(map(torch.equal, found, expected))


def test_one_thread_measures_at_a_time() -> None:
    """Two of them, each with a profiler of its own, ended the process."""
    both = Barrier(2)

    def meet() -> None:
        with measuring(torch.device("cpu")), suppress(BrokenBarrierError):
            both.wait(0.3)

    assert in_threads([meet] * 2) == [None] * 2
    assert both.broken  # the first one waited in vain


def test_the_check_tells_dropout_of_one_step_from_that_of_another() -> None:
    """Gradients of one forward are not those of the next."""
    model = planned_products()
    assert inconsistent_steps(model, 3, swaps=True) == 3


@pytest.mark.skipif(
    IS_TORCH_2_6,
    reason="torch 2.6 compiles nothing after modes of two threads overlapped, whosever they are",
)
def test_looks_at_kernels_that_overlap_leave_torch_compile_as_it_was() -> None:
    """torch has one stance for all threads; the second look put back what the first had set."""

    def look(begun: Event, may_end: Event) -> None:
        with OperatorLog():
            begun.set()
            assert may_end.wait(60)

    events = [(Event(), Event()) for _ in range(2)]
    threads = [Thread(target=look, args=pair) for pair in events]
    for thread, (begun, _) in zip(threads, events, strict=True):
        thread.start()
        assert begun.wait(60)
    for thread, (_, may_end) in zip(threads, events, strict=True):
        may_end.set()
        thread.join()
    compiled: list[fx.GraphModule] = []

    def backend(graph: fx.GraphModule, _: object) -> Any:
        compiled.append(graph)
        return graph.forward

    torch.compile(lambda x: x.square(), backend=backend)(torch.ones(2))
    assert compiled
