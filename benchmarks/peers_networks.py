"""Seven networks for the comparison with peers, small enough for a processor's core.

ResNet-50, DenseNet-121 and the U-Net have BatchNorm; ViT, GPT-2 and BERT have dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import nn
from torch.nn import functional

from benchmarks.frontier_networks import Training
from benchmarks.networks import convnext, vit
from benchmarks.offload_networks import stages_of, torchvision_models
from models import UNet, gpt2, resnet50

__all__ = ["NETWORKS", "training_of"]

VOCABULARY: Final = 1000
LENGTH: Final = 96


def training_of(name: str) -> Training:
    """The network of that name with a batch; every parameter has a gradient already.

    Gradients of parameters are the caller's, and no budget covers them.
    """
    torch.manual_seed(0)
    training = NETWORKS[name](name)
    for parameter in training.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return training


def _on_images(build: Callable[[], nn.Module], batch: int, name: str) -> Training:
    images = torch.randn(batch, 3, 64, 64)
    classes = torch.randint(0, 1000, (batch,))
    return Training(
        name, build(), (images,), {}, lambda scores: functional.cross_entropy(scores, classes)
    )


def _on_maps(name: str) -> Training:
    images, masks = torch.randn(8, 3, 64, 64), torch.rand(8, 2, 64, 64)
    return Training(
        name,
        UNet(),
        (images,),
        {},
        lambda maps: functional.binary_cross_entropy_with_logits(maps, masks),
    )


def _gpt2(name: str) -> Training:
    tokens, following = (torch.randint(0, VOCABULARY, (4, LENGTH)) for _ in range(2))
    return Training(
        name,
        gpt2(blocks=8, width=128, heads=4, vocabulary=VOCABULARY, context=LENGTH),
        (tokens,),
        {},
        lambda scores: functional.cross_entropy(scores.flatten(0, 1), following.flatten()),
    )


def _bert(name: str) -> Training:
    torchvision_models()  # transformers imports it, and would fail where it fails
    transformers: Any = import_module("transformers")
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=512,
        attn_implementation="sdpa",
    )
    tokens, labels = (torch.randint(0, VOCABULARY, (4, LENGTH)) for _ in range(2))
    model = transformers.BertForMaskedLM(config).train()
    return Training(name, model, (tokens,), {"labels": labels}, lambda output: output.loss)


NETWORKS: Final[Mapping[str, Callable[[str], Training]]] = MappingProxyType(
    {
        "DenseNet-121": partial(_on_images, partial(stages_of, "densenet121"), 4),
        "ResNet-50": partial(_on_images, partial(resnet50, width=16), 16),
        "ViT": partial(_on_images, partial(vit, side=64, patch=8, blocks=8, width=96, heads=6), 8),
        "ConvNeXt": partial(_on_images, partial(convnext, widths=(24, 48, 96, 192)), 8),
        "GPT-2": _gpt2,
        "U-Net": _on_maps,
        "BERT": _bert,
    }
)
"""By name, what builds each; the longest first."""
