"""Saved data that outlives its input: the same bits, and memory as small as promised.

Schedules under free discards come from three sources: random walks, exhaustive search on the
measured profile, and the witnesses of the golden chains.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import ChainProfile
from chainstay.runtime import MeasuredChain, measure, trace_memory
from chainstay.schedule import OpKind, Schedule
from chainstay.validation import search
from chainstay.validation.simulate import simulate
from golden_chains import GOLDEN
from runtime_support import StepRecord, random_free, train


class Attention(nn.Module):
    """A transformer block with dropout."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.dropout = nn.Linear(width, width), nn.Dropout(0.2)

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        batch, length, width = activation.shape
        mixed = self.mix(self.norm(activation)).view(batch, length, 3, self.heads, -1)
        query, key, value = mixed.permute(2, 0, 3, 1, 4)
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        merged = found.transpose(1, 2).reshape(batch, length, width)
        total: torch.Tensor = activation + self.dropout(self.out(merged))
        return total


class Spectrum(nn.Module):
    """Saves its input as real numbers, as complex ones, conjugated, turned and cut."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1, width // 2))

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        points = torch.view_as_complex(activation.unflatten(-1, (-1, 2)))
        turned = points * points.conj() * self.scale + points.conj().imag * points
        product = torch.view_as_real(turned).flatten(-2)
        head, tail = activation.chunk(2, dim=-1)
        halves = torch.cat([head.tanh() * tail, tail * head], dim=-1)
        total: torch.Tensor = (
            product + halves + activation.transpose(0, 1).contiguous().exp().mean()
        )
        return total


class Slice(nn.Module):
    """Its output lies in the second half of a larger storage, transposed."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        wide: torch.Tensor = self.linear(activation).transpose(0, 1)
        return wide[..., wide.shape[-1] // 2 :]


def convolutions(count: int) -> nn.Sequential:
    layers: list[Callable[[], nn.Module]] = [
        lambda: nn.Sequential(
            nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True)
        ),
        lambda: nn.Conv2d(4, 4, 1),
        lambda: nn.Sequential(nn.Dropout(0.3), nn.Conv2d(4, 4, 3, padding=1)),
        lambda: nn.BatchNorm2d(4),
    ]
    return nn.Sequential(*(layers[index % 4]() for index in range(count)))


def attention(count: int) -> nn.Sequential:
    return nn.Sequential(*(Attention() for _ in range(count)))


def linear(count: int) -> nn.Sequential:
    layers: list[Callable[[], nn.Module]] = [
        lambda: nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.LayerNorm(16)),
        lambda: nn.Linear(16, 16),
        nn.Tanh,
    ]
    return nn.Sequential(*(layers[index % 3]() for index in range(count)))


def views(count: int) -> nn.Sequential:
    layers: list[Callable[[], nn.Module]] = [nn.Tanh, Spectrum, Slice, lambda: nn.Linear(16, 16)]
    return nn.Sequential(*(layers[index % 4]() for index in range(count)))


BATCHES: dict[Callable[[int], nn.Sequential], tuple[int, ...]] = {
    convolutions: (2, 4, 12, 12),
    attention: (2, 8, 16),
    linear: (32, 16),
    views: (8, 8, 16),
}
FAMILIES = pytest.mark.parametrize("family", BATCHES)


def square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


@dataclass(frozen=True)
class Case:
    """A small network, measured, and what plain training makes of it."""

    model: nn.Sequential
    batch: torch.Tensor
    measured: MeasuredChain
    expected: StepRecord

    @property
    def profile(self) -> ChainProfile:
        return self.measured.profile

    def differences(self, schedule: Schedule) -> list[str]:
        """What training a copy by `schedule` leaves behind that plain training does not."""
        planned = copy.deepcopy(self.measured.planned(schedule))
        return train(planned, self.batch, square).differences(self.expected)

    def measured_peak(self, schedule: Schedule) -> int:
        """Of a whole step, gradients allocated before, the batch included."""
        planned = copy.deepcopy(self.measured.planned(schedule))

        def step() -> None:
            output = planned(self.batch)
            square(output).backward()

        step()
        trace = trace_memory(step, "cpu")
        assert trace.end_bytes == 0, "a step leaves nothing behind"
        return trace.peak_bytes + self.batch.nbytes

    def require_promises(self, schedule: Schedule) -> None:
        """Equal bits, and no more memory than the referee says."""
        assert self.differences(schedule) == []
        predicted = simulate(self.profile, schedule, discards="free").peak_bytes
        assert self.measured_peak(schedule) <= predicted, schedule


