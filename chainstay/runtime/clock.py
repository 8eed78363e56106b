"""How long a stage takes: the least of several runs, in whole nanoseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from chainstay.runtime.boundary import swallow
from chainstay.runtime.preserve import zeroed_gradients
from chainstay.runtime.stages import ChainStage

__all__ = ["time_stage"]


def time_stage(
    stage: ChainStage,
    activation: torch.Tensor,
    leaves: tuple[torch.Tensor, ...],
    repeats: int,
) -> tuple[int, int]:
    """Least forward and backward time of `repeats` runs after one that warms up, in ns."""
    stopwatch = _time_cuda if activation.device.type == "cuda" else _time_cpu
    forward_times, backward_times = [], []
    with zeroed_gradients(leaves):
        for _ in range(repeats + 1):
            below = swallow(activation.detach()) if activation.requires_grad else activation
            output, forward_time = stopwatch(partial(stage, below))
            backward_times.append(_time_backward(output, stopwatch))
            forward_times.append(forward_time)
    return min(forward_times[1:]), min(backward_times[1:])


_Stopwatch = Callable[[Callable[[], torch.Tensor]], tuple[torch.Tensor, int]]


def _time_backward(output: torch.Tensor, stopwatch: _Stopwatch) -> int:
    if not output.requires_grad:
        return 0
    gradient = torch.ones_like(output)

    def backward() -> torch.Tensor:
        torch.autograd.backward(output, gradient)
        return gradient

    return stopwatch(backward)[1]


def _time_cpu(function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int]:
    # With one thread, time spent by other processes on this core does not count.
    clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    start = clock()
    result = function()
    return result, clock() - start


def _time_cuda(function: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, int]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    result = function()
    end.record()
    torch.cuda.synchronize()
    return result, int(start.elapsed_time(end) * 1e6)
