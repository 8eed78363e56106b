"""The CPU as a device: what is called has been computed when the call returns."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeVar

import torch

from chainstay.runtime.devices.profiled_memory import MemoryTrace, trace_on_cpu

Result = TypeVar("Result")

_ANYWHERE: Final = nullcontext()


class Cpu:
    """The CPU; see `Device`."""

    def name(self) -> str:
        """Return the processor's name, as the system tells it."""
        return platform.processor()

    def current(self) -> AbstractContextManager[None]:
        """Return a context that does nothing."""
        return _ANYWHERE

    def synchronize(self) -> None:
        """Do nothing: all is computed."""

    def now(self) -> int:
        """Return the time in ns; see `now`."""
        return now()

    def mark(self) -> int:
        """Return the time in ns."""
        return now()

    def elapsed(self, begin: object, end: object) -> int:
        """Return the difference of two marks, in ns."""
        assert isinstance(begin, int)
        assert isinstance(end, int)
        return end - begin

    def in_backward(self, function: Callable[[], Result]) -> Result:
        """Call a function: backwards run in the thread that asks for them."""
        return function()

    def trace(self, function: Callable[[Callable[[], None]], object]) -> tuple[MemoryTrace, ...]:
        """Trace by the profiler, which sees every allocation."""
        return trace_on_cpu(function)

    def free_bytes(self) -> int:
        """Return the unused bytes of physical memory."""
        return unused_host_bytes()


def now() -> int:
    """Return the time in ns, by a clock of which only differences say something.

    With one thread, time spent by other processes on this core does not count.
    """
    return time.perf_counter_ns() if torch.get_num_threads() > 1 else time.thread_time_ns()


def unused_host_bytes() -> int:
    """Return the unused bytes of physical memory; 0 where the system does not tell."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0
