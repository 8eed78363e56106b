"""Networks of torchvision as sequences of stages, tensor in, tensor out."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import torch
from torch import nn

from chainstay import DeviceModel
from zoo import Appended  # torchvision can be imported only after this

SIZES: Final = {"resnet50": 224, "densenet121": 224, "inception_v3": 299}
V100: Final = DeviceModel(
    name="V100-16GB", memory_bytes=16 * 2**30, bandwidth=9e11, float32=15.7e12, float16=125e12
)


def stages_of(network: str) -> nn.Sequential:
    """Blocks, dense layers, inception modules; torchvision's, with its weights at random."""
    models: Any = import_module("torchvision.models")
    torch.manual_seed(0)
    match network:
        case "resnet50":
            return nn.Sequential(*_resnet(models.resnet50()))
        case "densenet121":
            return nn.Sequential(*_densenet(models.densenet121()))
        case _:
            net = models.inception_v3(init_weights=False, aux_logits=False)
            head = nn.Sequential(net.avgpool, net.dropout, nn.Flatten(), net.fc)
            blocks = [
                block
                for name, block in net.named_children()
                if name[0].isupper() or name.startswith("maxpool")
            ]
            return nn.Sequential(*blocks, head)


def _resnet(net: Any) -> Iterator[nn.Module]:  # noqa: ANN401  # torchvision has no types
    yield nn.Sequential(net.conv1, net.bn1, net.relu, net.maxpool)
    for layer in (net.layer1, net.layer2, net.layer3, net.layer4):
        yield from layer
    yield nn.Sequential(net.avgpool, nn.Flatten(), net.fc)


def _densenet(net: Any) -> Iterator[nn.Module]:  # noqa: ANN401
    features = dict(net.features.named_children())
    yield nn.Sequential(*(features[name] for name in ("conv0", "norm0", "relu0", "pool0")))
    for name, part in features.items():
        if name.startswith("denseblock"):
            yield from map(Appended, part.children())
        elif name.startswith("transition"):
            yield part
    pool = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), net.classifier)
    yield nn.Sequential(features["norm5"], nn.ReLU(), *pool)
