"""Memory that code allocates on the CPU, by the profiler's account.

Every allocation and release is in the profiler's ``[memory]`` events, temporaries inside
operators included.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.autograd import _profiler_enabled  # type: ignore[attr-defined]  # torch has it, untold
from torch.autograd.profiler import KinetoStepTracker, profile, record_function
from torch.profiler import ProfilerAction

from chainstay.errors import UnsupportedModelError

# The profiler's library reports every session on stderr unless told not to before its first
# use, which importing torch._dynamo already is.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

_PHASE_END: Final = "chainstay: end of phase"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTrace:
    """Memory over time, as growth since the trace began.

    Attributes:
        peak_bytes: The most in use at any time.
        end_bytes: The bytes in use at the end, the traced function's result included.
        times: When memory changed, in ns since the trace began; empty on an accelerator.
        bytes: The bytes in use from that time on, one value per time.
        operator: The operator that ran at the peak; empty on an accelerator.
        allocated_bytes: The most that the blocks of a caching allocator grew by; 0 on the CPU.
        reserved_bytes: The most that it had taken from the device in all; 0 on the CPU.
    """

    peak_bytes: int
    end_bytes: int
    times: tuple[int, ...] = ()
    bytes: tuple[int, ...] = ()
    operator: str = ""
    allocated_bytes: int = 0
    reserved_bytes: int = 0


def trace_on_cpu(function: Callable[[Callable[[], None]], object]) -> tuple[MemoryTrace, ...]:
    """Trace a function that marks its phases; see `trace_marked`.

    Raises:
        UnsupportedModelError: The caller's own profiler is on, which this would end.
    """
    if _profiler_enabled() or _is_any_warming_up():
        raise UnsupportedModelError(
            "torch's profiler is on, and memory is measured by another one, which would end it: "
            "plan before it starts (one training step, or chainstay.fit with a sample)"
        )
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
    with garbage_at_rest(), profile(use_cpu=True, profile_memory=True) as profiler:
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


@contextmanager
def garbage_at_rest() -> Iterator[None]:
    """No garbage collection inside: older garbage would be released in somebody's phase."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _is_any_warming_up() -> bool:
    """Whether a profiler with a schedule is about to start; another session crashes it then."""
    if "ProfilerStep" not in KinetoStepTracker._step_dict:  # noqa: SLF001  # looking at all objects takes long
        return False
    profilers = (
        candidate for candidate in gc.get_objects() if type(candidate) is torch.profiler.profile
    )
    return any(profiler.current_action is ProfilerAction.WARMUP for profiler in profilers)


def _mark_phase_end() -> None:
    with record_function(_PHASE_END):
        pass


def _split_phases(events: Sequence[Any]) -> tuple[MemoryTrace, ...]:  # kineto events have no type
    """Sum up the allocations of each phase; the first mark is the beginning of the first."""
    ordered = sorted(events, key=lambda event: event.start_ns())
    begin = next(index for index, event in enumerate(ordered) if event.name() == _PHASE_END)
    origin = ordered[begin].start_ns()
    traces, times, levels, level, peak = [], [0], [0], 0, 0
    outermost, operator = (0, ""), ""  # the operator that runs, until when, and at the peak
    for event in ordered[begin + 1 :]:
        time, name = event.start_ns() - origin, event.name()
        if name == _PHASE_END:
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
        elif name == "[memory]":
            if "CPU" not in str(event.device_type()):
                continue
            level += event.nbytes()
            if level > peak:
                peak, operator = level, outermost[1] if time <= outermost[0] else ""
            times.append(time)
            levels.append(level)
        elif time > outermost[0] and "::" in name:
            name = name.removeprefix("autograd::engine::evaluate_function: ")
            outermost = (time + event.duration_ns(), name.removeprefix("aten::"))
    return tuple(traces)
