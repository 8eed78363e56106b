"""Models whose parameters are spread over several processes (FSDP2): what planning must heed.

All processes must run the same collective operations in the same order, so they need one
plan; and a block that has run without its backward may still hold its whole parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed, nn

__all__ = [
    "gathered",
    "is_part",
    "is_sharded",
    "left_sharded",
    "resharded_in_backward",
    "whole_bytes",
]


def is_sharded(module: nn.Module) -> bool:
    """Whether `module` has parameters of which this process has a part only."""
    return bool(_meshes(module)) or any(map(_is_fsdp, module.modules()))


def whole_bytes(module: nn.Module) -> int:
    """Of the parameters of `module` once they are gathered from all processes."""
    return sum(each.numel() * each.element_size() for each in module.parameters())


@contextmanager
def left_sharded(model: nn.Module) -> Iterator[None]:
    """Parameters are sharded at the beginning; afterwards they and their gradients are as before.

    They are whole already where this begins in the middle of a forward.
    """
    sharded = [module for module in model.modules() if _is_fsdp(module)]
    whole = [module for module in sharded if not _has_parts(module)]
    _reshard(sharded)
    held = [(parameter, parameter.grad) for parameter in model.parameters()]
    try:
        for parameter, _ in held:
            parameter.grad = None
        yield
    finally:
        _reshard(sharded)
        for parameter, gradient in held:
            parameter.grad = gradient
        for module in whole:
            module.unshard()  # type: ignore[operator]  # of FSDPModule


@contextmanager
def resharded_in_backward(block: nn.Module) -> Iterator[None]:
    """Run `block` again inside; if that made its parameters whole, they are sharded again.

    FSDP2 leaves them whole when a forward runs inside a backward: it expects the block's own
    backward next, but there may be others before. A block that fails stays as it is.
    """
    sharded = [module for module in block.modules() if _is_fsdp(module)]
    if not _is_in_backward():
        sharded = []
    parts = [module for module in sharded if _has_parts(module)]
    yield
    _reshard(parts)


def _is_in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001  # as FSDP2 asks


def _has_parts(module: nn.Module) -> bool:
    """Whether `module` has parameters of its own that are sharded now, FSDP modules in it aside."""
    waiting = [module]
    while waiting:
        present = waiting.pop()
        if any(is_part(each) for each in present.parameters(recurse=False)):
            return True
        waiting += (child for child in present.children() if not _is_fsdp(child))
    return False


def gathered(model: nn.Module, value: Any) -> list[Any]:  # noqa: ANN401  # anything that pickles
    """`value` of every process that has a part of `model`, the same list in each of them."""
    values = [value]
    for mesh in _meshes(model):
        for dimension in range(mesh.ndim):
            group = mesh.get_group(dimension)
            found: list[Any] = [None] * distributed.get_world_size(group)
            distributed.all_gather_object(found, values, group=group)
            values = [each for part in found for each in part]
    return values


def is_part(tensor: torch.Tensor) -> bool:
    """Whether other processes have the rest of it."""
    if not distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor  # noqa: PLC0415  # not in every build of torch

    return isinstance(tensor, DTensor)


def _meshes(module: nn.Module) -> list[Any]:
    """Device meshes of its parameters, each once, in the order of the parameters."""
    parts: Any = (each for each in module.parameters() if is_part(each))
    return list(dict.fromkeys(each.device_mesh for each in parts))


def _reshard(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        module.reshard()  # type: ignore[operator]  # of FSDPModule


def _is_fsdp(module: nn.Module) -> bool:
    if not distributed.is_available():
        return False
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415  # as above

    return isinstance(module, FSDPModule)
