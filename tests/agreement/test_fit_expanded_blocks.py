"""Where blocks have no graph, the modules inside them are stages: bit for bit, within the peak."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import chainstay
from chainstay.fitting.measured import measure_model
from chainstay.fitting.planner import PlannerSettings
from models import Perceptron
from sgd_steps import peak_of_step
from training_conditions import Sample, differences, keeps_in_part, recomputes, shown, trained
from zoo import loss_of

WIDTH = 16


class Deciding(nn.Module):
    """A transformer's layer; unless it is "plain", it has no graph, for the reason of its kind."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.seen = kind, list[float]()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.before(x)
        match self.kind:
            case "logs":
                self.seen.append(x.norm().item())
            case "skips":
                if random.random() < 0.3:  # as models draw
                    return x
            case "scales":
                x = x * float(np.random.rand())  # noqa: NPY002  # as models draw
        x = x + self.attention(hidden, hidden, hidden, need_weights=False)[0]
        if self.kind == "clamps" and torch.isinf(x).any():
            x = x.clamp(-1e4, 1e4)
        made: torch.Tensor = x + self.mlp(self.between(x))
        return made


class Layers(nn.Module):
    """An embedding, layers of these kinds, and a linear head."""

    def __init__(self, kinds: list[str]) -> None:
        super().__init__()
        self.first, self.last = nn.Embedding(24, WIDTH), nn.Linear(WIDTH, 24)
        self.layers = nn.ModuleList(map(Deciding, kinds))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.first(tokens)
        for layer in self.layers:
            x = layer(x)
        scores: torch.Tensor = self.last(x)
        return scores


class Rounds(nn.Module):
    """One layer, called until a number is reached; the model has no lists."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.1, batch_first=True)
        self.halt = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        done = x.new_zeros(len(x))
        for _ in range(8):
            x = self.layer(x)
            done = done + self.halt(x.mean(1)).sigmoid().squeeze(-1)
            if (done > 2).all():
                break
        return x * done[:, None, None]


class Packed(nn.Module):
    """A recurrent network that packs its sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Embedding(24, WIDTH), nn.Linear(WIDTH, 24)
        self.recurrent = nn.LSTM(WIDTH, WIDTH, 2, batch_first=True)
        self.between = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, WIDTH))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        lengths = torch.arange(tokens.shape[1], 0, -1)[: len(tokens)]
        embedded = self.between(self.first(tokens))
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths, batch_first=True)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.recurrent(packed)[0], batch_first=True)
        scores: torch.Tensor = self.last(states)
        return scores


class TwoHeads(nn.Module):
    """Convolutions of several kinds in a list, with heads that are of one kind and small."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(
                layer
                for _ in range(4)
                for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
            )
        )
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 3)])

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        features = self.body(x).mean((2, 3))
        scale = 1 + (features > 0).sum().item() % 2
        return [head(features) * scale for head in self.heads]


class Measured(nn.Module):
    """A block only scales the others by a number, so that no gradient reaches it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, *others = self.layers
        for layer in others:
            x = layer(x) / (1 + first(x).detach().norm().item())
        return x


def seed() -> None:
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002  # as models draw


def seeded(model: nn.Module, sample: Sample) -> dict[str, torch.Tensor]:
    seed()
    return dict(trained(model, sample))


def require_as_plain(model: nn.Module, sample: Sample, budget: str) -> str:
    """Fit `model`; it must train like a copy of it, within the promised peak."""
    plain, initial = copy.deepcopy(model), copy.deepcopy(model.state_dict())
    seed()
    state = random.getstate()
    chainstay.fit(model, sample.args, budget=budget, loss=loss_of, repeats=1)
    assert random.getstate() == state
    assert differences(dict(model.state_dict()), dict(initial)) == []
    told, solution = str(shown(model)), shown(model).solution
    assert (recomputes(model) or keeps_in_part(model)) == (budget != "100%")
    seed()
    measured = peak_of_step(model, lambda: sample.loss(model).backward(), (sample.args, {}))
    assert measured <= solution.peak_bytes <= solution.budget
    model.zero_grad()
    model.load_state_dict(initial)
    assert differences(seeded(model, sample), seeded(plain, sample)) == []
    return told


