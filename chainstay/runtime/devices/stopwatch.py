"""Stopwatches: of the CPU's own time, or of a device's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import torch

__all__ = ["now", "run_timed"]

Result = TypeVar("Result")


def run_timed(function: Callable[[], Result], device: torch.device) -> tuple[Result, int]:
    """Return the result of `function`, and the time that it takes on `device`, in ns."""
    return _time_cuda(function) if device.type == "cuda" else _time_cpu(function)


def _time_cpu(function: Callable[[], Result]) -> tuple[Result, int]:
    start = now()
    result = function()
    return result, now() - start


def _time_cuda(function: Callable[[], Result]) -> tuple[Result, int]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    result = function()
    end.record()
    torch.cuda.synchronize()
    return result, int(start.elapsed_time(end) * 1e6)


def now() -> int:
    """Return the time in ns, by a clock of which only differences say something."""
    return time.perf_counter_ns() if _counts_waiting() else time.thread_time_ns()


def _counts_waiting() -> bool:
    # With one thread, time spent by other processes on this core does not count.
    return torch.get_num_threads() > 1
