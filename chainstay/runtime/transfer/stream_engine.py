"""The engine of accelerators: pinned slots, a stream for each direction, events between them.

Nothing here makes the host wait. Device memory is allocated and let go in the order of the
computing stream, so the caching allocator need not know of the side streams (no
``record_stream``): `wait` puts their ends into the computing stream before anything is let go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.devices.device import accelerator_at
from chainstay.runtime.transfer.engine import Ticket, Transfer
from chainstay.runtime.transfer.pool import HostPool, Slot


@dataclass(frozen=True, slots=True, eq=False)
class StreamTicket:
    """Some transfers' end, and the stream that computed when they were asked for.

    Attributes:
        end: Comes when they have ended.
        computing: The stream in whose order their device memory is used again.
    """

    end: torch.Event
    computing: torch.Stream


class StreamEngine:
    """Copies over the bus while the device computes, with at most `host_budget` bytes pinned.

    Attributes:
        least_bytes: The bus moves fewer in less time than the host takes to issue a copy.

    Raises:
        UnsupportedModelError: It is another kind of device.
    """

    least_bytes: int = 64 * 1024

    def __init__(
        self,
        device: torch.device,
        *,
        host_budget: int | None = None,
        beside: HostPool | None = None,
    ) -> None:
        self.device = torch.empty(0, device=device).device  # with its index
        accelerator = accelerator_at(self.device)
        if accelerator is None:
            raise UnsupportedModelError(f"a {device.type!r} device has no streams to copy on")
        self.pool = HostPool(
            partial(torch.empty, dtype=torch.uint8, pin_memory=True),
            pinned_pieces,
            host_budget,
            beside,
        )
        self._accelerator = accelerator
        self._out = accelerator.stream()
        self._back = accelerator.stream()

    def __deepcopy__(self, memo: object) -> StreamEngine:
        return StreamEngine(self.device, host_budget=self.pool.limit)

    def send(self, transfers: Sequence[Transfer]) -> StreamTicket:
        """Start sending; see `Engine`."""
        computing = self._accelerator.current_stream()
        self._out.wait_event(computing.record_event())  # produced
        for _, slot in transfers:
            if isinstance(slot.after, StreamTicket):
                self._out.wait_event(slot.after.end)
        with self._accelerator.on(self._out):
            _copy([pair for memory, slot in transfers for pair in slot.beside(memory)])
        return StreamTicket(self._out.record_event(), computing)

    def fetch(self, transfers: Sequence[Transfer], sent: Ticket) -> StreamTicket:
        """Start fetching; see `Engine`."""
        computing = self._accelerator.current_stream()
        self._back.wait_event(computing.record_event())  # allocated: its earlier users are done
        self._back.wait_event(_end_of(sent))
        with self._accelerator.on(self._back):
            _copy([pair[::-1] for memory, slot in transfers for pair in slot.beside(memory)])
        return StreamTicket(self._back.record_event(), computing)

    def wait(self, ticket: Ticket) -> None:
        """Let the computing stream wait for `ticket`; see `Engine`."""
        self._accelerator.current_stream().wait_event(_end_of(ticket))

    def forget(self, memory: torch.Tensor, ticket: Ticket, *, is_target: bool) -> None:  # noqa: ARG002  # as `Engine`
        """Let the stream that will use `memory` again wait for `ticket`; see `Engine`.

        That is not the current one where the last reference went in another thread, or outside
        of the ``with`` that trained on a side stream.
        """
        assert isinstance(ticket, StreamTicket), "tickets come from the engine that gets them"
        ticket.computing.wait_event(ticket.end)

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


def pinned_pieces(size: int) -> tuple[int, ...]:
    """Return the sizes of the pieces of pinned memory for `size` bytes, the largest first.

    torch rounds what it pins up to a power of two. Powers of two that together have `size`
    rounded up in its fourth binary digit are at most an eighth more, beyond a few KiB.
    """
    unit = max(1 << max(size.bit_length() - 4, 0), 512)
    room = -(-size // unit) * unit
    return tuple(1 << bit for bit in reversed(range(room.bit_length())) if room >> bit & 1)


def _end_of(ticket: Ticket) -> torch.Event:
    assert isinstance(ticket, StreamTicket), "tickets come from the engine that gets them"
    return ticket.end


def _copy(copies: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy into the first of each pair from the second, without the host's waiting."""
    targets, sources = zip(*copies, strict=True)
    torch._foreach_copy_(targets, sources, non_blocking=True)