TOKENS = Sample((torch.arange(64).reshape(4, 16) % 24,))


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "budget"),
    [
        ("logs", "65%"),
        *(
            pytest.param(kind, budget, marks=pytest.mark.long)
            for kind in ("clamps", "logs", "skips", "scales")
            for budget in ("100%", "80%", "65%")
            if (kind, budget) != ("logs", "65%")
        ),
    ],
)
def test_modules_inside_of_blocks_without_a_graph_are_stages(kind: str, budget: str) -> None:
    torch.manual_seed(0)
    told = require_as_plain(Layers([kind] * 5), TOKENS, budget)
    assert "by blocks (layers.0.before to " in told
    assert re.search(r"some are expanded into the modules inside: layers.0 and [34] more", told)


@pytest.mark.long
def test_only_blocks_without_a_graph_are_expanded() -> None:
    torch.manual_seed(0)
    told = require_as_plain(Layers(["plain", "plain", "logs", "plain", "plain"]), TOKENS, "65%")
    assert "by blocks (layers.0 to layers.4)" in told
    assert "some are expanded into the modules inside: layers.2\n" in told


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "sample", "budget"),
    [
        (
            Rounds,
            Sample((torch.randn(4, 16, WIDTH, generator=torch.Generator().manual_seed(1)),)),
            "60%",
        ),
        (
            Measured,
            Sample((torch.randn(16, 8, generator=torch.Generator().manual_seed(1)),)),
            "80%",
        ),
        pytest.param(Packed, TOKENS, "90%", marks=pytest.mark.long),
        pytest.param(
            TwoHeads,
            Sample((torch.randn(2, 4, 16, 16, generator=torch.Generator().manual_seed(1)),)),
            "85%",
            marks=pytest.mark.long,
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_models_without_a_list_of_blocks_that_all_run_again(
    make: Callable[[], nn.Module], sample: Sample, budget: str
) -> None:
    torch.manual_seed(0)
    assert "by blocks" in require_as_plain(make(), sample, budget)


@pytest.mark.long
def test_calls_that_go_through_other_modules_than_planned() -> None:
    """More rounds than planned are planned anew."""
    torch.manual_seed(0)
    model, x = Rounds(), torch.randn(4, 16, WIDTH)
    plain = copy.deepcopy(model)
    chainstay.fit(model, (x,), budget="60%", loss=loss_of, repeats=1)
    for one in (plain, model):
        nn.init.constant_(one.halt.bias, -1.5)
    sample = Sample((x,))
    assert differences(seeded(model, sample), seeded(plain, sample)) == []
    assert len(shown(model).plans) > 1


class Predicting(nn.Module):
    """Encodes, and predicts; what does so is chosen by a value."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(4)
        )
        self.predictor = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(2)
        )

    def forward(self, x: torch.Tensor, step: int = 0) -> dict[str, torch.Tensor]:
        del step
        for block in self.encoder:
            x = block(x)
        predicted = x * (1 + x.norm().item())
        for block in self.predictor:
            predicted = block(predicted)
        return {"encoded": x, "predicted": predicted}


def loss_of_encoder(output: dict[str, torch.Tensor]) -> torch.Tensor:
    return output["encoded"].square().mean()


@pytest.mark.long
def test_blocks_that_the_loss_does_not_depend_on_run_by_themselves(tmp_path: Path) -> None:
    """In every call, and where the plan comes from a file."""
    torch.manual_seed(0)
    plain, x = Predicting(), torch.randn(16, 8)
    model, other = copy.deepcopy(plain), copy.deepcopy(plain)
    chainstay.fit(model, (x,), budget="85%", loss=loss_of_encoder, repeats=1)
    assert "by blocks (encoder.0 to encoder.3)" in str(shown(model))
    assert recomputes(model) or keeps_in_part(model)
    chainstay.save_plan(model, tmp_path / "plan.json")
    chainstay.apply_plan(other, (x,), plan=tmp_path / "plan.json")
    for step in range(3):
        for one in (plain, model, other):
            loss_of_encoder(one(x, step)).backward()
    assert len(shown(model).plans) == 1
    expected = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for one in (model, other):
        for name, parameter in one.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], rtol=0, atol=0)


def test_blocks_that_the_loss_does_not_depend_on_are_not_measured() -> None:
    settings = PlannerSettings(loss=loss_of_encoder, repeats=1, progress=False)
    measured = measure_model(Predicting(), (torch.randn(16, 8),), {}, settings)
    assert len(measured.costs.account.stages) == 4 + 1  # the loss is one


class Gauged(nn.Module):
    """Modules that are no list, and one whose output is only read as a number."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three, self.gauge = (Perceptron(8, 0.0) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = 1 + self.gauge(x).detach().norm().item()
        made: torch.Tensor = self.three(self.two(self.one(x) / scale))
        return made


def test_a_model_without_lists_may_have_modules_that_get_no_gradient() -> None:
    torch.manual_seed(0)
    plain, x = Gauged(), torch.randn(64, 8)
    model = chainstay.fit(
        copy.deepcopy(plain), (x,), budget="90%", loss=loss_of, repeats=1, progress=False
    )
    assert "by blocks" in str(shown(model))
    for one in (plain, model):
        loss_of(one(x)).backward()
    for parameter, expected in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, rtol=0, atol=0)


class DropPath(nn.Module):
    """Leaves out samples."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        keep = 1 - self.rate
        return x.div(keep) * torch.floor(torch.rand(len(x), 1) + keep)


class DropsPaths(nn.Module):
    """A residual block with a rate of its own."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 32), nn.Linear(32, 8)
        self.drop = DropPath(rate) if rate else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.down(functional.gelu(self.up(self.norm(x))))) + x
        made: torch.Tensor = self.drop(self.down(functional.gelu(self.up(self.norm(x))))) + x
        return made


