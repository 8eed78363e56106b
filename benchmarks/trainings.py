"""Seven networks to train on one core, for the comparisons with other ways to save memory.

ResNet-50, DenseNet-121 and the U-Net have BatchNorm; ViT, GPT-2 and BERT have dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from benchmarks.networks import convnext, vit
from models import UNet, gpt2, resnet50
from zoo import Appended  # torchvision and what imports it can be imported only after this

__all__ = ["NETWORKS", "Training", "training_of"]

VOCABULARY: Final = 1000
LENGTH: Final = 96


@dataclass(frozen=True)
class Training:
    """A model and a call of it.

    Attributes:
        name: Of the network.
        model: In training mode.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        loss: From the output to a number.
    """

    name: str
    model: nn.Module
    args: tuple[torch.Tensor, ...]
    kwargs: dict[str, torch.Tensor]
    loss: Callable[[Any], torch.Tensor]

    @property
    def samples(self) -> int:
        """Samples in one step."""
        return len(self.args[0])

    @property
    def given_bytes(self) -> int:
        """Bytes of the call's arguments; budgets count them."""
        return sum(tensor.nbytes for tensor in (*self.args, *self.kwargs.values()))


def training_of(name: str, device: torch.device) -> Training:
    """Return the network of that name with a batch; every parameter has a gradient already.

    Gradients of parameters are the caller's, and no budget covers them.
    """
    torch.manual_seed(0)
    training = NETWORKS[name](name, device)
    for parameter in training.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return training


def _on_images(
    build: Callable[[], nn.Module], batch: int, name: str, device: torch.device
) -> Training:
    images = torch.randn(batch, 3, 64, 64, device=device)
    classes = torch.randint(0, 1000, (batch,), device=device)
    loss = partial(_cross_entropy, classes)
    return Training(name, build().to(device), (images,), {}, loss)


def _on_maps(name: str, device: torch.device) -> Training:
    images = torch.randn(8, 3, 64, 64, device=device)
    masks = torch.rand(8, 2, 64, 64, device=device)
    loss = partial(_binary_cross_entropy, masks)
    return Training(name, UNet().to(device), (images,), {}, loss)


def _gpt2(name: str, device: torch.device) -> Training:
    tokens, following = _tokens(device), _tokens(device)
    model = gpt2(blocks=8, width=128, heads=4, vocabulary=VOCABULARY, context=LENGTH)
    loss = partial(_cross_entropy, following.flatten())
    return Training(name, model.to(device), (tokens,), {}, loss)


def _bert(name: str, device: torch.device) -> Training:
    transformers: Any = import_module("transformers")
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=512,
        attn_implementation="sdpa",
    )
    tokens, labels = _tokens(device), _tokens(device)
    model = transformers.BertForMaskedLM(config).train().to(device)
    return Training(name, model, (tokens,), {"labels": labels}, lambda output: output.loss)


def _densenet121() -> nn.Sequential:
    """DenseNet-121 of torchvision, one stage per dense layer and per transition."""
    models: Any = import_module("torchvision.models")
    net = models.densenet121()
    features = dict(net.features.named_children())
    stages: list[nn.Module] = [
        nn.Sequential(*(features[name] for name in ("conv0", "norm0", "relu0", "pool0")))
    ]
    for name, part in features.items():
        if name.startswith("denseblock"):
            stages += map(Appended, part.children())
        elif name.startswith("transition"):
            stages.append(part)
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), net.classifier)
    return nn.Sequential(*stages, nn.Sequential(features["norm5"], nn.ReLU(), *pool))


def _tokens(device: torch.device) -> torch.Tensor:
    return torch.randint(0, VOCABULARY, (4, LENGTH), device=device)


def _cross_entropy(targets: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(scores.flatten(0, -2), targets)


def _binary_cross_entropy(masks: torch.Tensor, maps: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(maps, masks)


NETWORKS: Final[Mapping[str, Callable[[str, torch.device], Training]]] = MappingProxyType(
    {
        "DenseNet-121": partial(_on_images, _densenet121, 4),
        "ResNet-50": partial(_on_images, partial(resnet50, width=16), 16),
        "ViT": partial(_on_images, partial(vit, side=64, patch=8, blocks=8, width=96, heads=6), 8),
        "ConvNeXt": partial(_on_images, partial(convnext, widths=(24, 48, 96, 192)), 8),
        "GPT-2": _gpt2,
        "U-Net": _on_maps,
        "BERT": _bert,
    }
)
"""What builds each network, by its name; the longest first."""
