"""Models and engines for tests of transfers."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import nn
from torch.nn import functional

from chainstay.problems.offload import OffloadSolution
from chainstay.profiles import Link
from chainstay.runtime import MeasuredChain, PlannedChain, measure
from chainstay.runtime.transfer.cpu_engine import CopyingEngine, CopyTicket
from chainstay.runtime.transfer.engine import Ticket, Transfer
from chainstay.runtime.transfer.pool import Slot
from chainstay.solve.offload import solve_offload
from models import gpt2, resnet50
from runtime_support import StepRecord, train

__all__ = [
    "BUGS",
    "FAST",
    "LATE",
    "SLOW",
    "Case",
    "gpt_case",
    "normalized_case",
    "perceptron_case",
    "resnet_case",
]

FAST = Link.from_bytes_per_second(4_000_000_000, latency_ns=20_000, duplex="full")
"""Of the engine, so that tests need not wait; plans are made for the double's own link."""

SLOW = Link.from_bytes_per_second(500_000_000, latency_ns=20_000)
"""Plans for it use what can be used."""

LATE = Link.from_bytes_per_second(4_000_000_000, latency_ns=40_000_000, duplex="full")
"""Of an engine on which nothing has arrived, or left, while nobody waits."""


class FreesWithoutWaiting(CopyingEngine):
    """Lets device memory go while it is being sent."""

    def __init__(self) -> None:
        super().__init__(LATE, poison=True)
        self.sent = set[CopyTicket]()

    def send(self, transfers: Sequence[Transfer]) -> CopyTicket:
        ticket = super().send(transfers)
        self.sent.add(ticket)
        return ticket

    def wait(self, ticket: Ticket) -> None:
        if ticket not in self.sent:
            super().wait(ticket)


class UsesWithoutWaiting(CopyingEngine):
    """Reads what has not arrived."""

    def __init__(self) -> None:
        super().__init__(LATE, poison=True)
        self.fetched = set[CopyTicket]()

    def fetch(self, transfers: Sequence[Transfer], sent: Ticket) -> CopyTicket:
        ticket = super().fetch(transfers, sent)
        self.fetched.add(ticket)
        return ticket

    def wait(self, ticket: Ticket) -> None:
        if ticket not in self.fetched:
            super().wait(ticket)


class RecyclesTooEarly(CopyingEngine):
    """Gives host memory to others while it is being read."""

    def __init__(self) -> None:
        super().__init__(LATE, poison=True)

    def give_back(self, slot: Slot, after: Ticket | None) -> None:  # noqa: ARG002  # the bug
        super().give_back(slot, None)


BUGS = [FreesWithoutWaiting, UsesWithoutWaiting, RecyclesTooEarly]
"""Engines that break one of the rules each."""


@dataclass(frozen=True)
class Case:
    """A model, what it trains on, and what it costs."""

    model: nn.Sequential
    batch: torch.Tensor
    loss: Callable[[torch.Tensor], torch.Tensor]
    measured: MeasuredChain

    @classmethod
    def of(
        cls, model: nn.Sequential, batch: torch.Tensor, loss: Callable[[torch.Tensor], torch.Tensor]
    ) -> Case:
        """Measure it, once."""
        return cls(model, batch, loss, measure(model, batch, loss=loss, repeats=3))

    def budget(self, tenths: int) -> int:
        """Bytes, from the least feasible (0) to what plain training needs (10)."""
        profile = self.measured.offload_profile
        least = profile.required_bytes
        return least + (profile.peak_bytes - least) * tenths // 10

    def solution(self, tenths: int) -> OffloadSolution:
        """A plan for that budget."""
        profile = self.measured.offload_profile
        return solve_offload(profile, self.budget(tenths), link=SLOW, method="heuristics")

    def offloaded(self, tenths: int, engine: CopyingEngine | None = None) -> PlannedChain:
        """The model by that plan, its memory poisoned wherever nobody may read."""
        engine = engine or CopyingEngine(FAST, poison=True)
        return self.measured.planned(self.solution(tenths), engine=engine)

    def trained(self, chain: nn.Module, steps: int = 2) -> StepRecord:
        """What a few steps of a copy of `chain` leave behind."""
        twin = copy.deepcopy(chain)
        record = train(twin, self.batch, self.loss, steps=steps)
        if isinstance(twin, PlannedChain):
            twin.close()
        return record

    def step(self, chain: nn.Module) -> torch.Tensor:
        """One step without an optimizer."""
        output = chain(self.batch)  # held until the step ends, as in most training loops
        value = self.loss(output)
        value.backward()
        return value.detach()


@cache
def resnet_case() -> Case:
    """ResNet-50, narrow."""
    torch.manual_seed(0)
    images, classes = torch.randn(2, 3, 64, 64), torch.randint(0, 100, (2,))
    model = resnet50(num_classes=100, width=8)
    return Case.of(model, images, lambda scores: functional.cross_entropy(scores, classes))


@cache
def gpt_case() -> Case:
    """GPT-2, small, with dropout."""
    torch.manual_seed(0)
    tokens, following = torch.randint(0, 200, (2, 48)), torch.randint(0, 200, (96,))
    model = gpt2(blocks=3, width=64, heads=4, vocabulary=200, context=48)
    return Case.of(
        model, tokens, lambda scores: functional.cross_entropy(scores.flatten(0, 1), following)
    )


@cache
def normalized_case() -> Case:
    """Six small stages with statistics as large as a few rows of what passes."""
    torch.manual_seed(0)
    stages = [
        nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.GELU(), nn.Linear(256, 256))
        for _ in range(6)
    ]
    return Case.of(nn.Sequential(*stages), torch.randn(8, 256), lambda out: out.square().mean())


@cache
def perceptron_case() -> Case:
    """Six small stages."""
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 32)) for _ in range(6)]
    return Case.of(nn.Sequential(*stages), torch.randn(16, 32), lambda out: out.square().mean())