@cache
def case_of(family: Callable[[int], nn.Sequential], count: int) -> Case:
    torch.manual_seed(0)
    model, batch = family(count), torch.randn(BATCHES[family])
    measured = measure(model, batch, loss=square, repeats=1)
    return Case(model, batch, measured, train(copy.deepcopy(model), batch, square))


def with_fixed_times(profile: ChainProfile) -> ChainProfile:
    """Measured sizes, but times that are the same on every machine, and so the same optimum."""
    stages = (
        replace(stage, forward_time=3 + index % 3, backward_time=5)
        for index, stage in enumerate(profile.stages)
    )
    return replace(profile, stages=tuple(stages))


def outlives_an_input(profile: ChainProfile, schedule: Schedule) -> bool:
    """Whether only free discards allow `schedule`."""
    try:
        simulate(profile, schedule, discards="tape")
    except InvalidScheduleError:
        return True
    return False


def interrupts_the_loss(schedule: Schedule, loss: int) -> bool:
    """Whether forwards stand between the loss and its backward, where a user runs none."""
    words = [op for op in schedule if op.kind.is_computation]
    turn = next(index for index, op in enumerate(words) if op.kind is OpKind.BACKWARD)
    return words[turn - 1].stage != loss


@pytest.mark.long
@FAMILIES
@pytest.mark.parametrize("seed", range(8))
def test_random_walks(family: Callable[[int], nn.Sequential], seed: int) -> None:
    case = case_of(family, 6)
    for stray in (0.2, 0.5, 0.65):
        case.require_promises(random_free(len(case.profile), seed, stray=stray))


@pytest.mark.long
@FAMILIES
@pytest.mark.parametrize("seed", range(4))
def test_walks_around_the_loss_give_the_same_bits(
    family: Callable[[int], nn.Sequential], seed: int
) -> None:
    case = case_of(family, 4)
    schedule = random_free(len(case.profile), seed, stray=0.7, interrupts_loss=True)
    assert case.differences(schedule) == []


WITNESSES = {
    f"{chain.name}": schedule
    for chain in GOLDEN
    if chain.stages <= 8 and (schedule := chain.schedules["free"]) is not None
}


@FAMILIES
@pytest.mark.parametrize("name", WITNESSES)
def test_golden_witnesses(family: Callable[[int], nn.Sequential], name: str) -> None:
    schedule = WITNESSES[name]
    loss = max(op.stage for op in schedule)
    case = case_of(family, loss)
    if interrupts_the_loss(schedule, loss):
        assert case.differences(schedule) == []
    else:
        case.require_promises(schedule)


def test_most_schedules_here_need_free_discards() -> None:
    walks = [random_free(7, seed) for seed in range(20)]
    profile = case_of(linear, 6).profile
    assert sum(outlives_an_input(profile, walk) for walk in walks) >= 10
    chains = {chain.name: chain.profile for chain in GOLDEN}
    orphaned = [name for name, plan in WITNESSES.items() if outlives_an_input(chains[name], plan)]
    assert (len(orphaned), len(WITNESSES)) == (42, 54)


@pytest.mark.long
@FAMILIES
@pytest.mark.parametrize("share", [0, 0.3])
def test_the_optimum_of_the_measured_chain_fits_its_budget(
    family: Callable[[int], nn.Sequential], share: float
) -> None:
    case = case_of(family, 4)
    profile = with_fixed_times(case.profile)
    least = search.least_budget(profile, discards="free")
    most = simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
    budget = least + int(share * (most - least))
    schedule = search.optimum(profile, budget, discards="free").schedule
    assert not interrupts_the_loss(schedule, len(profile) - 1)
    assert case.differences(schedule) == []
    assert case.measured_peak(schedule) <= budget


def test_an_input_is_gone_while_its_saved_data_stays() -> None:
    """Three linear layers hold their inputs between forward and backward, and nothing else."""
    model = nn.Sequential(nn.Linear(8, 64), nn.Linear(64, 32), nn.Linear(32, 4))
    batch = torch.randn(16, 8)
    measured = measure(model, batch, loss=square, repeats=1)
    held = {}
    for name, text in {
        "tape": "Fc0 Fa1 Fa2 Fa3 B3 B2 B1 Fa0 B0",
        "free": "Fc0 Fa1 Da1 Fa2 Fa3 B3 B2 Fa0 B1 B0",
        "freer": "Fc0 Fa1 Da1 Fa2 Db1 Fa3 B3 Fc0 Fa1 Da1 B2 Fa0 B1 B0",
    }.items():
        forward = partial(measured.planned(Schedule.parse(text)), batch)
        forward()
        held[name] = trace_memory(forward, "cpu").end_bytes
    row = 16 * 4
    assert held == {"tape": (64 + 32 + 4) * row, "free": (32 + 4) * row, "freer": 4 * row}
