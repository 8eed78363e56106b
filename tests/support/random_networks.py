"""Networks drawn at random, as Python text: a few dozen operations on whatever was made before.

All images are (4, 8, 8, 8), all rows (4, 64, 8) and all vectors (4, 8), so that every operation
fits wherever its kind of value is. What it gives may be read again later, changed, or read by none.
"""

from __future__ import annotations

import importlib.util
import random
import re
import sys
from pathlib import Path
from typing import Final

from torch import nn

__all__ = ["IMAGE_SHAPE", "random_network"]

IMAGE_SHAPE: Final = (4, 8, 8, 8)

_ANYWHERE: Final = """
{x} + {y}
{x} * {y}
{x} - {y}.detach() * 0.5
torch.add({x}, {y}, alpha=2)
torch.relu({x})
torch.tanh({x})
torch.exp(-{x}.abs())
F.gelu({x})
F.silu({x})
F.softplus({x})
F.hardswish({x})
F.normalize({x}, dim=1) * 2
F.dropout({x}, 0.1, self.training)
`nn.PReLU()`({x})
`nn.RReLU()`({x})
`nn.Dropout(0.2)`({x})
`nn.ReLU(inplace=True)`({x} * 1.0)
`nn.Hardswish(inplace=True)`({x} + 0.1)
`nn.Dropout(0.1, inplace=True)`({x} + 0.1)
`Scaled()`({x}, flag=True)[0]
`Scaled()`({x}, flag=False)[1]["kept"]
Squared.apply({x}, 0.5)
{x}.clamp(-1.5, 1.5)
torch.where({x} > 0, {x}, {y} * 0.1)
{x}.masked_fill({x} < -1, -1.0)
{x} + 0.1 * torch.randn_like({x})
{x} * torch.bernoulli(torch.full_like({x}, 0.9))
{x} + (({x} * 4).round() / 4 - {x}).detach()
{x} * {x}.softmax(1)
{x}.cumsum(1) / 8
{x}.flip(1)
{x}.roll(1, 0)
{x}[torch.randperm(4)]
{x}[:, torch.arange({x}.shape[1]).flip(0)]
torch.stack([{x}, {y}, {x}]).amax(0)
torch.cat([{y}[:2], {x}[2:]])
torch.cat({x}.chunk(2, 1)[::-1], 1)
{x}.mean(1, keepdim=True).expand_as({x}) + {x}
torch.stack([a * b.tanh() for a, b in zip({x}, {y})])
sum({x}) / 4 + {y}
torch.zeros_like({x}).index_add(0, torch.arange(4).flip(0), {x}) + {y}
{x} * `nn.Parameter(torch.ones(()))`
checkpoint(torch.tanh, {x}, use_reentrant=False)
{x} + 0.25; {z}.clamp_(-2, 2)
{x} * 0.5; {z} += {y}
{x} * 0.9; {z}.flatten(1)[:, :3] *= 0.5
{x}.clone(); {z}[:, ::2] = {z}[:, 1::2].tanh()
{x}.clone(); {z}[0] += 1
{x} * 0.9; {z}.select(1, 0).copy_({y}.select(1, 1))
{x}; total = total + {x}.square().mean() * 0.1
{x} * (1 + 0.01 * `nn.Buffer(torch.tensor(0))`.add_(1).clone())
"""
_OF_KIND: Final = {
    "image": """
`nn.Conv2d(8, 8, 3, padding=1)`({x})
`nn.Conv2d(8, 8, 1, bias=False)`({x})
`nn.Conv2d(8, 8, 3, padding=1, groups=4)`({x})
`nn.Conv2d(8, 8, 3, padding=1)`({x}).to(memory_format=torch.channels_last)
`spectral_norm(nn.Conv2d(8, 8, 3, padding=1))`({x})
`weight_norm(nn.Conv2d(8, 8, 1))`({x})
`nn.BatchNorm2d(8)`({x})
`nn.BatchNorm2d(8)`(torch.relu({x}))
`nn.GroupNorm(2, 8)`({x})
`nn.InstanceNorm2d(8, track_running_stats=True)`({x})
`nn.LayerNorm(8)`({x}.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
F.interpolate(F.max_pool2d({x}, 2), scale_factor=2, mode="bilinear")
F.max_unpool2d(*F.max_pool2d({x}, 2, return_indices=True), 2)
F.pixel_shuffle({x}.repeat(1, 4, 1, 1), 2)[:, :, ::2, 1::2]
F.fold(F.unfold({x}, 3, padding=1), (8, 8), 3, padding=1) / 9
{x}.reshape(4, 2, 4, 8, 8).transpose(1, 2).flatten(1, 2)
{x} * {vector}[:, :, None, None]
{rows}.transpose(1, 2).unflatten(2, (8, 8))
""",
    "rows": """
`nn.Linear(8, 8)`({x})
`nn.LayerNorm(8)`({x})
{x} + `nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))`({x})
{x} + `nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)`({x}, {y}, {y})[0]
`nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)`({x})
F.scaled_dot_product_attention({x}, {y}, {x}, is_causal=True)
F.scaled_dot_product_attention(*`nn.Linear(8, 24)`({x}).chunk(3, -1), dropout_p=0.1)
F.scaled_dot_product_attention(*`nn.Linear(8, 24)`({x}).unflatten(2, (3, 8)).movedim(2, 0))
`nn.GRU(8, 8, batch_first=True)`({x})[0]
`nn.Conv1d(8, 8, 3, padding=1)`({x}.transpose(1, 2)).transpose(1, 2)
torch.einsum("btc,cd->btd", {x}, `nn.Parameter(torch.eye(8))`)
{x} * {vector}[:, None]
{image}.flatten(2).transpose(1, 2)
""",
    "vector": """
`nn.Linear(8, 8)`({x})
`nn.BatchNorm1d(8)`({x})
torch.sigmoid(`nn.Linear(8, 8)`({x}))
{image}.mean((2, 3))
{image}.amax((2, 3))
{rows}.mean(1)
{rows}[:, 0]
""",
}
"""Operations, a line each: an expression, and perhaps statements about its result `z`.

`x` and `y` are any values of one kind; what is between backticks is made once, with the network.
"""
_MADE_ONCE: Final = re.compile("`([^`]*)`")
_HEAD: Final = """
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x.square() * scale

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 * ctx.saved_tensors[0] * ctx.scale, None


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x, flag):
        y = x * torch.sigmoid(self.weight * x)
        return y + 1 if flag else y, {"kept": y}


class Network(nn.Module):
"""


