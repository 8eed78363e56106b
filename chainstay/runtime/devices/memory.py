"""Measuring of the memory that code allocates, by the word of the allocators themselves.

On the CPU every allocation and release is in the profiler's ``[memory]`` events,
temporaries inside operators included. On CUDA the caching allocator keeps the peak.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.autograd.profiler import profile, record_function

from chainstay.errors import UnsupportedModelError

__all__ = [
    "MemoryTrace",
    "allocated_bytes",
    "operator_beyond",
    "require_measurable",
    "rounded_bytes",
    "trace_marked",
    "trace_memory",
    "trace_phases",
]

# The profiler's library reports every session on stderr unless told not to before its first
# use, which importing torch._dynamo already is.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

_PHASE_END: Final = "chainstay: end of phase"
_CUDA_BLOCK: Final = 512
"""The CUDA caching allocator hands out multiples of this many bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrace:
    """Memory over time, as growth since the trace began.

    Attributes:
        peak_bytes: The most in use at any time.
        end_bytes: The bytes in use at the end, the traced function's result included.
        times: When memory changed, in ns since the trace began; empty on CUDA.
        bytes: The bytes in use from that time on, one value per time.
        operator: The operator that ran at the peak; empty on CUDA.
    """

    peak_bytes: int
    end_bytes: int
    times: tuple[int, ...] = ()
    bytes: tuple[int, ...] = ()
    operator: str = ""


def trace_memory(function: Callable[[], object], device: torch.device | str) -> MemoryTrace:
    """Run `function` once and trace the memory it allocates on `device`.

    On the CPU the release of a tensor is seen only if a trace, this or an earlier one, saw
    it being allocated. Python's garbage collector rests meanwhile.

    Args:
        function: Called without arguments; its result is held until the trace ends.
        device: ``cpu`` or a CUDA device.

    Raises:
        UnsupportedModelError: Another kind of device.

    Example:
        >>> trace = trace_memory(lambda: torch.zeros(256).sum(), "cpu")
        >>> trace.peak_bytes, trace.end_bytes
        (1028, 4)
    """
    return trace_phases((function,), torch.device(device))[0]


def trace_phases(
    phases: Iterable[Callable[[], object]], device: torch.device
) -> tuple[MemoryTrace, ...]:
    """Trace several functions run one after another, in one session.

    Every number is growth since the beginning of the whole session. The result of a
    phase is dropped at the beginning of the next phase, whose peak still has it.

    Args:
        phases: May be a generator that makes each phase when its turn has come.
        device: ``cpu`` or a CUDA device.
    """

    def run(mark: Callable[[], None]) -> None:
        for phase in phases:
            result = phase()
            mark()
            del result

    return trace_marked(run, device)[:-1]  # nothing is left to do behind the last mark


def trace_marked(
    function: Callable[[Callable[[], None]], object], device: torch.device
) -> tuple[MemoryTrace, ...]:
    """Trace one function that marks its own phases; the last one ends with it.

    Args:
        function: Gets what it is to call at the end of each phase; its result is held until
            the trace ends.
        device: ``cpu`` or a CUDA device.

    Example:
        >>> def run(mark):
        ...     tensor = torch.zeros(256)
        ...     mark()
        ...     return tensor, torch.zeros(1)
        >>> [trace.end_bytes for trace in trace_marked(run, torch.device("cpu"))]
        [1024, 1028]
    """
    require_measurable(device)
    with _garbage_at_rest():
        if device.type == "cuda":
            return _trace_cuda(function, device)
        with profile(use_cpu=True, profile_memory=True) as profiler:
            _mark_phase_end()
            result = function(_mark_phase_end)
            _mark_phase_end()
            del result
        assert profiler.kineto_results is not None
        return _split_phases(profiler.kineto_results.events())


