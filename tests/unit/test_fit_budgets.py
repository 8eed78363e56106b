"""What budgets mean in bytes, on the device and on the host, and what is off in training."""

from __future__ import annotations

import copy
from fractions import Fraction
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from chainstay import InfeasibleBudgetError, fit, measure
from chainstay.fitting.budgets import bytes_of
from chainstay.fitting.strategies.memory_options import MemoryOptions
from chainstay.fitting.transformers_models import caches_set, caching_configs
from chainstay.profiles import Link
from chainstay.runtime.devices.memory import trace_memory

LINK = Link(bandwidth=2, capacity=1000)


def test_shares_are_rounded_down() -> None:
    """Of what the profiler says of plain training; text and numbers mean the same."""
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))
    batch = torch.zeros(9, 5)
    measured = measure(model, batch, repeats=1)
    plain = bytes_of(1.0, model, 0, measured)
    assert plain == bytes_of("100%", model, 0, measured)
    for share in (Fraction(1, 3), Fraction(2, 3), Fraction(1, 7), 0.6, Fraction(1, plain)):
        found = bytes_of(share, model, 0, measured)
        assert found <= share * plain < found + 1

    def step() -> None:
        model(batch).square().sum().backward()

    assert trace_memory(step, "cpu").peak_bytes <= plain


@pytest.mark.parametrize(
    ("host_budget", "capacity"), [(None, 1000), (400, 400), (1000, 1000), (4000, 1000)]
)
def test_of_two_limits_on_the_host_the_lower_one_counts(
    host_budget: int | None, capacity: int
) -> None:
    device = torch.device("cpu")
    memory = MemoryOptions.of(
        recompute=True, offload=True, link=LINK, host_budget=host_budget, device=device
    )
    assert memory.link_on(device) == Link(bandwidth=2, capacity=capacity)


def test_caches_are_off_inside_and_on_again() -> None:
    """Of every module's own config, also when training breaks off; of others nothing changes."""
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    configs = [SimpleNamespace(use_cache=flag) for flag in (True, False, True)]
    for layer, config in zip(model, configs, strict=True):
        setattr(layer, "config", config)  # noqa: B010  # modules have no such attribute

    def flags() -> list[bool]:
        return [config.use_cache for config in configs]

    def broken_off() -> None:
        with caches_set(caching_configs(model), kept=False):
            assert flags() == [False, False, False]
            raise KeyError

    with pytest.raises(KeyError):
        broken_off()
    assert flags() == [True, False, True]


class Caching(nn.Module):
    """Gives what it keeps, too, and multiplies by `factor`, while its configuration says so."""

    def __init__(self, factor: int = 1) -> None:
        super().__init__()
        self.linear, self.factor = nn.Linear(2, 2), factor
        self.config = SimpleNamespace(use_cache=True)

    def forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output: torch.Tensor = self.linear(batch)
        return (self.factor * output, output + 1) if self.config.use_cache else (output,)


def test_caches_are_kept_in_evaluation() -> None:
    """Gradients may be wanted there, too, so that there is a plan for either mode."""
    model = Caching()
    fit(model, budget="1MiB", repeats=1, progress=False)
    assert len(model(torch.ones(1, 2))) == 1
    model.eval()
    assert len(model(torch.ones(1, 2))) == 2
    assert model.config.use_cache


def test_caches_are_kept_where_the_bits_depend_on_them(capsys: pytest.CaptureFixture[str]) -> None:
    """With dropout, torch's attention may have other last bits for keys that a cache has copied."""
    model = Caching(factor=2)
    expected = 2 * model.linear(torch.ones(1, 2))
    fit(model, budget="1MiB", repeats=1)
    for _ in range(2):
        output, _ = model(torch.ones(1, 2))
        assert torch.equal(output, expected)
    assert model.config.use_cache
    told = "Caching gives other bits without its cache of keys and values, or fails, so the plan"
    assert capsys.readouterr().err.count(told) == 1


class NeedingCache(Caching):
    """Fails without its cache."""

    def forward(self, batch: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output, _ = super().forward(batch)
        return (output,)


def test_caches_are_kept_where_the_model_fails_without() -> None:
    model = NeedingCache()
    (expected,) = model(torch.ones(1, 2))
    fit(model, budget="1MiB", repeats=1, progress=False)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        model(torch.ones(1, 3))  # with it, too
    assert torch.equal(model(torch.ones(1, 2))[0], expected)


class Checkpointed(nn.Sequential):
    """Saves memory by itself."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:  # noqa: A002  # as it is called there
        for layer in self:
            input = checkpoint(layer, input, use_reentrant=False)  # noqa: A001  # likewise
        return input


@pytest.mark.parametrize(
    ("kind", "budget", "count"),
    [(Checkpointed, "100%", 1), (Checkpointed, "1MiB", 0), (nn.Sequential, "100%", 0)],
)
def test_shares_are_of_training_without_the_model_s_own_checkpoints(
    kind: type[nn.Sequential], budget: str, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = (nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3))
    fit(kind(*layers), (torch.ones(4, 8),), budget=budget, repeats=1)
    told = f"in Checkpointed, and '{budget}' is a share of training without that"
    assert capsys.readouterr().err.count(told) == count


def test_a_copy_has_caches_of_its_own() -> None:
    """Its configuration is another one."""
    model = Caching()
    fit(model, budget="1MiB", repeats=1, progress=False)
    assert len(copy.deepcopy(model)(torch.ones(1, 2))) == 1
    model.config.use_cache = False
    assert len(copy.deepcopy(model).eval()(torch.ones(1, 2))) == 1


def test_a_refusal_names_all_stages_that_run_as_one() -> None:
    """The plan that needs least keeps a convolution in part with the two stages behind it."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Tanh(),
        nn.Tanh(),
        nn.Conv2d(3, 8, 3, padding="same"),
        nn.Conv2d(8, 8, 1),
        nn.GELU(),
        nn.Conv2d(8, 1, 1),
    )
    told = r"backward of stages 1 to 3 \(3 to 5\) needs most, .* at ConvolutionBackward0"
    with pytest.raises(InfeasibleBudgetError, match=told):
        fit(
            model,
            (torch.randn(4, 3, 32, 32),),
            budget=1,
            loss=lambda output: output.square().sum(),
            repeats=1,
        )
