"""Small networks with batches on the device, and steps that train them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from simulated_device.place import first
from torch import nn
from torch.nn import functional

from models import UNet, gpt2, resnet50

__all__ = ["NETWORKS", "Case", "Residual", "build", "chain_of", "differences", "record", "step"]

Loss = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """A model with a batch and a loss."""

    model: nn.Module
    batch: torch.Tensor
    loss: Loss


class Residual(nn.Module):
    """A block of a transformer without attention; it draws random numbers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        change: torch.Tensor = self.drop(self.down(torch.tanh(self.up(self.norm(x)))))
        return x + change


class Blocks(nn.Module):
    """Repeated blocks, as a model that is sharded by blocks."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.entry, self.exit = nn.Linear(width, width), nn.Linear(width, 5)
        self.blocks = nn.ModuleList(Residual(width) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.entry(x)
        for block in self.blocks:
            x = block(x)
        out: torch.Tensor = self.exit(x)
        return out


def _tower(width: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU()),
        *(nn.Dropout(0.2), nn.Linear(width, width), nn.Tanh()),
    )


class Towers(nn.Module):
    """Two branches that meet in the loss's own matrix."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.query, self.item = _tower(width), _tower(width)
        self.shared = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, item = self.shared(self.query(x)), self.shared(self.item(x))
        return torch.tanh(query) @ torch.tanh(item).T


def _square(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def _gpt2() -> Case:
    model = gpt2(width=32, heads=2, vocabulary=50, context=16)
    following = torch.randint(0, 50, (32,)).to(first())
    return Case(
        model,
        torch.randint(0, 50, (2, 16)),
        lambda scores: functional.cross_entropy(scores.flatten(0, 1), following),
    )


def _resnet() -> Case:
    classes = torch.randint(0, 1000, (2,)).to(first())
    return Case(
        resnet50(width=8),
        torch.randn(2, 3, 32, 32),
        lambda scores: functional.cross_entropy(scores, classes),
    )


NETWORKS: Final[Mapping[str, Callable[[], Case]]] = {
    "GPT-2": _gpt2,
    "ResNet-50": _resnet,
    "U-Net": lambda: Case(UNet(width=4, dropout=0.1), torch.randn(2, 3, 16, 16), _square),
    "two towers": lambda: Case(Towers(), torch.randn(16, 32), _square),
    "blocks": lambda: Case(Blocks(), torch.randn(16, 32), _square),
}


def build(name: str, device: torch.device | None = None) -> Case:
    """A network on a device, the same at every call."""
    torch.manual_seed(0)
    made, device = NETWORKS[name](), device or first()
    return Case(made.model.to(device), made.batch.to(device), made.loss)


def chain_of(case: Case) -> nn.Sequential:
    """The model, which is a chain of stages."""
    assert isinstance(case.model, nn.Sequential)
    return case.model


def step(case: Case, model: nn.Module | None = None) -> None:
    """Forward and backward; the output is held, as in a usual loop."""
    output = (case.model if model is None else model)(case.batch)
    case.loss(output).backward()


def record(case: Case, model: nn.Module | None = None, steps: int = 2) -> dict[str, torch.Tensor]:
    """All that training leaves behind; the model is put back."""
    trained = case.model if model is None else model
    own = case.model
    initial = {name: value.clone() for name, value in own.state_dict().items()}
    devices = [parameter.device for parameter in own.parameters()]
    device = next(device for device in devices if device.type != "cpu")  # some may be there
    torch.manual_seed(7)
    left = {}
    for number in range(steps):
        own.zero_grad()
        output = trained(case.batch)
        value = case.loss(output)
        value.backward()
        left[f"loss {number}"] = value.detach()
        with torch.no_grad():
            for parameter in own.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad, alpha=1e-3)
    for name, parameter in own.named_parameters():
        assert parameter.grad is not None
        left[f"gradient {name}"] = parameter.grad.clone()
    left |= {name: value.clone() for name, value in own.state_dict().items()}
    torch.accelerator.synchronize(device)
    left = {name: value.cpu() for name, value in left.items()}
    module = torch.get_device_module(device)
    left["random state"] = torch.get_rng_state()
    left["random state of the device"] = module.get_rng_state(device)
    own.load_state_dict(initial)
    return left


def differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    """Names of what is not equal to the last bit."""
    assert one.keys() == other.keys()
    return [name for name, value in one.items() if not torch.equal(value, other[name])]
