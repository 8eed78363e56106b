"""Real models in small, with random weights: what users train, fit for one core.

Tests train them, and benchmarks take `Sample` and `loss_of` from here. torchvision, transformers
and timm are wanted by tests only; where one is missing, its families are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from models import UNet

__all__ = ["FAMILIES", "Appended", "Sample", "TwoTowers", "build", "loss_of"]


# The wheel of torchvision on PyPI is built for CUDA and cannot load its operators beside a
# torch for CPUs. No model here uses them, but torchvision, which transformers and timm import,
# too, asks for the schemas of two of them.
_OPERATORS = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    if torch.version.cuda is None and not hasattr(torch.ops.torchvision, _name):
        _OPERATORS.define(f"{_name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")


@dataclass(frozen=True)
class Sample:
    """A model in training mode and a call of it."""

    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self) -> Any:
        """Call the model."""
        return self.model(*self.args, **self.kwargs)


class Appended(nn.Module):
    """A dense layer whose output holds its input, too."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """The state and what the layer makes of it."""
        return torch.cat([state, self.layer(state)], 1)


def build(family: str) -> Sample:
    """The family's model, always with the same weights and the same sample."""
    torch.manual_seed(0)
    sample = FAMILIES[family]()
    sample.model.train()
    return sample


def loss_of(output: object) -> torch.Tensor:
    """A number that depends on every differentiable leaf of a model's output."""
    leaves = [leaf for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)]
    total = torch.zeros(())
    for leaf in leaves:
        if leaf.requires_grad:
            total = total + leaf.float().square().mean()
    return total


def _torchvision(name: str, size: int, batch: int = 2, **options: Any) -> Sample:
    models = pytest.importorskip("torchvision.models")
    model = models.get_model(name, weights=None, num_classes=10, **options)
    return Sample(model, (torch.randn(batch, 3, size, size),))


def _resnet(depths: list[int], size: int, width: int) -> Sample:
    """With `width` instead of 64 inside the first bottlenecks."""
    resnet = pytest.importorskip("torchvision.models.resnet")
    model = resnet.ResNet(resnet.Bottleneck, depths, num_classes=10, width_per_group=width)
    return Sample(model, (torch.randn(2, 3, size, size),))


def _resnet50() -> Sample:
    return _resnet([3, 4, 6, 3], 64, width=32)


def _resnet101() -> Sample:
    return _resnet([3, 4, 23, 3], 48, width=8)


def _densenet121() -> Sample:
    return _torchvision("densenet121", 64, drop_rate=0.1)


def _inception_v3() -> Sample:
    return _torchvision("inception_v3", 75, init_weights=False, aux_logits=False)


