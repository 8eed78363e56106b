"""How long a stage takes: the least of several runs, in whole nanoseconds."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch

from chainstay.runtime.boundary import swallow
from chainstay.runtime.preserve import zeroed_gradients
from chainstay.runtime.stages import ChainStage
from chainstay.runtime.states import State

__all__ = ["time_stage"]


def time_stage(
    stage: ChainStage,
    given: tuple[State, State],
    leaves: tuple[torch.Tensor, ...],
    repeats: int,
    device: torch.device,
) -> tuple[int, int]:
    """Least forward and backward time of `repeats` runs after one that warms up, in ns.

    Args:
        stage: What to run.
        given: Its input, and what it shares with others.
        leaves: Everything outside that receives a gradient.
        repeats: Timed runs.
        device: Where it runs.
    """
    stopwatch = _time_cuda if device.type == "cuda" else _time_cpu
    state, shared = given
    forward_times, backward_times = [], []
    with zeroed_gradients(leaves):
        for _ in range(repeats + 1):
            output, forward_time = stopwatch(partial(stage, swallow(state), shared))
            backward_times.append(_time_backward(output, stopwatch))
            forward_times.append(forward_time)
    return min(forward_times[1:]), min(backward_times[1:])


_Stopwatch = Callable[[Callable[[], State]], tuple[State, int]]


def _time_backward(output: State, stopwatch: _Stopwatch) -> int:
    wanting = tuple(tensor for tensor in output if tensor.requires_grad)
    if not wanting:
        return 0
    gradients = tuple(map(torch.ones_like, wanting))

    def backward() -> State:
        torch.autograd.backward(wanting, gradients)
        return gradients

    return stopwatch(backward)[1]


def _time_cpu(function: Callable[[], State]) -> tuple[State, int]:
    # With one thread, time spent by other processes on this core does not count.
    clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    start = clock()
    result = function()
    return result, clock() - start


def _time_cuda(function: Callable[[], State]) -> tuple[State, int]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    result = function()
    end.record()
    torch.cuda.synchronize()
    return result, int(start.elapsed_time(end) * 1e6)