def random_network(seed: int, folder: Path) -> type[nn.Module]:
    """Return the class of a network that takes an image and returns values of all kinds.

    Its text is written to a file in `folder`, where TorchDynamo finds it.
    """
    name = f"random_network_{seed}"
    path = folder / f"{name}.py"
    path.write_text(_text_of(random.Random(seed)), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    network: type[nn.Module] = module.Network
    return network


def _text_of(draws: random.Random) -> str:
    values = {
        "image": ["image"],
        "rows": ["image.flatten(2).transpose(1, 2)"],
        "vector": ["image.mean((2, 3))"],
    }
    made = ["nn.Parameter(torch.ones(()))"]
    body = ["image = image * self.m0  # all else gets a gradient", "total = torch.zeros(())"]
    for number in range(draws.randint(8, 24)):
        kind = draws.choice(("image", "image", "rows", "vector"))
        lines = (_ANYWHERE if draws.random() < 0.5 else _OF_KIND[kind]).strip().splitlines()
        given = {other: draws.choice(known[-3:]) for other, known in values.items()}
        given |= {place: draws.choice(values[kind][-3:]) for place in ("x", "y")}
        operation = draws.choice(lines).format(z=f"v{number}", **given)
        for module in _MADE_ONCE.findall(operation):
            operation = operation.replace(f"`{module}`", f"self.m{len(made)}", 1)
            made.append(module)
        body += f"v{number} = {operation}".split("; ")
        values[kind].append(f"v{number}")
    body.append(f"return total, {', '.join(known[-1] for known in values.values())}")
    setup = [f"self.m{number} = {made_once}" for number, made_once in enumerate(made)]
    return (
        _HEAD
        + "    def __init__(self):\n        super().__init__()\n"
        + "".join(f"        {line}\n" for line in setup)
        + "\n    def forward(self, image):\n"
        + "".join(f"        {line}\n" for line in body)
    )
