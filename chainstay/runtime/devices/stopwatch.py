"""A stopwatch for single calls, of the CPU's own time or of an accelerator's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from chainstay.runtime.devices.device import Device

Result = TypeVar("Result")


def run_timed(function: Callable[[], Result], device: Device) -> tuple[Result, int]:
    """Return the result of `function`, and the time that it takes on `device`, in ns."""
    device.synchronize()
    begin = device.mark()
    result = function()
    end = device.mark()
    device.synchronize()
    return result, device.elapsed(begin, end)
