"""Hooks on parameters belong to training: while a model is measured, nobody calls them.

An optimizer that steps inside the backward would take measured gradients for real ones, and
DistributedDataParallel, whose hooks cannot be seen, would exchange them with other processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import distributed, nn

from chainstay.runtime.sharding import is_part

__all__ = ["parameter_hooks_aside"]


@contextmanager
def parameter_hooks_aside(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, parameters that have hooks are others without, in the same memory.

    Where other processes may be waiting for gradients, all parameters are; but not those of
    which this process has a part only, which FSDP2 knows by themselves.
    """
    everywhere = distributed.is_available() and distributed.is_initialized()
    places = [
        (module, name, parameter)
        for module in dict.fromkeys(modules)
        for name, parameter in module._parameters.items()  # noqa: SLF001  # as it is, tied or not
        if parameter is not None
        and (everywhere or _has_hooks(parameter))
        and not is_part(parameter)
    ]
    without = {
        parameter: nn.Parameter(parameter.detach(), requires_grad=parameter.requires_grad)
        for _, _, parameter in places
    }
    try:
        for module, name, parameter in places:
            setattr(module, name, without[parameter])  # some modules keep lists of their own
        yield
    finally:
        for module, name, parameter in places:
            setattr(module, name, parameter)


def _has_hooks(parameter: torch.Tensor) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)  # noqa: SLF001
