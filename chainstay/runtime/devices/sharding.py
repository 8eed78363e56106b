"""Models whose parameters are spread over several processes (FSDP2): what planning must heed.

All processes must run the same collective operations in the same order, so they need one
plan; and a block that has run without its backward may still hold its whole parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import distributed, nn

from chainstay.runtime.devices.thread_value import ThreadValue

runs_alone: Final = ThreadValue(value=False)
"""Whether blocks run without the model around them: `whole_in_backward` does what it says."""


def is_sharded(module: nn.Module) -> bool:
    """Whether `module` has parameters of which this process has a part only."""
    return bool(_meshes(module)) or any(map(_is_fsdp, module.modules()))


def whole_bytes(module: nn.Module) -> int:
    """Return the bytes of the parameters of `module` once they are gathered from all processes."""
    return sum(parameter.numel() * parameter.element_size() for parameter in module.parameters())


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
def unsharded_again(block: nn.Module) -> Iterator[None]:
    """Run the graph of `block` inside; parameters that are sharded are whole meanwhile.

    FSDP2 makes them whole in front of a forward and of a backward; what a plan runs again is
    neither.
    """
    sharded = [module for module in block.modules() if _is_fsdp(module) and _has_parts(module)]
    for module in sharded:
        module.unshard()  # type: ignore[operator]  # of FSDPModule
    try:
        yield
    finally:
        _reshard(sharded)


def whole_in_backward(block: nn.Module, outputs: Iterable[torch.Tensor]) -> None:
    """Let a backward from `outputs` make the parameters of `block` whole, until it ends.

    In the model, FSDP2's own hooks do that.
    """
    if not runs_alone.now:
        return

    def unshard(_: torch.Tensor) -> None:
        sharded = [module for module in block.modules() if _is_fsdp(module) and _has_parts(module)]
        for module in sharded:
            module.unshard()  # type: ignore[operator]  # of FSDPModule
        engine = torch.autograd.Variable._execution_engine  # noqa: SLF001  # as FSDP2
        engine.queue_callback(lambda: _reshard(sharded))

    for output in outputs:
        if output.requires_grad:
            output.register_hook(unshard)


def _has_parts(module: nn.Module) -> bool:
    """Whether `module` has parameters of its own that are sharded now, FSDP modules in it aside."""
    waiting = [module]
    while waiting:
        present = waiting.pop()
        if any(_is_part(parameter) for parameter in present.parameters(recurse=False)):
            return True
        waiting += (child for child in present.children() if not _is_fsdp(child))
    return False


def gathered(model: nn.Module, value: Any) -> list[Any]:
    """`value` of every process that has a part of `model`, the same list in each of them."""
    values = [value]
    for mesh in _meshes(model):
        for dimension in range(mesh.ndim):
            group = mesh.get_group(dimension)
            found: list[Any] = [None] * distributed.get_world_size(group)
            distributed.all_gather_object(found, values, group=group)
            values = [own for part in found for own in part]
    return values


def _is_part(tensor: torch.Tensor) -> bool:
    """Whether other processes have the rest of it."""
    if not distributed.is_available():
        return False
    from torch.distributed.tensor import DTensor  # noqa: PLC0415  # not in every build of torch

    return isinstance(tensor, DTensor)


def _meshes(module: nn.Module) -> list[Any]:
    """Device meshes of its parameters, each once, in the order of the parameters."""
    parts: Any = (parameter for parameter in module.parameters() if _is_part(parameter))
    return list(dict.fromkeys(parameter.device_mesh for parameter in parts))


def _reshard(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        module.reshard()  # type: ignore[operator]  # of FSDPModule


def _is_fsdp(module: nn.Module) -> bool:
    if not distributed.is_available():
        return False
    from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415  # as above

    return isinstance(module, FSDPModule)
