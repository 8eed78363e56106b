"""Gradients while stages are run in order to be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch


@contextmanager
def gradients_kept(
    parameters: Iterable[torch.Tensor],
    begin: Callable[[torch.Tensor], torch.Tensor | None] = lambda _: None,
) -> Iterator[None]:
    """Leave gradients as they are, whatever is sent to these parameters inside.

    Stand-ins take the place of a model's parameters, but not where a forward was replaced by a
    function that holds the module itself. Weights that `torch.func.functional_call` puts in their
    place may be no leaves, and have none. `begin` makes the gradients that are there meanwhile.
    """
    held = [(parameter, parameter.grad) for parameter in parameters if parameter.is_leaf]
    try:
        for parameter, _ in held:
            parameter.grad = begin(parameter)
        yield
    finally:
        for parameter, gradient in held:
            parameter.grad = gradient


def zeroed_gradients(parameters: Iterable[torch.Tensor]) -> AbstractContextManager[None]:
    """Give every parameter a gradient of zeros for a while: measured steps only add to it."""
    return gradients_kept(parameters, torch.zeros_like)
