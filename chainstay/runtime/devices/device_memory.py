"""Free memory of a device for a training step."""

from __future__ import annotations

from typing import Final

from torch import nn

from chainstay.errors import InvalidBudgetError
from chainstay.runtime.devices.device import accelerator_at
from chainstay.units import format_bytes

MARGIN: Final = 0.05
"""Share of what is free that stays free: the allocator's fragments, and workspaces of kernels."""
PAGES: Final = 22 * 2**20
"""Bytes that stay free besides: expandable segments of torch's allocator grow by pages, of 20 MiB
for large tensors and 2 MiB for small ones, and the last of each may be nearly empty.
`benchmarks.runtime.allocator` tells which steps run with both, and by which plan."""


def free_bytes(model: nn.Module, reserve: int) -> int:
    """Bytes that a step of `model` may allocate on its accelerator.

    That is what the device and the caching allocator have left, less gradients of parameters
    that do not exist yet, less `reserve`, less a margin of 22 MiB and 5 %.

    Args:
        model: On its device.
        reserve: Bytes that will be taken otherwise, by the optimizer's state for instance.

    Raises:
        InvalidBudgetError: The model is not on one accelerator, or nothing is left.
    """
    devices = {tensor.device for tensor in (*model.parameters(), *model.buffers())}
    found = accelerator_at(next(iter(devices))) if len(devices) == 1 else None
    if found is None:
        where = " and ".join(sorted(map(str, devices))) or "no device"
        raise InvalidBudgetError(
            f"budget is None, but the model is on {where}, where nobody knows what is free; "
            "write bytes, '8GiB', or '50%' of plain training"
        )
    free = found.free_bytes()
    gradients = sum(
        parameter.nbytes
        for parameter in model.parameters()
        if parameter.requires_grad and parameter.grad is None
    )
    budget = int((free - gradients - reserve - PAGES) * (1 - MARGIN))
    if budget <= 0:
        raise InvalidBudgetError(
            f"of {format_bytes(free)} free on {found.device}, gradients take "
            f"{format_bytes(gradients)}, the reserve {format_bytes(reserve)} and the allocator "
            f"{format_bytes(PAGES)}; nothing is left, so free some memory"
        )
    return budget


def free_for(budget: int) -> int:
    """Return the bytes that are free where `free_bytes` gives this budget."""
    return int(budget / (1 - MARGIN)) + PAGES


def smaller_budget(budget: int, free: int, lost: int) -> int:
    """Return the budget of another plan, after a step that ran out of memory.

    It is smaller by the margin, and no more than what the allocator's blocks and the room between
    them have left to the step.

    Args:
        budget: The bytes that the step was planned for.
        free: The bytes that were free before it.
        lost: By how many bytes what the allocator had reserved in the end, when it had given
            unused memory back to the device, was more than what was asked for at most.
    """
    return max(min(int(budget * (1 - MARGIN)), free - lost), 1)
