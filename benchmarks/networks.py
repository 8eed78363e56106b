"""Networks of several families as chains of stages, random weights, for the benchmarks of training.

ResNet-50 and GPT-2 are those of ``examples/models.py``; the others are written here, so that no
library but torch is needed where the benchmarks run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn
from torch.nn import functional

from benchmarks.training import Task
from models import Attention, Perceptron, gpt2, resnet50

__all__ = ["convnext", "llama", "tasks_on_gpu", "vit"]


class Patches(nn.Module):
    """Images to vectors: one per patch and one for the class, plus one per position."""

    def __init__(self, side: int, patch: int, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, patch, stride=patch)
        self.label = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) * 0.02)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.project(images).flatten(2).transpose(1, 2)
        label = self.label.expand(len(images), -1, -1)
        return torch.cat([label, patches], dim=1) + self.positions


class FullAttention(Attention):
    """As in GPT-2, but every position sees all others."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        mixed = self.query_key_value(self.norm(hidden))
        query, key, value = mixed.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(query, key, value)
        joined = attended.transpose(1, 2).reshape(batch, length, width)
        total: torch.Tensor = hidden + self.dropout(self.project(joined))
        return total


class FirstVector(nn.Module):
    """The vector of the class alone."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden[:, 0]


def vit(
    *, side: int = 224, patch: int = 16, blocks: int = 12, width: int = 768, heads: int = 12
) -> nn.Sequential:
    """ViT as ``2 * blocks + 2`` stages, from images (batch, 3, side, side) to 1,000 scores."""
    stages = OrderedDict[str, nn.Module]()
    stages["patches"] = Patches(side, patch, width)
    for block in range(blocks):
        stages[f"block{block}_attention"] = FullAttention(width, heads, 0.1)
        stages[f"block{block}_perceptron"] = Perceptron(width, 0.1)
    stages["head"] = nn.Sequential(FirstVector(), nn.LayerNorm(width), nn.Linear(width, 1000))
    return nn.Sequential(stages)


class RotaryAttention(nn.Module):
    """First half of a Llama block: rotary positions, causal, no bias, beside a shortcut."""

    cosine: torch.Tensor
    sine: torch.Tensor

    def __init__(self, width: int, heads: int, context: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.RMSNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        size = width // heads
        speeds = 10000.0 ** (-torch.arange(0, size, 2) / size)
        angles = torch.outer(torch.arange(context), speeds).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        mixed = self.query_key_value(self.norm(hidden))
        query, key, value = mixed.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            self._turned(query), self._turned(key), value, is_causal=True
        )
        total: torch.Tensor = hidden + self.project(
            attended.transpose(1, 2).reshape(batch, length, width)
        )
        return total

    def _turned(self, vectors: torch.Tensor) -> torch.Tensor:
        length = vectors.shape[-2]
        left, right = vectors.chunk(2, dim=-1)
        crossed = torch.cat([-right, left], dim=-1)
        turned: torch.Tensor = vectors * self.cosine[:length] + crossed * self.sine[:length]
        return turned


class GatedPerceptron(nn.Module):
    """Second half of a Llama block: SwiGLU beside a shortcut."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        normed = self.norm(hidden)
        total: torch.Tensor = hidden + self.down(
            functional.silu(self.gate(normed)) * self.up(normed)
        )
        return total


def llama(
    *, blocks: int = 8, width: int = 2048, heads: int = 16, vocabulary: int = 32000, context: int
) -> nn.Sequential:
    """A stack of Llama blocks as ``2 * blocks + 2`` stages, from tokens to scores."""
    stages = OrderedDict[str, nn.Module]()
    stages["embedding"] = nn.Embedding(vocabulary, width)
    for block in range(blocks):
        stages[f"block{block}_attention"] = RotaryAttention(width, heads, context)
        stages[f"block{block}_perceptron"] = GatedPerceptron(width, width * 11 // 4)
    stages["head"] = nn.Sequential(nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False))
    return nn.Sequential(stages)


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution and two linear layers beside a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mix = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.body = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.scale = nn.Parameter(torch.full((width,), 1e-1))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        body = self.body(self.mix(image).permute(0, 2, 3, 1)) * self.scale
        total: torch.Tensor = image + body.permute(0, 3, 1, 2)
        return total


def convnext(
    depths: tuple[int, ...] = (3, 3, 9, 3), widths: tuple[int, ...] = (96, 192, 384, 768)
) -> nn.Sequential:
    """ConvNeXt, one stage per block and per change of resolution."""
    stages, channels = OrderedDict[str, nn.Module](), 3
    for group, (depth, width) in enumerate(zip(depths, widths, strict=True)):
        step = 4 if group == 0 else 2
        stages[f"group{group}"] = nn.Sequential(
            nn.Conv2d(channels, width, step, stride=step), nn.GroupNorm(1, width)
        )
        for block in range(depth):
            stages[f"group{group}_block{block}"] = ConvNeXtBlock(width)
        channels = width
    stages["head"] = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
    return nn.Sequential(stages)


def tasks_on_gpu(device: torch.device) -> Iterator[Task]:
    """Four families at their usual sizes, about a quarter of a second a step on an H200.

    On the CPU the same four in small, to see that everything runs.
    """
    if device.type == "cpu":
        yield from _small_tasks(device)
        return
    yield _on_images("ResNet-50", resnet50, batch=64, side=224, device=device)
    yield _on_images("ViT-B/16", vit, batch=64, side=224, device=device)
    yield _on_tokens("GPT-2", gpt2, batch=8, length=1024, vocabulary=50257, device=device)
    task = _on_tokens(
        "Llama blocks, bf16",
        partial(llama, context=2048),
        batch=4,
        length=2048,
        vocabulary=32000,
        device=device,
    )
    task.model.to(torch.bfloat16)
    yield task


def _small_tasks(device: torch.device) -> Iterator[Task]:
    small = {"blocks": 8, "width": 192, "heads": 6}
    yield _on_images("ResNet-50", resnet50, batch=4, side=64, device=device)
    build = partial(vit, side=64, patch=8, **small)
    yield _on_images("ViT", build, batch=8, side=64, device=device)
    for name, network in (("GPT-2", gpt2), ("Llama blocks", llama)):
        build = partial(network, vocabulary=2000, context=128, **small)
        yield _on_tokens(name, build, batch=4, length=128, vocabulary=2000, device=device)


Build = Callable[[], nn.Sequential]


def _on_images(name: str, build: Build, *, batch: int, side: int, device: torch.device) -> Task:
    torch.manual_seed(0)
    model = build().to(device)
    images = torch.randn(batch, 3, side, side, device=device)
    classes = torch.randint(1000, (batch,), device=device)
    return Task(name, model, images, partial(_cross_entropy, classes))


def _on_tokens(  # noqa: PLR0913  # each a number of its own
    name: str, build: Build, *, batch: int, length: int, vocabulary: int, device: torch.device
) -> Task:
    torch.manual_seed(0)
    model = build().to(device)
    tokens = torch.randint(vocabulary, (batch, length + 1), device=device)
    following = tokens[:, 1:].flatten()
    return Task(name, model, tokens[:, :-1].contiguous(), partial(_cross_entropy, following))


def _cross_entropy(targets: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, -2), targets)
