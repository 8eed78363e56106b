"""What steps of training leave behind, to be compared bit for bit, and the memory of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from chainstay.runtime import trace_memory

__all__ = ["differences", "peak_of_step", "three_steps", "two_plain_steps"]


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
        found |= {f"buffer {step} {name}": buffer.clone() for name, buffer in model.named_buffers()}
        found[f"random state {step}"] = torch.get_rng_state()
    return found


def two_plain_steps(model: nn.Module, loss: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Losses of two steps, then gradients, buffers and random state; every parameter gets one."""
    torch.manual_seed(7)
    found = []
    for _ in range(2):
        model.zero_grad()
        value = loss()
        value.backward()
        found.append(value.detach())
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.1)
    gradients = [
        parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None
    ]
    buffers = [buffer.clone() for buffer in model.buffers()]
    return [*found, *gradients, *buffers, torch.get_rng_state()]


def peak_of_step(model: nn.Module, step: Callable[[], None], given: object) -> int:
    """Bytes of a step as the model is now, those of its inputs `given` among them.

    Gradients of parameters are there beforehand, so they do not count.
    """
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    step()
    trace = trace_memory(step, "cpu")
    assert trace.end_bytes == 0, "a step leaves nothing behind"
    inputs = {id(leaf): leaf for leaf in tree_leaves(given) if isinstance(leaf, torch.Tensor)}
    return trace.peak_bytes + sum(leaf.nbytes for leaf in inputs.values())


def differences(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of what is not equal in both, bit for bit."""
    return [
        name
        for name in one.keys() | other.keys()
        if name not in one or name not in other or not torch.equal(one[name], other[name])
    ]
