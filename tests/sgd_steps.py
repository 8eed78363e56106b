"""What steps of training leave behind, to be compared bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

__all__ = ["differences", "three_steps"]


def three_steps(
    model: nn.Module,
    loss: Callable[[], torch.Tensor],
    initial: Mapping[str, torch.Tensor],
    seed: int = 7,
) -> dict[str, torch.Tensor]:
    """Everything that three steps of SGD with momentum leave behind, step by step.

    They begin with the parameters and buffers of `initial` and the random numbers of `seed`.
    """
    model.load_state_dict(initial)
    model.zero_grad()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    torch.manual_seed(seed)
    found = {}
    for step in range(3):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        found[f"loss {step}"] = value.detach()
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[f"gradient {step} {name}"] = parameter.grad.clone()
        optimizer.step()
        found |= {f"buffer {step} {name}": each.clone() for name, each in model.named_buffers()}
        found[f"random state {step}"] = torch.get_rng_state()
    return found


def differences(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of what is not equal in both, bit for bit."""
    return [
        name
        for name in one.keys() | other.keys()
        if name not in one or name not in other or not torch.equal(one[name], other[name])
    ]
