"""A loop of plain PyTorch, with and without a plan: the same weights after ten steps, less memory.

Run it: python examples/plain_loop.py
"""

from __future__ import annotations

import copy

import torch
from torch import nn

import chainstay
from chainstay.runtime import trace_memory
from chainstay.units import format_bytes

STEPS = 10
CRITERION = nn.CrossEntropyLoss()


def convolutional(channels: int = 16, blocks: int = 6) -> nn.Module:
    """Convolutions with BatchNorm and dropout: buffers and random numbers must agree, too."""
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1)]
    for _ in range(blocks):
        layers += [
            nn.Conv2d(channels, channels, 3, padding=1),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Dropout2d(0.1),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> int:
    """Ten steps of the usual loop; tells how much memory the last one takes besides weights."""
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step() -> None:
        CRITERION(model(images), labels).backward()

    for _ in range(STEPS - 1):
        step()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    trace = trace_memory(step, "cpu")
    optimizer.step()
    return trace.peak_bytes + images.nbytes


def main() -> None:
    """Train a plain and a planned copy of one model, and compare."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    plain = convolutional()
    planned = copy.deepcopy(plain)
    images, labels = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
    chainstay.fit(
        planned, (images,), budget="50%", loss=lambda out: CRITERION(out, labels), progress=False
    )

    peaks = [train(model, images, labels) for model in (plain, planned)]
    weights = [model.state_dict().values() for model in (plain, planned)]
    is_equal = all(map(torch.equal, *weights))
    print(planned.chainstay)
    print(f"peak of a step: plain {format_bytes(peaks[0])}, planned {format_bytes(peaks[1])}")
    print(f"weights and buffers after {STEPS} steps equal: {'yes' if is_equal else 'NO'}")


if __name__ == "__main__":
    main()