def _vgg16() -> Sample:
    """With a quarter of the width, and a head to match."""
    vgg = pytest.importorskip("torchvision.models.vgg")
    layers = [size if size == "M" else size // 4 for size in vgg.cfgs["D"]]
    model = vgg.VGG(vgg.make_layers(layers), init_weights=False)
    model.avgpool = nn.AdaptiveAvgPool2d(1)
    model.classifier = nn.Sequential(
        nn.Linear(128, 64), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(64, 10)
    )
    return Sample(model, (torch.randn(2, 3, 64, 64),))


def _vit_b_16() -> Sample:
    transformer = pytest.importorskip("torchvision.models.vision_transformer")
    model = transformer.VisionTransformer(
        image_size=64,
        patch_size=16,
        num_layers=4,
        num_heads=4,
        hidden_dim=64,
        mlp_dim=256,
        dropout=0.1,
        attention_dropout=0.1,
        num_classes=10,
    )
    return Sample(model, (torch.randn(8, 3, 64, 64),))


def _transformers(kind: str, config: Any) -> nn.Module:
    model: nn.Module = getattr(pytest.importorskip("transformers"), kind)(config)
    return model


def _tokens(length: int = 24) -> torch.Tensor:
    return torch.randint(0, 96, (2, length))


def _gpt2() -> Sample:
    config = pytest.importorskip("transformers").GPT2Config(
        vocab_size=96,
        n_positions=32,
        n_embd=48,
        n_layer=4,
        n_head=4,
        use_cache=False,
        loss_type="ForCausalLM",
        bos_token_id=None,
        eos_token_id=None,
    )
    tokens = _tokens()
    return Sample(_transformers("GPT2LMHeadModel", config), (tokens,), {"labels": tokens})


def _llama() -> Sample:
    config = pytest.importorskip("transformers").LlamaConfig(
        vocab_size=96,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_dropout=0.1,
        use_cache=False,
    )
    tokens = _tokens()
    return Sample(_transformers("LlamaForCausalLM", config), (tokens,), {"labels": tokens})


def _bert() -> Sample:
    config = pytest.importorskip("transformers").BertConfig(
        vocab_size=96,
        hidden_size=48,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=96,
    )
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[:, 20:] = 0
    kwargs = {"attention_mask": mask, "labels": _tokens()}
    return Sample(_transformers("BertForMaskedLM", config), (_tokens(),), kwargs)


def _t5() -> Sample:
    config = pytest.importorskip("transformers").T5Config(
        vocab_size=96,
        d_model=48,
        d_kv=12,
        d_ff=96,
        num_layers=3,
        num_heads=4,
        decoder_start_token_id=0,
        use_cache=False,
    )
    kwargs = {"input_ids": _tokens(), "labels": _tokens(16)}
    return Sample(_transformers("T5ForConditionalGeneration", config), (), kwargs)


def _clip() -> Sample:
    tower = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "attention_dropout": 0.1,
    }
    config = pytest.importorskip("transformers").CLIPConfig(
        text_config={**tower, "vocab_size": 96, "eos_token_id": 95, "max_position_embeddings": 24},
        vision_config={**tower, "image_size": 32, "patch_size": 8},
        projection_dim=32,
    )
    kwargs = {"pixel_values": torch.randn(2, 3, 32, 32), "return_loss": True}
    return Sample(_transformers("CLIPModel", config), (_tokens(),), kwargs)


def _vit() -> Sample:
    config = pytest.importorskip("transformers").ViTConfig(
        image_size=32,
        patch_size=8,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=4,
        num_attention_heads=4,
        hidden_dropout_prob=0.1,
    )
    model = _transformers("ViTForImageClassification", config)
    return Sample(model, (torch.randn(2, 3, 32, 32),))


def _convnext() -> Sample:
    model = pytest.importorskip("timm").create_model(
        "convnext_atto", num_classes=10, drop_rate=0.1, drop_path_rate=0.1
    )
    return Sample(model, (torch.randn(2, 3, 64, 64),))


class TwoTowers(nn.Module):
    """Two encoders with one head for both, called with keywords, returning a dictionary."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.query = _perceptron(width)
        self.item = _perceptron(width)
        self.shared = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(
        self, *, query: torch.Tensor, item: torch.Tensor, weight: torch.Tensor | None = None
    ) -> dict[str, Any]:
        """Compare the towers' outputs."""
        left = functional.normalize(self.shared(self.query(query)), dim=-1)
        right = functional.normalize(self.shared(self.item(item)), dim=-1)
        scores = left @ right.T * self.scale.exp()
        return {"scores": scores if weight is None else scores * weight, "towers": (left, right)}


def _perceptron(width: int) -> nn.Sequential:
    layers = [nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(width, width), nn.Tanh())


def _unet() -> Sample:
    return Sample(UNet(width=8, dropout=0.1), (torch.randn(2, 3, 32, 32),))


def _two_towers() -> Sample:
    kwargs = {"query": torch.randn(6, 32), "item": torch.randn(6, 32), "weight": None}
    return Sample(TwoTowers(), (), kwargs)


FAMILIES: Mapping[str, Callable[[], Sample]] = {
    "ResNet-50": _resnet50,
    "ResNet-101": _resnet101,
    "DenseNet-121": _densenet121,
    "Inception v3": _inception_v3,
    "VGG-16": _vgg16,
    "ViT-B/16": _vit_b_16,
    "U-Net": _unet,
    "two towers": _two_towers,
    "GPT-2": _gpt2,
    "Llama": _llama,
    "BERT": _bert,
    "T5": _t5,
    "CLIP": _clip,
    "HF ViT": _vit,
    "ConvNeXt": _convnext,
}
