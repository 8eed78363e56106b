"""Gradients while stages are run in order to be measured."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch


@contextmanager
def zeroed_gradients(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Give every parameter a gradient of zeros for a while: measured steps only add to it.

    Weights that `torch.func.functional_call` puts in their place may be no leaves, and get none.
    """
    held = [(parameter, parameter.grad) for parameter in parameters if parameter.is_leaf]
    try:
        for parameter, _ in held:
            parameter.grad = torch.zeros_like(parameter)
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient


@contextmanager
def gradients_kept(parameters: Iterable[torch.Tensor]) -> Iterator[None]:
    """Leave gradients as they are, whatever is sent to these parameters inside.

    Stand-ins take the place of a model's parameters, but not where a forward was replaced by a
    function that holds the module itself.
    """
    held = [(parameter, parameter.grad) for parameter in parameters if parameter.is_leaf]
    try:
        for parameter, _ in held:
            parameter.grad = None
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient
