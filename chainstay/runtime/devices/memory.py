"""Measuring of the memory that code allocates, by the word of the allocators themselves.

Bytes are those that were asked for, on every device. What a caching allocator hands out and
reserves beyond them is told beside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from chainstay.runtime.devices.device import device_at
from chainstay.runtime.devices.profiled_memory import MemoryTrace, garbage_at_rest, operator_beyond

__all__ = [
    "MemoryTrace",
    "allocated_bytes",
    "operator_beyond",
    "trace_marked",
    "trace_memory",
    "trace_phases",
]


def trace_memory(function: Callable[[], object], device: torch.device | str) -> MemoryTrace:
    """Run `function` once and trace the memory it allocates on `device`.

    On the CPU the release of a tensor is seen only if a trace, this or an earlier one, saw
    it being allocated. Python's garbage collector rests meanwhile.

    Args:
        function: Called without arguments; its result is held until the trace ends.
        device: The CPU or an accelerator.

    Raises:
        UnsupportedModelError: Another kind of device, or torch's profiler is on.

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
        device: The CPU or an accelerator.
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
        device: The CPU or an accelerator.

    Example:
        >>> def run(mark):
        ...     tensor = torch.zeros(256)
        ...     mark()
        ...     return tensor, torch.zeros(1)
        >>> [trace.end_bytes for trace in trace_marked(run, torch.device("cpu"))]
        [1024, 1028]
    """
    measured = device_at(device)
    with garbage_at_rest():
        return measured.trace(function)


def allocated_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the whole storage behind `tensor`."""
    return tensor.untyped_storage().nbytes()