def test_blocks_that_differ_in_a_rate(capsys: Any) -> None:
    """Graphs of later ones may do for earlier ones; plans are for those that run from then on."""
    torch.manual_seed(0)
    model = nn.Sequential(*[DropsPaths(rate) for rate in (0.0, 0.05, 0.1, 0.15)])
    sample = Sample((torch.randn(64, 8),))
    plain = copy.deepcopy(model)
    chainstay.fit(model, sample.args, budget="70%", loss=loss_of, by="blocks", repeats=1)
    assert differences(seeded(model, sample), seeded(plain, sample)) == []
    assert "its plan does not have" not in capsys.readouterr().err
    measured = peak_of_step(model, lambda: sample.loss(model).backward(), (sample.args, {}))
    assert measured <= shown(model).solution.peak_bytes


@pytest.mark.long
@pytest.mark.parametrize("index", [0, 2])
def test_a_forward_put_around_that_of_a_planned_block(index: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*[DropsPaths(0.1) for _ in range(4)])
    plain, sample = copy.deepcopy(model), Sample((torch.randn(16, 8),))
    chainstay.fit(model, sample.args, budget="80%", loss=loss_of, by="blocks", repeats=1)
    for one in (model, plain):
        block: Any = one[index]
        block.forward = partial(doubled, block.forward)
    assert differences(seeded(model, sample), seeded(plain, sample)) == []
    assert len(shown(model).plans) == 2
    outputs = []
    for one in (model, plain):
        torch.manual_seed(1)
        with torch.no_grad():
            outputs.append(one(*sample.args))
    assert torch.equal(*outputs)
    for one in (model, plain):
        del one[index].forward
    assert differences(seeded(model, sample), seeded(plain, sample)) == []


def doubled(forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return forward(x) * 2