def operator_beyond(function: Callable[[], object], device: torch.device, limit: int) -> str:
    """Run `function` once; the operator that first has more than `limit` bytes in use.

    Empty if there is none.
    """
    with _garbage_at_rest(), profile(use_cpu=True, profile_memory=True) as profiler:
        function()
    assert profiler.kineto_results is not None
    events = sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns())
    level, running = 0, ""
    ends: list[tuple[int, str]] = []
    for event in events:
        if event.name() == "[memory]":
            if device.type.upper() in str(event.device_type()):
                level += event.nbytes()
            if level > limit:
                while ends and ends[-1][0] < event.start_ns():
                    ends.pop()
                return ends[-1][1] if ends else running
        elif event.name().startswith("aten::") or "::" in event.name():
            running = event.name()
            while ends and ends[-1][0] < event.start_ns():
                ends.pop()
            ends.append((event.start_ns() + event.duration_ns(), running))
    return ""


def require_measurable(device: torch.device) -> None:
    """Refuse a device whose allocator tells nothing.

    Raises:
        UnsupportedModelError: Neither the CPU nor a CUDA device.
    """
    if device.type not in ("cpu", "cuda"):
        raise UnsupportedModelError(
            f"memory of a {device.type!r} device cannot be measured; move the model and the "
            "sample to the CPU or to a CUDA device"
        )


def allocated_bytes(tensor: torch.Tensor) -> int:
    """Bytes that the allocator hands out for the whole storage behind `tensor`."""
    return rounded_bytes(tensor.untyped_storage().nbytes(), tensor.device)


def rounded_bytes(size: int, device: torch.device) -> int:
    """Bytes that the allocator of `device` hands out when asked for `size`."""
    return -(-size // _CUDA_BLOCK) * _CUDA_BLOCK if device.type == "cuda" else size


@contextmanager
def _garbage_at_rest() -> Iterator[None]:
    """No garbage collection inside: older garbage would be released in somebody's phase."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _mark_phase_end() -> None:
    with record_function(_PHASE_END):
        pass


def _split_phases(events: Sequence[Any]) -> tuple[MemoryTrace, ...]:  # kineto events have no type
    """Sum up the allocations of each phase; the first mark is the beginning of the first."""
    ordered = sorted(events, key=lambda event: event.start_ns())
    begin = next(index for index, event in enumerate(ordered) if _is_mark(event))
    origin = ordered[begin].start_ns()
    traces, times, levels, level, peak = [], [0], [0], 0, 0
    outermost, operator = (0, ""), ""  # the operator that runs, until when, and at the peak
    for event in ordered[begin + 1 :]:
        time = event.start_ns() - origin
        if _is_mark(event):
            traces.append(
                MemoryTrace(
                    peak_bytes=peak,
                    end_bytes=level,
                    times=tuple(times),
                    bytes=tuple(levels),
                    operator=operator,
                )
            )
            times, levels, peak, operator = [time], [level], level, ""
        elif _is_cpu_memory(event):
            level += event.nbytes()
            if level > peak:
                peak, operator = level, outermost[1] if time <= outermost[0] else ""
            times.append(time)
            levels.append(level)
        elif time > outermost[0] and "::" in event.name():
            name = event.name().removeprefix("autograd::engine::evaluate_function: ")
            outermost = (time + event.duration_ns(), name.removeprefix("aten::"))
    return tuple(traces)


def _is_mark(event: Any) -> bool:  # noqa: ANN401  # kineto events have no type
    return bool(event.name() == _PHASE_END)


def _is_cpu_memory(event: Any) -> bool:  # noqa: ANN401  # kineto events have no type
    return bool(event.name() == "[memory]") and "CPU" in str(event.device_type())


def _trace_cuda(
    function: Callable[[Callable[[], None]], object], device: torch.device
) -> tuple[MemoryTrace, ...]:
    torch.cuda.synchronize(device)
    base = torch.cuda.memory_allocated(device)
    traces: list[MemoryTrace] = []

    def mark() -> None:
        torch.cuda.synchronize(device)
        traces.append(
            MemoryTrace(
                peak_bytes=torch.cuda.max_memory_allocated(device) - base,
                end_bytes=torch.cuda.memory_allocated(device) - base,
            )
        )
        torch.cuda.reset_peak_memory_stats(device)

    torch.cuda.reset_peak_memory_stats(device)
    result = function(mark)
    mark()
    del result
    return tuple(traces)
