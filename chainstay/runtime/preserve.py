"""Measuring runs a model for real; this leaves the model and the world as they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from chainstay.runtime.environment import random_states, restore_random_states
from chainstay.runtime.generators import OtherGenerators

__all__ = ["undisturbed", "zeroed_gradients"]


@contextmanager
def undisturbed(modules: Iterable[nn.Module], device: torch.device) -> Iterator[None]:
    """Put back buffers (identity and value), training flags and random states at the end."""
    owners = list(dict.fromkeys(modules))
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in owners
        for name, buffer in module.named_buffers(recurse=False)
    ]
    training = [(module, module.training) for module in owners]
    states, others = random_states(device), OtherGenerators.now()
    try:
        yield
    finally:
        restore_random_states(states)
        others.restore()
        for module, flag in training:
            module.training = flag
        for module, name, buffer, value in buffers:
            with torch.no_grad():
                buffer.copy_(value)
            setattr(module, name, buffer)


@contextmanager
def zeroed_gradients(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Give every parameter a gradient of zeros for a while: measured steps only add to it."""
    held = [(parameter, parameter.grad) for parameter in parameters]
    try:
        for parameter, _ in held:
            parameter.grad = torch.zeros_like(parameter)
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient
