"""Threads that train at the same time, and how to tell whether each got its own gradients.

All threads draw from one random generator, so that no run can be compared with another one. But
each output of `Products` is proportional to each of its weights: the product of a weight and its
gradient sums up to the loss, if and only if forward and backward had the same dropout.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import nn

import chainstay
from training_conditions import RECOMPUTING, SHARES, ShareOf

__all__ = ["Products", "in_threads", "inconsistent_steps", "planned_products"]

_BATCH = torch.linspace(0.5, 1.5, 1024 * 8).reshape(1024, 8)


class Scale(nn.Module):
    """Multiplies by its weight."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.9, 1.1, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Products(nn.Sequential):
    """Weights and dropout, many times; counts its forwards in buffers of BatchNorm's kind."""

    def __init__(self, depth: int = 8) -> None:
        super().__init__(*(nn.Sequential(Scale(8), Count(), nn.Dropout(0.3)) for _ in range(depth)))


class Count(nn.Module):
    """Counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.calls.add_(1)  # type: ignore[operator]  # a buffer
        return x * 1


def planned_products() -> nn.Module:
    """By a plan in the least memory."""
    return chainstay.fit(
        nn.Sequential(*Products()),
        (_BATCH,),
        budget=RECOMPUTING,
        loss=torch.Tensor.sum,
        method=ShareOf(SHARES["least"]),
        repeats=1,
        progress=False,
    )


def inconsistent_steps(model: nn.Module, steps: int, *, swaps: bool = False) -> int:
    """How many of some steps have gradients of another function than their loss.

    With `swaps`, they are those of another forward, so that all should be found.
    """
    weights = list(model.parameters())
    count = 0
    for _ in range(steps):
        loss = model(_BATCH).sum()
        gradients = torch.autograd.grad(model(_BATCH).sum() if swaps else loss, weights)
        total = loss.detach()
        count += not all(
            torch.allclose((weight * gradient).sum(), total, rtol=1e-4)
            for weight, gradient in zip(weights, gradients, strict=True)
        )
    return count


def in_threads(tasks: Sequence[Callable[[], object]]) -> list[object]:
    """What all tasks return, or raise, each in a thread of its own, begun at once."""
    found: list[object] = [None] * len(tasks)
    barrier = threading.Barrier(len(tasks))

    def run(number: int) -> None:
        barrier.wait()
        try:
            found[number] = tasks[number]()
        except BaseException as error:  # noqa: BLE001  # handed to the caller
            found[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(tasks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
