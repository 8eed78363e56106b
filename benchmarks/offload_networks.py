"""Networks as sequences of stages, tensor in, tensor out, for the offloading benchmark."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any, Final

import torch
from torch import nn

from chainstay import DeviceModel

SIZES: Final = {"resnet50": 224, "densenet121": 224, "inception_v3": 299}
V100: Final = DeviceModel(
    name="V100-16GB", memory_bytes=16 * 2**30, bandwidth=9e11, float32=15.7e12, float16=125e12
)


class Appended(nn.Module):
    """A dense layer whose output holds its input, too."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, state: torch.Tensor) -> torch.Tensor:
        """The state and what the layer makes of it."""
        return torch.cat([state, self.layer(state)], 1)


def stages_of(network: str) -> nn.Sequential:
    """Blocks, dense layers, inception modules; torchvision's, with its weights at random."""
    models = torchvision_models()
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


def torchvision_models() -> Any:  # noqa: ANN401  # it has no types
    """Its module of that name, in spite of operators for CUDA that it may lack."""
    for name in ("nms", "qnms"):  # torchvision's wheel for CUDA, beside a torch for CPUs
        if torch.version.cuda is None and not hasattr(torch.ops.torchvision, name):
            _OPERATORS.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    return import_module("torchvision.models")  # it needs the lines above


_OPERATORS: Final = torch.library.Library("torchvision", "FRAGMENT")


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
