"""Hooks on parameters belong to training: while a model is measured, nobody calls them.

An optimizer that steps inside the backward would take measured gradients for real ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

__all__ = ["parameter_hooks_aside"]


@contextmanager
def parameter_hooks_aside(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, parameters that have hooks are others without, in the same memory."""
    places = [
        (module, name, parameter)
        for module in dict.fromkeys(modules)
        for name, parameter in module._parameters.items()  # noqa: SLF001  # as it is, tied or not
        if parameter is not None and _has_hooks(parameter)
    ]
    without = {
        parameter: nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        for _, _, parameter in places
    }
    try:
        for module, name, parameter in places:
            module._parameters[name] = without[parameter]  # noqa: SLF001  # likewise
        yield
    finally:
        for module, name, parameter in places:
            module._parameters[name] = parameter  # noqa: SLF001  # likewise


def _has_hooks(parameter: torch.Tensor) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)  # noqa: SLF001
