"""The interface of engines, which move bytes between a device and its host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from chainstay.runtime.transfer.pool import HostPool, Slot

Transfer = tuple[torch.Tensor, Slot]
"""Memory on the device, all of one storage as bytes, and the slot on the host of that size."""


class Ticket(Protocol):
    """A promise that some transfers end; only their engine knows how to wait for it."""


class Engine(Protocol):
    """Moves bytes in both directions beside the computation, in order in each direction.

    All is called by the thread that computes, except what backward hooks call.

    Attributes:
        device: Where the computation runs.
        pool: Host memory.
        least_bytes: Smaller storages stay on the device where the plan has memory to spare.
    """

    device: torch.device
    pool: HostPool
    least_bytes: int

    def send(self, transfers: Sequence[Transfer]) -> Ticket:
        """Start copying to the host, after what has been computed so far."""
        ...

    def fetch(self, transfers: Sequence[Transfer], sent: Ticket) -> Ticket:
        """Start copying to the device, into memory just allocated, after `sent`."""
        ...

    def wait(self, ticket: Ticket) -> None:
        """Nothing computed from now on begins before the transfers of `ticket` have ended."""
        ...

    def forget(self, memory: torch.Tensor, ticket: Ticket, *, is_target: bool) -> None:
        """Nobody will read what `ticket` moves out of `memory`, or with `is_target` into it.

        It may be let go after this, by the computing thread.
        """
        ...

    def freed(self, memory: torch.Tensor) -> None:
        """`memory`, which nobody needs, is about to be let go."""
        ...

    def give_back(self, slot: Slot, after: Ticket | None) -> None:
        """`slot` may be written again when `after` has ended."""
        ...

    def close(self) -> None:
        """Stop; let go of all host memory. Whatever is asked later is refused."""
        ...
