"""What passes between stages and nobody saves is let go as in plain training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import chainstay
from chainstay.profiles import ChainProfile
from chainstay.report.timeline import build_timeline
from chainstay.runtime.stage.idle_cuts import merge_idle_cuts
from chainstay.schedule import OpKind, Schedule
from runtime_support import stages_of
from training_conditions import Sample, differences, shown, trained
from twins import peak_of
from zoo import loss_of


class WaveNet(nn.Module):
    """Gated convolutions whose results add up beside them."""

    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, 8, 1)
        self.gates = nn.ModuleList(nn.Conv1d(8, 16, 3, padding=1) for _ in range(layers))
        self.on = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(layers))
        self.out = nn.ModuleList(nn.Conv1d(8, 8, 1) for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, total = self.enter(x), torch.zeros(())
        for gate, on, out in zip(self.gates, self.on, self.out, strict=True):
            made = gated(gate(x))
            total, x = total + out(made), x + on(made)
        return total + x


def gated(both: torch.Tensor) -> torch.Tensor:
    left, right = both.chunk(2, 1)
    return torch.tanh(left) * torch.sigmoid(right)


def plain_peak_of(model: nn.Module, x: torch.Tensor) -> int:
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return peak_of(model, x) + x.nbytes


@pytest.mark.long
def test_plain_training_needs_what_is_predicted_though_sums_are_let_go(tmp_path: Path) -> None:
    """If all sums were kept, it would need a third more."""
    torch.manual_seed(0)
    x = torch.randn(2, 1, 400)
    plain = WaveNet()
    planned = copy.deepcopy(plain)
    needed = plain_peak_of(plain, x)
    chainstay.fit(planned, (x,), budget=needed * 101 // 100, loss=loss_of, repeats=1)
    plan = shown(planned).plans[-1]
    assert plan.solution.schedule == Schedule.keep_all(len(plan.profile))
    assert plan.solution.peak_bytes == plan.plain_peak
    assert needed <= plan.solution.peak_bytes <= plan.solution.budget
    chainstay.save_plan(planned, tmp_path / "plan.json")
    loaded = chainstay.load_plan(tmp_path / "plan.json")
    assert loaded.solution == plan.solution
    assert loaded.replay().peak_bytes == plan.plain_peak
    timeline = build_timeline(loaded.solution, loaded.profile, overheads=loaded.overheads)
    assert timeline is not None
    assert max(level.total for level in timeline.levels) == plan.plain_peak
    assert all(size >= 0 for level in timeline.levels for size in level[1:])
    applied = chainstay.apply_plan(copy.deepcopy(plain), (x,), plan=loaded)
    assert differences(trained(applied, Sample((x,))), trained(plain, Sample((x,)))) == []
    chainstay.fit(planned, (x,), budget="60%", loss=loss_of, repeats=1)
    assert shown(planned).solution.budget == plan.plain_peak * 60 // 100
    assert peak_of(planned, x) + x.nbytes <= needed * 602 // 1000


@pytest.mark.long
def test_chains_of_modules_need_in_plain_training_what_is_predicted() -> None:
    """If all that passes between their stages were kept, it would need two fifths more."""
    torch.manual_seed(0)
    x = torch.randn(256, 12)
    layers = [nn.Linear(12, 64), nn.Tanh()]
    for _ in range(4):
        layers += [nn.Linear(64, 24), nn.ReLU(inplace=True), nn.Linear(24, 64), nn.Tanh()]
    model = nn.Sequential(*layers)
    needed = plain_peak_of(model, x)
    measured = chainstay.measure(model, x, loss=loss_of, repeats=1)
    solution = chainstay.solve_measured(measured, needed * 101 // 100)
    assert solution.schedule == Schedule.keep_all(len(measured.profile))
    assert needed <= solution.peak_bytes
    assert plain_peak_of(measured.planned(solution), x) == needed


class Doubled(nn.Module):
    """A stage that saves nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Shifted(nn.Module):
    """A stage that needs much while it runs, and saves nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            shift = x.repeat(50, 1).exp().mean()
        return x + shift


def test_stages_that_are_kept_together_let_go_what_the_first_one_reads() -> None:
    """Batch norm is apart from those behind it, as it changes buffers."""
    torch.manual_seed(0)
    x = torch.randn(32, 12)
    layers = (
        nn.Linear(12, 64),
        nn.BatchNorm1d(64),
        Doubled(),
        Doubled(),
        Shifted(),
        nn.Linear(64, 4),
    )
    model = nn.Sequential(*layers)
    needed = plain_peak_of(model, x)
    measured = chainstay.measure(model, x, loss=loss_of, repeats=1)
    solution = chainstay.solve_measured(measured, "100%")
    assert solution.schedule == Schedule.keep_all(len(measured.profile))
    assert plain_peak_of(measured.planned(solution), x) == needed <= solution.peak_bytes


class TwoLosses(nn.Module):
    """A network with a loss of an early result, and of a later one whose backward needs much."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = (nn.Conv2d(c, 4, 3, padding=1) for c in (3, 4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        early = self.first(x)
        late = torch.tanh(self.middle(early * 2))
        late = nn.functional.unfold(late, 3, padding=1)
        late = nn.functional.fold(late, (16, 16), 3, padding=1)
        return loss_of((self.last(late), early))


