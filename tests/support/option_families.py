"""Small models of many families, whose stages are worth keeping in part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

__all__ = ["FAMILIES", "TOKENS", "Language", "Residual"]


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

    def __init__(self, *, is_tied: bool = False, **settings: Any) -> None:
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
    """A ResNet's block: BatchNorm beside a skip, changed in place behind their sum."""

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


TOKENS: Final = torch.arange(8 * 32).reshape(8, 32) * 7 % 32
_IMAGES: Final = torch.linspace(-3, 5, 8 * 3 * 32 * 32).sin().reshape(8, 3, 32, 32)

FAMILIES: Final[dict[str, tuple[Callable[[], nn.Module], torch.Tensor]]] = {
    "GPT": (lambda: Language(dropout=0.1), TOKENS),
    "LLaMA": (lambda: Language(is_gated=True), TOKENS),
    "tied": (lambda: Language(is_tied=True, dropout=0.2), TOKENS),
    "ViT": (Vision, _IMAGES),
    "ResNet": (lambda: stacked(Residual), _IMAGES),
    "ConvNeXt": (lambda: stacked(ConvNeXt), _IMAGES),
    "UNet": (UNet, _IMAGES),
    "CNN": (convolutions, _IMAGES.repeat(4, 1, 1, 1)),
}
