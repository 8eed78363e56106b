"""The devices that training runs on: the CPU, and any accelerator that torch knows.

Nothing outside of this folder asks what kind a device is of, or names a kind of accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache
from typing import Protocol, TypeVar

import torch

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.devices.accelerator import Accelerator
from chainstay.runtime.devices.cpu import Cpu
from chainstay.runtime.devices.profiled_memory import MemoryTrace

Result = TypeVar("Result")


class Device(Protocol):
    """A device on which stages run."""

    def name(self) -> str:
        """Return the hardware's name."""
        ...

    def current(self) -> AbstractContextManager[None]:
        """Inside, it is this thread's current device."""
        ...

    def synchronize(self) -> None:
        """Wait until all is computed."""
        ...

    def now(self) -> int:
        """Return the time at which all is computed, in ns; only differences say something."""
        ...

    def mark(self) -> object:
        """Return a point in the order of what this thread computes, without waiting for it."""
        ...

    def elapsed(self, begin: object, end: object) -> int:
        """Return the ns between two marks that have been reached."""
        ...

    def in_backward(self, function: Callable[[], Result]) -> Result:
        """Call a function in the thread that backwards run in."""
        ...

    def trace(self, function: Callable[[Callable[[], None]], object]) -> tuple[MemoryTrace, ...]:
        """Trace the memory of a function that marks its phases; see `trace_marked`."""
        ...

    def free_bytes(self) -> int:
        """Return the bytes that may still be allocated."""
        ...


_CPU = Cpu()


def device_at(device: torch.device) -> Device:
    """Return the device, which must be one whose memory can be measured.

    Raises:
        UnsupportedModelError: It is another kind of device.
    """
    if device.type == "cpu":
        return _CPU
    found = accelerator_at(device)
    if found is not None:
        return found
    reason = "cannot be measured"
    if device.type == "mps":
        reason = "is the host's own, and its allocator keeps no peaks, so no budget can be kept"
    raise UnsupportedModelError(
        f"memory of a {device.type!r} device {reason}; move the model and the "
        "sample to the CPU or to an accelerator such as CUDA"
    )


def device_of(tensors: Iterable[torch.Tensor]) -> torch.device:
    """Return the device that a model trains on, by its tensors and those it is called with.

    That is the accelerator, if one is among them: what is on the host beside it (a batch that the
    model moves, the lengths of sentences) stays there. Tensors of one number do not count, nor do
    those without values.

    Raises:
        UnsupportedModelError: They are on several accelerators.
    """
    found = list(tensors)
    devices = dict.fromkeys(tensor.device for tensor in found if tensor.dim() > 0)
    accelerators = [device for device in devices if device.type not in ("cpu", "meta")]
    if len(accelerators) > 1:
        names = " and ".join(sorted(map(str, accelerators)))
        raise UnsupportedModelError(
            f"the model and its arguments are on {names}; move them to one device"
        )
    present = [device for device in devices if device.type != "meta"]
    rest = [*accelerators, *present, *devices, *(tensor.device for tensor in found)]
    return next(iter(rest), torch.device("cpu"))


def accelerator_at(device: torch.device) -> Accelerator | None:
    """Return the accelerator, or ``None`` for any other kind of device."""
    return None if device.type == "cpu" else _accelerator_at(device)


@cache
def _accelerator_at(device: torch.device) -> Accelerator | None:
    return Accelerator(device) if device.type == _present_type() else None


def accelerator_count(kind: str) -> int:
    """Return how many accelerators of a type this machine has."""
    return torch.accelerator.device_count() if kind == _present_type() else 0


def default_device() -> torch.device:
    """Return the accelerator if one is here, else the CPU."""
    return torch.device(_present_type() or "cpu")


def _present_type() -> str:
    """Return the type of torch's accelerator; empty where it has none, or one that is refused."""
    if not torch.accelerator.is_available():  # torch 2.6 raises an error when asked which
        return ""
    present = torch.accelerator.current_accelerator()
    return "" if present is None or present.type == "mps" else present.type
