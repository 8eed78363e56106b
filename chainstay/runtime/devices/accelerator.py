"""An accelerator as a device: CUDA, ROCm, XPU, or what registers with torch as PrivateUse1.

Everything that torch offers for all of them is asked for there (`torch.accelerator`,
`torch.Stream`, `torch.Event`), the rest from the device's own module. In torch 2.6 that has the
allocator's statistics, which `torch.accelerator` has from 2.9 on.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.devices.profiled_memory import MemoryTrace

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorBytes:
    """The bytes of a caching allocator by its three counts, now or at their peaks.

    Attributes:
        requested: The bytes that were asked for: the same at every run, and what budgets count.
        allocated: The bytes of the blocks handed out for them, which are larger.
        reserved: The bytes taken from the device, with what lies between blocks.
    """

    requested: int
    allocated: int
    reserved: int


@dataclass(frozen=True, slots=True)
class Accelerator:
    """A device with streams and a caching allocator of its own; see `Device`.

    Attributes:
        device: Without an index, it is the current one of its type.
    """

    device: torch.device

    @property
    def _module(self) -> Any:
        return torch.get_device_module(self.device)

    def name(self) -> str:
        """Return the hardware's name, or the type of device where it tells none."""
        told = getattr(self._module, "get_device_name", None)
        return self.device.type if told is None else str(told(self.device))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Inside, it is the current device of this thread."""
        before = _current_index()
        index: int | None = self.device.index  # which torch's annotations do not know
        _set_index(before if index is None else index)
        try:
            yield
        finally:
            _set_index(before)

    def synchronize(self) -> None:
        """Wait until all streams are done."""
        torch.accelerator.synchronize(self.device)

    def now(self) -> int:
        """Return the time when all is computed, in ns, by the clock of all threads."""
        self.synchronize()
        return time.perf_counter_ns()

    def mark(self) -> torch.Event:
        """Return a point in the order of the current stream; the host does not wait for it."""
        return self.current_stream().record_event(torch.Event(self.device, enable_timing=True))

    def elapsed(self, begin: object, end: object) -> int:
        """Return the ns between two marks; both must have been reached."""
        assert isinstance(begin, torch.Event)
        assert isinstance(end, torch.Event)
        return int(begin.elapsed_time(end) * 1e6)

    def in_backward(self, function: Callable[[], Result]) -> Result:
        """Call a function in autograd's thread for this device."""
        results: list[Result] = []

        def run(gradient: torch.Tensor) -> None:
            gradient.clone()  # a new thread has no context on the device, of which cuBLAS warns
            results.append(function())

        with torch.enable_grad():
            start = torch.zeros((), device=self.device, requires_grad=True)
            end = start.clone()
        end.register_hook(run)
        torch.autograd.grad(end, start)
        return results[0]

    def trace(self, function: Callable[[Callable[[], None]], object]) -> tuple[MemoryTrace, ...]:
        """Trace by the counts of the caching allocator, which keep their peaks."""
        self.synchronize()
        base = self.memory()
        traces: list[MemoryTrace] = []

        def mark() -> None:
            self.synchronize()
            peak = self.peaks()
            traces.append(
                MemoryTrace(
                    peak_bytes=peak.requested - base.requested,
                    end_bytes=self.memory().requested - base.requested,
                    allocated_bytes=peak.allocated - base.allocated,
                    reserved_bytes=peak.reserved,
                )
            )
            self.reset_peaks()

        self.reset_peaks()
        result = function(mark)
        mark()
        del result
        return tuple(traces)

    def memory(self) -> AllocatorBytes:
        """Return the bytes in use."""
        return self._counted("current")

    def peaks(self) -> AllocatorBytes:
        """Return the most bytes in use since the last `reset_peaks`."""
        return self._counted("peak")

    def reset_peaks(self) -> None:
        """Begin to look for peaks anew."""
        self._own_or_shared("reset_peak_memory_stats")(self.device)

    def free_bytes(self) -> int:
        """Return the bytes that may still be allocated, unused ones of the allocator included.

        A share of the device that the process has limited itself to counts.
        """
        memory = self.memory()
        index: int | None = self.device.index  # which torch's annotations do not know
        info = getattr(self._module, "mem_get_info", None) or torch.accelerator.get_memory_info
        free, total = info(self.device)
        share = getattr(self._module, "get_per_process_memory_fraction", None)
        here = _current_index() if index is None else index  # which torch 2.11 wants to be told
        limit = total if share is None else int(share(here) * total)
        return min(free + memory.reserved - memory.allocated, limit - memory.allocated)

    def random_state(self) -> torch.Tensor:
        """Return the state of the default generator, in host memory."""
        state: torch.Tensor = self._module.get_rng_state(self.device)
        return state

    def restore_random_state(self, state: torch.Tensor) -> None:
        """Put the default generator back to `state`."""
        self._module.set_rng_state(state, self.device)

    def stream(self) -> torch.Stream:
        """Return a new stream."""
        return torch.Stream(self.device)

    def current_stream(self) -> torch.Stream:
        """Return the stream that this thread computes on."""
        return torch.accelerator.current_stream(self.device)

    @contextmanager
    def on(self, stream: torch.Stream) -> Iterator[None]:
        """Inside, operators go to `stream`, and its device is the current one."""
        index, before = _current_index(), self.current_stream()
        torch.accelerator.set_stream(stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)
            _set_index(index)

    def obstacle(self) -> str:
        """Return why a stage that runs again now might give other bits, or none; else nothing."""
        is_capturing = getattr(self._module, "is_current_stream_capturing", None)
        if is_capturing is not None and is_capturing():
            return (
                "a CUDA graph is being captured, but steps by a plan restore random numbers and "
                "reuse host memory, which no graph can record; run them without capture"
            )
        if torch.backends.cudnn.enabled and torch.backends.cudnn.benchmark:
            return (
                "torch.backends.cudnn.benchmark is on: every thread then chooses kernels by timing "
                "them, and stages run again in another thread than at first; switch it off, or "
                "call chainstay.unfit(model)"
            )
        return ""

    def _counted(self, when: str) -> AllocatorBytes:
        counts: Mapping[str, int] = self._own_or_shared("memory_stats")(self.device)
        try:
            requested, allocated, reserved = (
                counts[f"{kind}_bytes.all.{when}"]
                for kind in ("requested", "allocated", "reserved")
            )
        except KeyError:
            raise UnsupportedModelError(
                f"the allocator of {self.device.type!r} devices does not count requested bytes, so "
                "that no budget can be kept there; train on the CPU or on another accelerator"
            ) from None
        return AllocatorBytes(requested=requested, allocated=allocated, reserved=reserved)

    def _own_or_shared(self, name: str) -> Callable[[torch.device], Any]:
        """Return the function of the device's module, or that for all accelerators."""
        own: Callable[[torch.device], Any] | None = getattr(self._module, name, None)
        return getattr(torch.accelerator, name) if own is None else own


def allocator_settings() -> str:
    """Return how the environment sets the caching allocator; empty if it does not."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")
    return next((value for name in names if (value := os.environ.get(name))), "")


def _current_index() -> int:
    # torch 2.6 and 2.7 have the names with idx only.
    told = getattr(torch.accelerator, "current_device_index", None)
    return int((told or torch.accelerator.current_device_idx)())


def _set_index(index: int) -> None:
    setter = getattr(torch.accelerator, "set_device_index", None)
    (setter or torch.accelerator.set_device_idx)(index)
