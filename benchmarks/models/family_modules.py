"""Modules as people write them, in plain PyTorch; none is in the tests' zoo."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import Final

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional

from zoo import Sample

__all__ = ["MODULE_FAMILIES"]


class _Guess(nn.Module):
    """An autoencoder with a distribution inside, which looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.mean, self.spread = nn.Linear(64, 16), nn.Linear(64, 16)
        self.decode = nn.Sequential(nn.Linear(16, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        """What is made of a guess, and how far that is from the usual one."""
        hidden = self.encode(x)
        guess = Normal(self.mean(hidden), self.spread(hidden).exp())
        return {
            "made": self.decode(guess.rsample()),
            "divergence": kl_divergence(guess, Normal(0.0, 1.0)),
        }


class _Sum(nn.Module):
    """Dilated convolutions that all add to one output."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, 16, 1)
        self.gates = nn.ModuleList(nn.Conv1d(16, 32, 2, dilation=2 ** (n % 5)) for n in range(10))
        self.on = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(10))
        self.out = nn.ModuleList(nn.Conv1d(16, 16, 1) for _ in range(10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As long as `x`."""
        x, total = self.enter(x), torch.zeros(())
        layers = zip(self.gates, self.on, self.out, strict=True)
        for depth, (gate, on, out) in enumerate(layers):
            padded = functional.pad(x, (2 ** (depth % 5), 0))
            left, right = gate(padded).chunk(2, 1)
            made = torch.tanh(left) * torch.sigmoid(right)
            total, x = total + out(made), x + on(made)
        return total


class _Flow(nn.Module):
    """Runge-Kutta steps through one field."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(8, 32), nn.Linear(32, 4)
        self.field = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores."""
        y, step = self.enter(x), 1 / 6
        for _ in range(6):
            first = self.field(y)
            second = self.field(y + step / 2 * first)
            third = self.field(y + step / 2 * second)
            y = y + step / 6 * (first + 2 * second + 2 * third + self.field(y + step * third))
        scores: torch.Tensor = self.leave(y)
        return scores


class _Made(nn.Module):
    """Layers whose weights another layer makes."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.ParameterList(torch.randn(16) for _ in range(6))
        self.make = nn.Linear(16, 32 * 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As large as `x`."""
        for code in self.codes:
            x = x + torch.tanh(functional.linear(x, 0.1 * self.make(code).view(32, 32)))
        return x


class _Attention(nn.Module):
    """Softmax over the edges that meet at a node."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(5))
        self.scores = nn.ParameterList(0.1 * torch.randn(64) for _ in range(5))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """New features of every node."""
        begin, end = edges
        for layer, score in zip(self.layers, self.scores, strict=True):
            made = layer(functional.dropout(x, 0.3, self.training))
            weights = functional.leaky_relu(torch.cat([made[begin], made[end]], 1) @ score).exp()
            total = x.new_zeros(len(x)).scatter_add(0, end, weights)[end]
            sent = made[begin] * (weights / total)[:, None]
            x = x + functional.elu(torch.zeros_like(made).index_add_(0, end, sent))
        return x


class _Cells(nn.Module):
    """A convolutional LSTM, its steps a Python loop."""

    def __init__(self) -> None:
        super().__init__()
        self.gates, self.leave = nn.Conv2d(11, 32, 3, padding=1), nn.Conv2d(8, 3, 1)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """The frames to come."""
        hidden = cell = frames.new_zeros(len(frames), 8, *frames.shape[-2:])
        made = []
        for frame in frames.unbind(1):
            gates = self.gates(torch.cat([frame, hidden], 1))
            enter, keep, leave, new = gates.chunk(4, 1)
            cell = keep.sigmoid() * cell + enter.sigmoid() * new.tanh()
            hidden = leave.sigmoid() * cell.tanh()
            made.append(self.leave(hidden))
        return torch.stack(made, 1)


class _Teacher(nn.Module):
    """A teacher that follows its student in every forward."""

    def __init__(self) -> None:
        super().__init__()
        sizes = (32, 128, 128, 128, 16)
        self.student, self.teacher = (
            nn.Sequential(*(nn.Sequential(nn.Linear(*two), nn.Tanh()) for two in pairwise(sizes)))
            for _ in range(2)
        )
        self.teacher.requires_grad_(requires_grad=False)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """How far the student is from the teacher."""
        with torch.no_grad():
            for old, new in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                old.lerp_(new, 0.01)
            expected: torch.Tensor = self.teacher(other)
        found: torch.Tensor = self.student(one)
        return found - expected


MODULE_FAMILIES: Final[Mapping[str, Callable[[], Sample]]] = MappingProxyType(
    {
        "variational autoencoder": lambda: Sample(_Guess(), (torch.randn(64, 64),)),
        "WaveNet, skips summed": lambda: Sample(_Sum(), (torch.randn(2, 1, 400),)),
        "Runge-Kutta": lambda: Sample(_Flow(), (torch.randn(128, 8),)),
        "hypernetwork": lambda: Sample(_Made(), (torch.randn(256, 32),)),
        "attention in a graph": lambda: Sample(
            _Attention(), (torch.randn(40, 32), torch.randint(0, 40, (2, 200)))
        ),
        "convolutional LSTM": lambda: Sample(_Cells(), (torch.randn(2, 8, 3, 16, 16),)),
        "RReLU": lambda: Sample(
            nn.Sequential(
                *(nn.Sequential(nn.Conv1d(16, 16, 3, padding=1), nn.RReLU()) for _ in range(8))
            ),
            (torch.randn(4, 16, 64),),
        ),
        "teacher and student": lambda: Sample(
            _Teacher(), (torch.randn(64, 32), torch.randn(64, 32))
        ),
    }
)
"""By name, what builds a model and a call of it."""
