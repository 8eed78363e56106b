"""Plans that keep stages in part train as plain training does, within their budgets."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import chainstay
from chainstay import Schedule
from chainstay.runtime.execute.executor import Executor
from training_conditions import Sample, differences, keeps_in_part, recomputes, shown, trained
from twins import peak_of
from zoo import loss_of


def heads_of(x: torch.Tensor) -> torch.Tensor:
    heads: torch.Tensor = x.unflatten(-1, (4, -1)).transpose(1, 2)
    return heads


class Attention(nn.Module):
    """Written out, with dropout; or torch's own, with rotary embeddings."""

    def __init__(self, width: int, *, dropout: float = 0.0, is_rotary: bool = False) -> None:
        super().__init__()
        self.mix = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.drop, self.is_rotary = nn.Dropout(dropout), is_rotary

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = map(heads_of, self.mix(x).chunk(3, dim=-1))
        if self.is_rotary:
            query, key = rotated(query), rotated(key)
            y = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
            y = self.drop(scores.softmax(-1)) @ value
        projected: torch.Tensor = self.project(y.transpose(1, 2).flatten(2))
        return projected


def rotated(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[-2]), 0.1 ** torch.arange(half))
    one, other = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((one * cos - other * sin, one * sin + other * cos), dim=-1)


class Layer(nn.Module):
    """A transformer's: GPT's and ViT's, or with a gate and RMSNorm, LLaMA's."""

    def __init__(self, width: int = 64, *, dropout: float = 0.0, is_gated: bool = False) -> None:
        super().__init__()
        norm = nn.RMSNorm if is_gated else nn.LayerNorm
        self.before, self.between = norm(width), norm(width)
        self.attention = Attention(width, dropout=dropout, is_rotary=is_gated)
        self.gate = nn.Linear(width, 4 * width) if is_gated else None
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.drop(self.attention(self.before(x)))
        y = self.between(x)
        gated = functional.gelu(self.wide(y))
        if self.gate is not None:
            gated = functional.silu(self.gate(y)) * self.wide(y)
        total: torch.Tensor = x + self.drop(self.narrow(gated))
        return total


