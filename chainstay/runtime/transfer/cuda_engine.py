"""The engine of CUDA devices: pinned slots, a stream for each direction, events between them.

Nothing here makes the host wait. Device memory is allocated and let go in the order of the
computing stream, so the caching allocator need not know of the side streams (no
``record_stream``): `wait` puts their ends into the computing stream before anything is let go.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chainstay.runtime.transfer.engine import Ticket, Transfer
from chainstay.runtime.transfer.pool import HostPool, Slot

__all__ = ["CudaEngine", "pinned_bytes"]


class CudaEngine:
    """Copies over the bus while the device computes.

    Args:
        device: A CUDA device.
        host_budget: Bytes of pinned memory.
    """

    def __init__(self, device: torch.device, *, host_budget: int | None = None) -> None:
        self.device = torch.empty(0, device=device).device  # with its index
        self.pool = HostPool(_pinned_memory, pinned_bytes, host_budget)
        self._out = torch.cuda.Stream(self.device)
        self._back = torch.cuda.Stream(self.device)

    def __deepcopy__(self, memo: object) -> CudaEngine:
        return CudaEngine(self.device, host_budget=self.pool.limit)

    def send(self, transfers: Sequence[Transfer]) -> torch.cuda.Event:
        """Start sending; see `Engine`."""
        computing = torch.cuda.current_stream(self.device)
        self._out.wait_event(computing.record_event())  # produced
        with torch.cuda.stream(self._out):
            for memory, slot in transfers:
                if isinstance(slot.after, torch.cuda.Event):
                    self._out.wait_event(slot.after)
                slot.memory.copy_(memory, non_blocking=True)
        sent: torch.cuda.Event = self._out.record_event()
        return sent

    def fetch(self, transfers: Sequence[Transfer], sent: Ticket) -> torch.cuda.Event:
        """Start fetching; see `Engine`."""
        assert isinstance(sent, torch.cuda.Event), "tickets come from the engine that gets them"
        computing = torch.cuda.current_stream(self.device)
        self._back.wait_event(computing.record_event())  # allocated: its earlier users are done
        self._back.wait_event(sent)
        with torch.cuda.stream(self._back):
            for memory, slot in transfers:
                memory.copy_(slot.memory, non_blocking=True)
        fetched: torch.cuda.Event = self._back.record_event()
        return fetched

    def wait(self, ticket: Ticket) -> None:
        """Let the computing stream wait for `ticket`; see `Engine`."""
        assert isinstance(ticket, torch.cuda.Event), "tickets come from the engine that gets them"
        torch.cuda.current_stream(self.device).wait_event(ticket)

    def forget(self, memory: torch.Tensor, ticket: Ticket, *, is_target: bool) -> None:  # noqa: ARG002  # as `Engine`
        """Wait if `memory` is written to; what is only read may change meanwhile."""
        if is_target:
            self.wait(ticket)

    def freed(self, memory: torch.Tensor) -> None:
        """Do nothing: the allocator knows when memory is free; see `Engine`."""

    def give_back(self, slot: Slot, after: Ticket | None) -> None:
        """Give host memory back to the pool; see `Engine`."""
        self.pool.give(slot, after)

    def close(self) -> None:
        """Wait for both streams and empty the pool; see `Engine`."""
        self._out.synchronize()
        self._back.synchronize()
        self.pool.close()


def pinned_bytes(size: int) -> int:
    """Return the pinned bytes that torch allocates for `size` bytes: the next power of two."""
    return 1 << max(size - 1, 511).bit_length()


def _pinned_memory(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)
