"""Threads that train at the same time, each its own model or all the same one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial

import pytest

from fault_threads import in_threads, inconsistent_steps, planned_products

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


def test_the_check_tells_dropout_of_one_step_from_that_of_another() -> None:
    """Gradients of one forward are not those of the next."""
    model = planned_products()
    assert inconsistent_steps(model, 3, swaps=True) == 3