class Language(nn.Module):
    """Tokens through layers to scores."""

    def __init__(self, *, is_tied: bool = False, **settings: Any) -> None:  # noqa: ANN401  # of a Layer
        super().__init__()
        self.embed, self.head = nn.Embedding(32, 64), nn.Linear(64, 32, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight
        self.layers = nn.ModuleList(Layer(**settings) for _ in range(3))
        self.norm = nn.LayerNorm(64)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        scores: torch.Tensor = self.head(self.norm(x))
        return scores


class Vision(nn.Module):
    """A ViT."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 64, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, 64))
        self.layers = nn.Sequential(*(Layer() for _ in range(3)))
        self.head = nn.Linear(64, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), dim=1)
        scores: torch.Tensor = self.head(self.layers(x)[:, 0])
        return scores


class Residual(nn.Module):
    """A ResNet's block."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.one = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.two = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm_one, self.norm_two = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        change = self.norm_two(self.two(self.relu(self.norm_one(self.one(x)))))
        total: torch.Tensor = self.relu(x + change)
        return total


class ConvNeXt(nn.Module):
    """A ConvNeXt's block, with channels last inside."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(functional.gelu(self.wide(y)))
        total: torch.Tensor = x + y.permute(0, 3, 1, 2)
        return total


class UNet(nn.Module):
    """Down and up again, with skips between."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(_smooth(a, b) for a, b in ((3, 16), (16, 32), (32, 32)))
        self.up = nn.ModuleList(_smooth(a, b) for a, b in ((64, 16), (32, 16)))
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        first = self.down[0](image)
        second = self.down[1](functional.max_pool2d(first, 2))
        x = self.down[2](functional.max_pool2d(second, 2))
        x = self.up[0](torch.cat((functional.interpolate(x, scale_factor=2.0), second), dim=1))
        x = self.up[1](torch.cat((functional.interpolate(x, scale_factor=2.0), first), dim=1))
        result: torch.Tensor = self.head(x)
        return result


def _smooth(width: int, wider: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(width, wider, 3, padding=1), nn.GroupNorm(4, wider), nn.SiLU(),
        nn.Conv2d(wider, wider, 3, padding=1), nn.GroupNorm(4, wider), nn.SiLU(),
    )  # fmt: skip


def stacked(block: Callable[[], nn.Module], depth: int = 4) -> nn.Sequential:
    """Blocks of images."""
    enter, head = nn.Conv2d(3, 16, 3, padding=1), nn.Linear(16, 10)
    blocks = (block() for _ in range(depth))
    return nn.Sequential(enter, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def convolutions() -> nn.Sequential:
    """One behind another, with everything that is usual between them."""
    layers: list[nn.Module] = []
    for width, wider in ((3, 16), (16, 24), (24, 32)):
        layers += [nn.Conv2d(width, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.Hardswish()]
        layers += [nn.Conv2d(wider, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.GELU()]
        layers += [nn.Dropout2d(0.1), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


_TOKENS: Final = torch.arange(8 * 32).reshape(8, 32) * 7 % 32
_IMAGES: Final = torch.linspace(-3, 5, 8 * 3 * 32 * 32).sin().reshape(8, 3, 32, 32)

FAMILIES: Final[dict[str, tuple[Callable[[], nn.Module], torch.Tensor]]] = {
    "GPT": (lambda: Language(dropout=0.1), _TOKENS),
    "LLaMA": (lambda: Language(is_gated=True), _TOKENS),
    "tied": (lambda: Language(is_tied=True, dropout=0.2), _TOKENS),
    "ViT": (Vision, _IMAGES),
    "ResNet": (lambda: stacked(Residual), _IMAGES),
    "ConvNeXt": (lambda: stacked(ConvNeXt), _IMAGES),
    "UNet": (UNet, _IMAGES),
    "CNN": (convolutions, _IMAGES.repeat(4, 1, 1, 1)),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("share", [85, 65])
def test_families(family: str, share: int) -> None:
    make, x = FAMILIES[family]
    torch.manual_seed(0)
    plain = make().train()
    planned = copy.deepcopy(plain)
    chainstay.fit(planned, (x,), budget="100%", loss=loss_of, repeats=1)
    budget = shown(planned).solution.peak_bytes * share // 100
    chainstay.fit(chainstay.unfit(planned), (x,), budget=budget, loss=loss_of, repeats=1)
    assert keeps_in_part(planned) or (family, share) == ("CNN", 65)  # too little of it can go
    sample = Sample((x,))
    assert differences(trained(planned, sample), trained(plain, sample)) == []
    promised = shown(planned).solution.peak_bytes
    assert peak_of(planned, x) + x.nbytes <= promised <= budget


@pytest.mark.parametrize("family", ["GPT", "ResNet", "tied"])
def test_a_block_that_is_dropped_first_and_kept_in_part_when_it_runs_again(family: str) -> None:
    """By schedules of its own: dropout and statistics of several stages come from one first run."""
    make, x = FAMILIES[family]
    plain, planned = in_part(lambda: make().train(), x)
    (made,) = shown(planned).planner.known.values()
    staged, executor = made.staged, made.planned.executor
    spans = {key[0]: (key, each.stages) for key, each in staged.options.items() if each.stages > 1}
    assert len(spans) > 1
    state = copy.deepcopy(plain.state_dict())
    expected = gradients_of(plain, x, 0) | dict(plain.named_buffers())
    for (first, number), length in spans.values():
        schedule = _dropped_first(len(staged.chain.stages), range(first, first + length), number)
        other = Executor(staged.chain, staged.traits, schedule, options=staged.options)
        vars(executor).update(vars(other))  # TorchDynamo's code calls this one
        planned.load_state_dict(state)
        found = gradients_of(planned, x, 0) | dict(planned.named_buffers())
        assert differences(found, expected) == [], str(schedule)


def _dropped_first(loss: int, span: range, option: int) -> Schedule:
    forwards = [f"Fa{stage}" for stage in range(loss + 1)]
    forwards[span.start : span.stop] = [f"Fn{stage}" for stage in span]
    forwards[span.start] = f"Fc{span.start}"
    backwards = [f"B{stage}" for stage in range(loss + 1)]
    backwards[span.start : span.stop] = [f"B{span.start}", f"Fa{span.start}.{option}"]
    return Schedule.parse(" ".join([*forwards, *reversed(backwards)]))


class Numbers(nn.Module):
    """Reads numbers that may change: they decide what autograd saves, and where it lies."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(64)
        self.wide, self.narrow = nn.Linear(64, 256), nn.Linear(256, 64)
        self.rate, self.scale, self.start = 0.1, 1.0, 16

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = functional.gelu(self.wide(self.norm(x))) * self.scale
        part = wide[:, self.start : self.start + 64]
        total: torch.Tensor = x + part * part.sin()
        return total + functional.dropout(self.narrow(wide), self.rate, training=True)


def numbers() -> nn.Sequential:
    """Four of them, with an input whose parts are seldom equal."""
    return nn.Sequential(*(Numbers() for _ in range(4)))


def in_part(make: Callable[[], nn.Module], x: torch.Tensor) -> list[nn.Module]:
    """A plain model, and an equal one that keeps stages in part."""
    torch.manual_seed(0)
    plain = make()
    planned = copy.deepcopy(plain)
    chainstay.fit(planned, (x,), budget="60%", loss=loss_of, repeats=1)
    assert keeps_in_part(planned)
    return [plain, planned]


def gradients_of(model: nn.Module, x: torch.Tensor, seed: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    model.zero_grad()
    loss = loss_of(model(x))
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return found | {"loss": loss.detach(), "random": torch.get_rng_state()}


@pytest.mark.parametrize(
    ("name", "values", "plans"),
    [
        ("scale", (1.0, 0.5, 0.25, 3.0), 1),  # saves the same whatever it is
        ("rate", (0.1, 0.2, 0.3, 0.05), 1),
        ("rate", (0.1, 0.0, 0.2, 0.0), None),  # with 0, dropout saves nothing
        ("rate", (0.1, 0.2, 1.0, 0.0), None),
        ("start", (16, 0, 64, 32), None),  # a saved view lies elsewhere
    ],
)
def test_numbers_that_change(name: str, values: tuple[float, ...], plans: int | None) -> None:
    x = torch.randn(256, 64)
    models = in_part(numbers, x)
    for step, value in enumerate(values):
        for model in models:
            for layer in model.children():
                setattr(layer, name, value)
        plain, planned = (gradients_of(model, x, step) for model in models)
        assert differences(planned, plain) == [], step
    assert plans is None or len(shown(models[1]).plans) == plans


def test_a_number_between_forward_and_backward() -> None:
    """A replay is of the forward as it was."""
    x = torch.randn(256, 64)
    models = in_part(numbers, x)
    found = []
    for model in models:
        torch.manual_seed(0)
        loss = loss_of(model(x))
        for layer in model.children():
            layer.scale, layer.rate = 7.0, 0.5  # type: ignore[assignment]  # of a Numbers
        loss.backward()
        found.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert differences(found[1], found[0]) == []


def test_parameters_frozen_after_fit() -> None:
    x = torch.randn(256, 64)
    models = in_part(numbers, x)
    for step in range(3):
        for model in models:
            for layer in list(model.children())[:step]:
                layer.requires_grad_(requires_grad=False)
        plain, planned = (gradients_of(model, x, step) for model in models)
        assert differences(planned, plain) == [], step


def test_kernels_chosen_after_fit() -> None:
    """Attention saves other tensors then, so that stages are kept whole."""
    models = in_part(lambda: Language(is_gated=True).train(), _TOKENS)
    for step, kernel in enumerate((SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)):
        with sdpa_kernel(kernel):
            plain, planned = (gradients_of(model, _TOKENS, step) for model in models)
        assert differences(planned, plain) == [], kernel


def test_copies_and_files_of_a_model_whose_stages_are_kept_in_part() -> None:
    x = torch.randn(256, 64)
    plain, planned = in_part(numbers, x)
    expected = gradients_of(plain, x, 0)
    for twin in (copy.deepcopy(planned), copy.deepcopy(chainstay.unfit(copy.deepcopy(planned)))):
        assert differences(gradients_of(twin, x, 0), expected) == []
    assert pickle.loads(pickle.dumps(plain.state_dict())).keys() == planned.state_dict().keys()


def test_without_options_stages_run_again() -> None:
    x = torch.randn(256, 64)
    model = chainstay.fit(numbers(), (x,), budget="70%", stage_options=False, repeats=1)
    assert recomputes(model)
    assert not keeps_in_part(model)


def test_a_measured_chain_goes_by_options() -> None:
    x = torch.randn(256, 64)
    torch.manual_seed(0)
    plain = numbers()
    measured = chainstay.measure(copy.deepcopy(plain), x, loss=loss_of, repeats=1)
    solution = chainstay.solve_measured(measured, "60%")
    assert any(op.option for op in solution.schedule)
    chain = measured.planned(solution)
    expected, found = (gradients_of(model, x, 0) for model in (plain, chain))
    assert list(map(torch.equal, found.values(), expected.values())) == [True] * len(expected)


def test_a_loss_that_is_the_output() -> None:
    """It has no operators at all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 1), nn.Flatten(0))
    chainstay.fit(model, (torch.randn(1, 8),), budget="100%", loss=lambda y: y, repeats=1)
    model(torch.randn(1, 8)).sum().backward()


def test_costs_of_options_on_file_are_for_those_who_want_options(tmp_path: Path) -> None:
    """A fit without options, or one that needs none, has no use for those on file."""
    x, model = torch.randn(256, 64), numbers()

    def fitted(model: nn.Module, budget: str, *, stage_options: bool = True) -> nn.Module:
        settings: Any = {"budget": budget, "stage_options": stage_options}
        return chainstay.fit(model, (x,), loss=loss_of, repeats=1, cache=tmp_path, **settings)

    assert keeps_in_part(fitted(numbers(), "60%"))
    assert not keeps_in_part(fitted(numbers(), "70%", stage_options=False))
    assert keeps_in_part(fitted(numbers(), "60%")), "read from the file again"
    assert not keeps_in_part(fitted(model, "100%"))
    assert keeps_in_part(fitted(model, "60%"))
