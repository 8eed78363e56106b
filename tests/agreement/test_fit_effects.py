"""Forwards with effects of their own: on parameters, by values, on what is called."""

from __future__ import annotations

import copy
import gc
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Normal, kl_divergence

import chainstay
from chainstay.errors import UnsupportedModelError
from chainstay.fitting.planner import StageSource
from chainstay.runtime import trace_memory
from chainstay.runtime.execute.block_executor import PlannedBlocks
from chainstay.runtime.measures.blocks import block_costs
from chainstay.runtime.stage.staged_graph import PlannedGraph
from sgd_steps import differences, three_steps
from training_conditions import RECOMPUTING, SHARES, ShareOf, keeps_in_part, recomputes, shown
from twins import peak_of

pytestmark = pytest.mark.usefixtures("equal_times")


class Averaging(nn.Module):
    """A teacher whose parameters follow a student's in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 64), nn.Tanh()) for _ in range(4))
        self.leave = nn.ModuleList(nn.Linear(64, 16) for _ in range(4))
        self.student = nn.Linear(16, 16)
        self.teacher = nn.Linear(16, 16).requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.teacher.weight.lerp_(self.student.weight, 0.1)
        target = self.teacher(x)
        for block, leave in zip(self.blocks, self.leave, strict=True):
            x = x + leave(block(x))
        difference: torch.Tensor = self.student(x) - target
        return difference


class Normed(nn.Module):
    """Trained weights that are brought to a norm in every forward, between other layers."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(32, 16, max_norm=1.0)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 16)) for _ in range(4)
        )
        self.leave = nn.Linear(16, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.tokens(tokens)
        for layer in self.layers:
            x = x + layer(x)
        with torch.no_grad():
            weight = self.leave.weight
            weight.div_(weight.norm(dim=1, keepdim=True))
        left: torch.Tensor = self.leave(x)
        return left


class Clamped(nn.Module):
    """Convolutions, which save their weight itself, whose weights are clamped in every forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(16, 16, 3, padding=1) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            with torch.no_grad():
                layer.get_parameter("weight").clamp_(-0.1, 0.1)
            x = x + torch.tanh(layer(x))
        return x


class FromData(nn.Module):
    """A block that takes its scale from the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(16, 16), nn.Parameter(torch.ones(16))
        self.ready: torch.Tensor
        self.register_buffer("ready", torch.zeros((), dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            with torch.no_grad():
                self.scale.copy_(x.std(0))
                self.ready |= True
        return torch.tanh(self.layer(x) * self.scale)


class Leaky(nn.Module):
    """Slopes that are drawn, and saved before they are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Conv1d(16, 16, 3, padding=1) for _ in range(6))
        self.slopes = nn.RReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + self.slopes(layer(x))
        return x


class Sliced(nn.Module):
    """A weight used at both ends, the second time as part of a wider one."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.wider = nn.Linear(32, 256, bias=False), nn.Linear(64, 256, bias=False)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 256)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.enter(x)
        for layer in self.layers:
            x = x + layer(x)
        return x[:4] @ torch.cat([self.enter.weight, self.wider.weight], 1)


class Guess(nn.Module):
    """A distribution inside, which looks at the values of its parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.mean, self.spread = nn.Linear(32, 8), nn.Linear(32, 8)
        self.leave = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.enter(x)
        guess = Normal(self.mean(hidden), self.spread(hidden).exp())
        return self.leave(guess.rsample()), kl_divergence(guess, Normal(0.0, 1.0))


def squares(output: torch.Tensor | tuple[torch.Tensor, ...]) -> torch.Tensor:
    leaves = (output,) if isinstance(output, torch.Tensor) else output
    return torch.stack([leaf.square().mean() for leaf in leaves]).sum()


def wrong_after_training(
    model: nn.Module,
    x: torch.Tensor,
    budget: int | str = RECOMPUTING,
    *,
    stage_options: bool = True,
) -> list[str]:
    """What three planned steps leave that plain ones do not, or what fit itself changed."""
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    plain = copy.deepcopy(model)
    chainstay.fit(model, (x,), budget=budget, loss=squares, stage_options=stage_options, repeats=1)
    changed = differences(dict(model.state_dict()), initial)
    random.seed(0)
    found = three_steps(model, lambda: squares(model(x)), initial)
    random.seed(0)
    expected = three_steps(plain, lambda: squares(plain(x)), initial)
    return changed + differences(found | model.state_dict(), expected | plain.state_dict())


each_way = pytest.mark.parametrize("stage_options", [True, False], ids=["in part", "whole"])


@each_way
def test_parameters_that_a_forward_changes_are_left_by_fit(*, stage_options: bool) -> None:
    torch.manual_seed(0)
    model, x = Averaging(), torch.randn(32, 16)
    assert wrong_after_training(model, x, "90%", stage_options=stage_options) == []
    assert isinstance(shown(model).plans[-1], PlannedGraph)
    assert recomputes(model) or keeps_in_part(model)
    assert stage_options or recomputes(model)


@each_way
def test_trained_parameters_that_a_forward_changes(*, stage_options: bool) -> None:
    torch.manual_seed(0)
    model, tokens = Normed(), torch.randint(32, (16, 4))
    assert wrong_after_training(model, tokens, stage_options=stage_options) == []
    assert isinstance(shown(model).latest.planned, PlannedGraph)
    assert recomputes(model) or keeps_in_part(model)


@each_way
def test_trained_weights_that_a_forward_changes_and_a_convolution_saves(
    *, stage_options: bool
) -> None:
    torch.manual_seed(0)
    model, x = Clamped(), torch.randn(4, 16, 12)
    assert wrong_after_training(model, x, stage_options=stage_options) == []
    assert isinstance(shown(model).latest.planned, PlannedGraph)
    assert recomputes(model) or keeps_in_part(model)


@pytest.mark.parametrize("by", ["blocks", "auto"])
def test_blocks_that_change_their_parameters_do_not_run_again(by: StageSource) -> None:
    """They do so in their first call; modules inside, which do not, may run again."""
    torch.manual_seed(0)
    model, x = nn.Sequential(*[FromData() for _ in range(3)]), torch.randn(32, 16)
    plain, initial = copy.deepcopy(model), dict(copy.deepcopy(model.state_dict()))
    chainstay.fit(model, (x,), budget="100%", by=by, loss=squares, repeats=1)
    assert differences(dict(model.state_dict()), initial) == []
    told = "expanded into the modules inside: 0 and 2 more"
    assert told in str(shown(model))
    found = three_steps(model, lambda: squares(model(x)), initial)
    expected = three_steps(plain, lambda: squares(plain(x)), initial)
    assert differences(found | model.state_dict(), expected | plain.state_dict()) == []


class Reversible(nn.Module):
    """Frees its input, as reversible layers do until their backward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.detach() * 2.0
        x.untyped_storage().resize_(0)
        return y.requires_grad_()


def test_a_forward_that_frees_its_input_is_refused_and_the_input_is_as_before() -> None:
    x = torch.randn(32, 16)
    before = x.clone()
    with pytest.raises(UnsupportedModelError, match="the forward frees the memory of what it is"):
        chainstay.fit(nn.Sequential(Reversible()), (x,), budget="100%", by="blocks", repeats=1)
    assert torch.equal(x, before)


@each_way
def test_noise_that_is_saved_before_it_is_drawn_is_drawn_again(*, stage_options: bool) -> None:
    torch.manual_seed(0)
    model, x = Leaky(), torch.randn(4, 16, 64)
    assert wrong_after_training(model, x, "50%", stage_options=stage_options) == []
    assert recomputes(model) or keeps_in_part(model)
    assert stage_options or recomputes(model)


def test_half_a_gradient_that_is_a_slice_holds_all_of_it() -> None:
    torch.manual_seed(0)
    model, x = Sliced(), torch.randn(128, 32)
    chainstay.fit(model, (x,), budget=RECOMPUTING, loss=squares, method=ShareOf(SHARES["least"]))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    squares(model(x)).backward()
    measured = trace_memory(lambda: squares(model(x)).backward(), "cpu").peak_bytes + x.nbytes
    promised = shown(model).solution.peak_bytes
    assert 0.95 * promised <= measured <= promised


@pytest.mark.long
def test_distributions_inside() -> None:
    torch.manual_seed(0)
    model = Guess()
    assert wrong_after_training(model, torch.randn(32, 16), "95%") == []


class Steps(nn.Module):
    """Takes its input apart at once, and uses a part at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(24, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x.new_zeros(len(x), 16)
        for part in x.unbind(1):
            hidden = torch.tanh(self.layer(torch.cat([part, hidden], 1)))
        return hidden


def test_parts_of_an_input_are_shared_one_by_one() -> None:
    torch.manual_seed(0)
    model = Steps()
    assert wrong_after_training(model, torch.randn(32, 6, 8)) == []
    assert isinstance(shown(model).plans[-1], PlannedGraph)


class Handed(nn.Module):
    """Reads one weight everywhere, by a name that an early stage gives it."""

    def __init__(self, *, gives_it: bool) -> None:
        super().__init__()
        self.gives_it = gives_it
        self.scale = nn.Parameter(torch.rand(32))
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        scale = self.scale.float()  # the weight itself, as it is of that type already
        for layer in self.layers:
            x = torch.tanh(layer(x)) * scale
        return (x, scale) if self.gives_it else x


@pytest.mark.parametrize("gives_it", [False, True])
def test_a_weight_that_has_another_name_stays_the_model_s(*, gives_it: bool) -> None:
    torch.manual_seed(0)
    model, x = Handed(gives_it=gives_it), torch.randn(64, 32)
    chainstay.fit(model, (x,), budget="70%", repeats=1, progress=False)
    assert [
        name for name, parameter in model.named_parameters() if parameter.grad is not None
    ] == []
    chainstay.unfit(model)
    assert wrong_after_training(model, x) == []


class Dropping(nn.Module):
    """Leaves layers out now and then, as Wav2Vec2 does."""

    def __init__(self, probability: float, draw: Callable[[], float | torch.Tensor]) -> None:
        super().__init__()
        self.probability, self.draw = probability, draw
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.1), nn.Linear(32, 16)) for _ in range(6)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if self.draw() >= self.probability:
                x = layer(x)
        return x


class OfTwoKinds(Dropping):
    """Layers of another kind follow those that are left out now and then."""

    def __init__(self, probability: float, draw: Callable[[], float | torch.Tensor]) -> None:
        super().__init__(probability, draw)
        self.others = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 16)) for _ in range(3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = super().forward(x)
        for layer in self.others:
            if self.draw() >= self.probability:
                x = layer(x)
        return x


LONG = pytest.mark.long


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=LONG), pytest.param(2, marks=LONG)])
@pytest.mark.parametrize(
    "draw", [random.random, lambda: torch.rand(())], ids=["Python's", "torch's"]
)
@pytest.mark.parametrize("kind", [Dropping, OfTwoKinds])
def test_layers_left_out_at_random(
    kind: type[Dropping], draw: Callable[[], float | torch.Tensor], seed: int
) -> None:
    """What is left out is drawn in every step, also between layers that draw themselves."""
    torch.manual_seed(seed)
    random.seed(seed)
    model, x = kind(0.0, draw), torch.randn(32, 16)
    chainstay.fit(model, (x,), budget="90%", loss=squares, repeats=1)
    budget = shown(model).solution.peak_bytes  # of all layers
    assert wrong_after_training(chainstay.unfit(model), x, "90%") == []
    model.probability = 0.3
    assert wrong_after_training(chainstay.unfit(model), x, budget) == []
    assert isinstance(shown(model).plans[-1], PlannedBlocks)


class OfAnother(Dropping):
    """The layers are those of a module that is not called itself, as in OPT."""

    def __init__(self, probability: float, draw: Callable[[], float | torch.Tensor]) -> None:
        super().__init__(probability, draw)
        self.inner = nn.Module()
        self.inner.decoder = nn.Sequential(*self.layers)
        del self.layers

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.inner.get_submodule("decoder").children():
            if self.draw() >= self.probability:
                x = layer(x)
        return x


DRAWS = pytest.mark.parametrize(
    "draw",
    [
        pytest.param(random.random, id="Python's"),
        pytest.param(lambda: float(np.random.rand()), id="NumPy's", marks=LONG),  # noqa: NPY002  # as models draw
        pytest.param(lambda: torch.rand(()), id="torch's"),
    ],
)


def draws_anew(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002  # as models draw


@DRAWS
@pytest.mark.parametrize("kind", [pytest.param(Dropping, marks=LONG), OfTwoKinds])
def test_a_plan_holds_for_calls_that_leave_layers_out(
    kind: type[Dropping],
    draw: Callable[[], float | torch.Tensor],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is made for all layers, though the first call leaves some out."""
    model, x = kind(0.0, draw), torch.randn(256, 16)
    budget = peak_of(model, x) * 7 // 10
    model.probability = 0.15
    assert layers_run(model, x, seed=2) < 6
    draws_anew(2)
    chainstay.fit(model, (x,), budget=budget, loss=squares, repeats=1)
    peaks = set()
    for seed in range(20):
        draws_anew(seed)
        peaks.add(peak_of(model, x) + x.nbytes)
    assert max(peaks) <= budget
    assert len(peaks) > 2, "calls differ"
    assert len(shown(model).plans) == 1
    assert "that its plan does not have" not in capsys.readouterr().err


@DRAWS
@pytest.mark.parametrize("kind", [pytest.param(Dropping, marks=LONG), OfAnother])
def test_layers_that_no_call_ran_before_are_planned_as_that_call_drew(
    kind: type[Dropping],
    draw: Callable[[], float | torch.Tensor],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(block_costs, "_MOST_TRIES", 0)
    model, x = kind(0.3, draw), torch.randn(256, 16)
    ran = [layers_run(model, x, seed) for seed in range(40)]
    few, every = ran.index(4), ran.index(6)
    draws_anew(few)
    chainstay.fit(model, (x,), budget="90%", loss=squares, repeats=1)
    assert blocks_planned(model) == 4
    for seed in (every, few):
        draws_anew(seed)
        model(x)
    told = capsys.readouterr().err
    assert "ran 2 blocks that its plan does not have" in told
    assert "the next one is planned anew" in told
    assert blocks_planned(model) == 6


def blocks_planned(model: nn.Module) -> int:
    planned = shown(model).plans[-1]
    assert isinstance(planned, PlannedBlocks)
    return len(planned.schedule.blocks.stages)


def layers_run(model: Dropping, x: torch.Tensor, seed: int) -> int:
    ran: list[nn.Module] = []
    own = copy.deepcopy(model)
    for layer in own.modules():
        if isinstance(layer, nn.Dropout):  # each has one
            layer.register_forward_hook(lambda layer, *_: ran.append(layer))
    draws_anew(seed)
    own(x)
    return len(ran)


@pytest.mark.long
@pytest.mark.parametrize("stage_options", [False, True])
def test_fit_leaves_no_tensor_alive(stage_options: bool) -> None:  # noqa: FBT001  # a parameter of the test
    """A saved tensor that hooks keep as it is holds its own node, and nobody collects the two."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())]
    model, x = nn.Sequential(*layers), torch.randn(256, 64)

    def alive() -> list[torch.Tensor]:
        gc.collect()
        return [candidate for candidate in gc.get_objects() if type(candidate) is torch.Tensor]

    before = (
        alive()
    )  # tensors of earlier tests, some of them without a memory that can be asked for

    def bytes_of_new_ones() -> int:
        known = {id(tensor) for tensor in before}
        storages = [tensor.untyped_storage() for tensor in alive() if id(tensor) not in known]
        return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())

    chainstay.fit(model, (x,), budget="90%", repeats=1, stage_options=stage_options)
    assert bytes_of_new_ones() < x.nbytes
    chainstay.unfit(model)
    assert bytes_of_new_ones() < x.nbytes
