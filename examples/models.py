"""Well-known networks with random weights: ResNet-50, GPT-2 and a U-Net.

The first two are plain `torch.nn.Sequential` models of the standard architecture, written so
that each stage takes one tensor and gives one tensor; the U-Net has skip connections.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

__all__ = ["UNet", "gpt2", "resnet50"]


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut ([HZRS16], Figure 5, right)."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False),
            nn.BatchNorm2d(4 * width),
        )
        self.shortcut = nn.Sequential()
        if stride != 1 or channels != 4 * width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, 4 * width, 1, stride=stride, bias=False),
                nn.BatchNorm2d(4 * width),
            )
        self.activation = nn.ReLU(inplace=True)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.activation(self.body(image) + self.shortcut(image))
        return total


def resnet50(num_classes: int = 1000, width: int = 64) -> nn.Sequential:
    """ResNet-50 as 18 stages: stem, 16 bottlenecks, head.

    Args:
        num_classes: Size of the output's last dimension.
        width: Channels of the stem; all others are multiples of it.

    Returns:
        A model from images (batch, 3, height, width) to scores (batch, num_classes).
    """
    stages = OrderedDict[str, nn.Module]()
    stages["stem"] = nn.Sequential(
        nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    )
    channels = width
    for group, blocks in enumerate((3, 4, 6, 3)):
        inner = width << group
        for block in range(blocks):
            stride = 2 if group and block == 0 else 1
            stages[f"group{group + 1}_block{block}"] = Bottleneck(channels, inner, stride)
            channels = 4 * inner
    stages["head"] = nn.Sequential(
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, num_classes)
    )
    return nn.Sequential(stages)


class Embedding(nn.Module):
    """Tokens to vectors: one per token, plus one per position."""

    def __init__(self, vocabulary: int, context: int, width: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        hidden: torch.Tensor = self.dropout(self.tokens(tokens) + self.positions(positions))
        return hidden


class Attention(nn.Module):
    """First half of a block: causal self-attention beside a shortcut."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        batch, length, width = hidden.shape
        mixed = self.query_key_value(self.norm(hidden))
        query, key, value = mixed.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout.p if self.training else 0.0, is_causal=True
        )
        joined = attended.transpose(1, 2).reshape(batch, length, width)
        total: torch.Tensor = hidden + self.dropout(self.project(joined))
        return total


class Perceptron(nn.Module):
    """Second half of a block: two linear layers beside a shortcut."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
            nn.Dropout(dropout),
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = hidden + self.body(hidden)
        return total


def gpt2(  # noqa: PLR0913  # the architecture's own numbers, all with their usual value
    *,
    blocks: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50257,
    context: int = 1024,
    dropout: float = 0.1,
) -> nn.Sequential:
    """GPT-2 as ``2 * blocks + 2`` stages: embedding, two halves per block, head.

    Args:
        blocks: Transformer blocks.
        width: Of the vectors between stages; a multiple of `heads`.
        heads: Of each attention.
        vocabulary: Number of tokens.
        context: Longest input.
        dropout: Probability, in all places where GPT-2 has it.

    Returns:
        A model from tokens (batch, length) to scores (batch, length, vocabulary).
    """
    stages = OrderedDict[str, nn.Module]()
    stages["embedding"] = Embedding(vocabulary, context, width, dropout)
    for block in range(blocks):
        stages[f"block{block}_attention"] = Attention(width, heads, dropout)
        stages[f"block{block}_perceptron"] = Perceptron(width, dropout)
    stages["head"] = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False))
    return nn.Sequential(stages)


class UNet(nn.Module):
    """Down, up, and a skip connection at every level."""

    def __init__(self, width: int = 16, levels: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        block = partial(_double_convolution, dropout=dropout)
        widths = [width << level for level in range(levels + 1)]
        self.stem = block(3, width)
        self.down = nn.ModuleList(map(block, widths, widths[1:]))
        self.rise = nn.ModuleList(
            nn.ConvTranspose2d(wide, narrow, 2, stride=2) for narrow, wide in pairwise(widths)
        )
        self.up = nn.ModuleList(block(2 * narrow, narrow) for narrow in widths[:-1])
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Two maps of the size of `image`."""
        features = self.stem(image)
        skips = []
        for block in self.down:
            skips.append(features)
            features = block(functional.max_pool2d(features, 2))
        for level in reversed(range(len(skips))):
            raised = self.rise[level](features)
            features = self.up[level](torch.cat([skips[level], raised], dim=1))
        maps: torch.Tensor = self.head(features)
        return maps


def _double_convolution(wide: int, narrow: int, *, dropout: float) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(wide, narrow, 3, padding=1),
        nn.BatchNorm2d(narrow),
        nn.ReLU(inplace=True),
        nn.Conv2d(narrow, narrow, 3, padding=1),
        nn.BatchNorm2d(narrow),
        nn.ReLU(inplace=True),
        *((nn.Dropout2d(dropout),) if dropout else ()),
    )
