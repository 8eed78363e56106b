"""Two towers trained in less memory: a table of plain and planned steps.

A Siamese network runs two images through one tower, and compares what comes out. Plain
training keeps all that both passes save until the end. `chainstay.fit` finds the two branches,
and plans them apart: it decides for each what to keep, what to run again, and in which turns
they go back. Everything stays equal bit for bit.

    python examples/two_towers.py
"""

from __future__ import annotations

import torch
from torch import nn

import chainstay
from chainstay.fitting.fitted import Fitted
from chainstay.runtime import trace_memory
from chainstay.units import format_bytes

BUDGETS = ("80%", "60%")


class Siamese(nn.Module):
    """One tower for both images, and the distance of what it makes of them."""

    def __init__(self, width: int = 16, blocks: int = 5) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for block in range(blocks):
            channels = 3 if block == 0 else width
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        self.tower = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        """The mean squared distance, to be trained down."""
        return nn.functional.mse_loss(self.tower(left), self.tower(right))


def step(model: nn.Module, images: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """What a step of training gives: the loss, all gradients and all buffers."""
    model.zero_grad()
    loss = model(*images)
    loss.backward()
    found = {"loss": loss.detach()}
    found |= {name: parameter.grad.clone() for name, parameter in model.named_parameters()}  # type: ignore[union-attr]
    return found | {name: buffer.clone() for name, buffer in model.named_buffers()}


def peak_bytes(model: nn.Module, images: tuple[torch.Tensor, ...]) -> int:
    """Memory of a step: activations, gradients of activations, temporaries, and the images."""
    step(model, images)
    model.zero_grad(set_to_none=False)

    def run() -> None:
        model(*images).backward()

    return trace_memory(run, "cpu").peak_bytes + sum(image.nbytes for image in images)


def main() -> None:
    """Print the table."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, images = Siamese(), (torch.randn(4, 3, 32, 32), torch.randn(4, 3, 32, 32))
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    expected = step(model, images)
    print(f"{'budget':>10} {'peak':>12} {'slower':>8}  equal bit for bit")
    print(f"{'plain':>10} {format_bytes(peak_bytes(model, images)):>12}")
    for budget in BUDGETS:
        model.load_state_dict(initial)
        chainstay.fit(
            model,
            images,
            budget=budget,
            loss=lambda loss: loss,
            stage_options=False,  # a chain whose stages are kept in part is faster here
            progress=False,
        )
        fitted = model.chainstay
        assert isinstance(fitted, Fitted)
        planned = fitted.plans[-1]
        found = step(model, images)
        is_equal = all(torch.equal(found[name], value) for name, value in expected.items())
        assert planned.plain_time is not None, "it was measured just now"
        slower = float(planned.solution.makespan) / planned.plain_time - 1
        peak = format_bytes(peak_bytes(model, images))
        print(f"{budget:>10} {peak:>12} {slower:>8.1%}  {'yes' if is_equal else 'NO'}")
        text = str(fitted)
        chainstay.unfit(model)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