class Attention(nn.Module):
    """Attention with dropout, whose result is gone when the backward of dropout begins."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        queries, keys, values = self.enter(x).chunk(3, -1)
        weights = nn.functional.dropout((queries @ keys.mT).softmax(-1), 0.1, self.training)
        return loss_of(self.leave(weights @ values))


@pytest.mark.parametrize(
    ("make", "shape"), [(TwoLosses, (2, 3, 16, 16)), (Attention, (2, 128, 16))]
)
def test_what_only_later_stages_save_is_gone_when_a_backward_begins(
    make: Callable[[], nn.Module], shape: tuple[int, ...]
) -> None:
    """If it were there until the backward of what made it, they would need 5 and 16 % more."""
    torch.manual_seed(0)
    x = torch.randn(shape)
    plain = make()
    planned = copy.deepcopy(plain)
    needed = plain_peak_of(plain, x)
    chainstay.fit(planned, (x,), budget="100%", loss=loss_of, stage_options=False, repeats=1)
    predicted = shown(planned).solution.peak_bytes
    assert needed <= predicted <= needed * 1005 // 1000
    assert plain_peak_of(planned, x) <= predicted


class InPlaceBlock(nn.Module):
    """A block that changes its input in place."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.linear(nn.functional.gelu(x.mul_(0.5)))
        return output


class InPlaceBlocks(nn.Module):
    """A network that no graph is made of, and whose blocks change their inputs in place."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(32, 32)
        self.blocks = nn.ModuleList(InPlaceBlock() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        torch._dynamo.graph_break()
        return x


def test_what_blocks_change_in_place_is_not_gone() -> None:
    torch.manual_seed(0)
    planned, x = InPlaceBlocks(), torch.randn(64, 32)
    chainstay.fit(planned, (x,), budget="100%", loss=loss_of, repeats=1)
    assert plain_peak_of(planned, x) <= shown(planned).solution.peak_bytes


@pytest.mark.long
def test_spans_over_idle_cuts_keep_everything_in_less() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 1, 400)
    plain = WaveNet()
    planned = copy.deepcopy(plain)
    budget = plain_peak_of(plain, x) * 98 // 100
    chainstay.fit(planned, (x,), budget=budget, loss=loss_of, granularity="fine", repeats=1)
    solution, profile = shown(planned).solution, shown(planned).plans[-1].profile
    assert isinstance(profile, ChainProfile)
    kept = [op for op in solution.schedule if op.kind is OpKind.FORWARD_KEEP_ALL]
    names = {profile.stages[op.stage].all_options[op.option].name for op in kept if op.option}
    assert "keeps everything" in names
    assert differences(trained(planned, Sample((x,))), trained(plain, Sample((x,)))) == []
    assert peak_of(planned, x) + x.nbytes <= solution.peak_bytes <= budget


def convolutions(layers: int = 8) -> nn.Sequential:
    """A network of layers that are no blocks: each normalisation is cut from its convolution."""
    blocks = [
        module
        for _ in range(layers)
        for module in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
    ]
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), *blocks, nn.Flatten(), nn.Linear(2048, 4))


def test_what_cheap_stages_give_is_made_again_in_spans() -> None:
    """No stage's own option drops what a rectifier gives, which the next convolution reads."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, 16, 16)
    plain = convolutions()
    planned = copy.deepcopy(plain)
    chainstay.fit(planned, (x,), budget="60%", loss=loss_of, granularity="fine", repeats=1)
    solution, profile = shown(planned).solution, shown(planned).plans[-1].profile
    assert isinstance(profile, ChainProfile)
    assert all(op.kind in (OpKind.FORWARD_KEEP_ALL, OpKind.BACKWARD) for op in solution.schedule)
    assert len(solution.schedule) < 2 * len(profile.stages), "stages are kept as one"
    assert differences(trained(planned, Sample((x,))), trained(plain, Sample((x,)))) == []
    assert peak_of(planned, x) + x.nbytes <= solution.peak_bytes


class Chosen(nn.Module):
    """A layer that goes one way or another by a higher-order operator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        chosen: torch.Tensor = torch.cond(y.sum() > 0, torch.sin, torch.cos, (y,))
        return x + chosen


def test_cuts_are_looked_at_beside_higher_order_operators() -> None:
    """Modes that look at kernels refuse these operators unless they are made for them."""
    torch.manual_seed(0)
    stages = stages_of(*(Chosen() for _ in range(4)))
    assert merge_idle_cuts(stages, (torch.rand(2, 16),)) == tuple(stages)
