"""A storage on its way to the host and back, and what stands for its tensors meanwhile.

==============  =================  ==============  ==========================
a storage that  has memory on the  and a slot      and the ticket of
==============  =================  ==============  ==========================
stays           device             --              --
is leaving      device             being written   the transfer to the host
is away         --                 filled          the same
is returning    device, unread     being read      the transfer from the host
is back         device             --              --
is a copy       device             filled          the transfer from the host
==============  =================  ==============  ==========================

Only the graph's handles and checkpoints hold a storage for long. When they go, so do memory and
slot.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

import torch

from chainstay.runtime.stage.states import (
    MemoryLayout,
    changed_in_place_error,
    version_of,
    whole_storage,
)
from chainstay.runtime.transfer.engine import Engine, Ticket
from chainstay.runtime.transfer.pool import Slot


class MovableStorage:
    """A storage that several tensors may lie in, stored once.

    Attributes:
        stage: The stage that made it.
        memory: On the device, all of it as bytes.
        slot: The slot on the host that it has been sent to, or is being sent to.
        stand_ins: Stand for the saved tensors that lie here.
        ticket: The ticket of its last transfer, if that need be waited for.
        stays: A later state has it too: it is not let go.
    """

    __slots__ = (
        "__weakref__", "_engine", "_is_unread", "_size",
        "memory", "slot", "stage", "stand_ins", "stays", "ticket",
    )  # fmt: skip

    def __init__(self, stage: int, engine: Engine, tensor: torch.Tensor) -> None:
        self.slot: Slot | None = None
        self._is_unread = False
        self.ticket: Ticket | None = None
        self.stays = False
        self.stage = stage
        self.memory: torch.Tensor | None = whole_storage(tensor)
        self._engine = engine
        self._size = self.memory.nbytes
        self.stand_ins: list[weakref.ref[OffloadedTensor]] = []

    def leave(self) -> tuple[torch.Tensor, Slot]:
        """Take a slot on the host, to be sent there.

        Raises:
            HostBudgetError: There is none.
        """
        assert self.memory is not None, "it leaves once"
        self.slot = self._engine.pool.take(self._size)
        return self.memory, self.slot

    def go(self) -> None:
        """Let the memory on the device go; the computation waits for the transfer already."""
        for reference in self.stand_ins:
            stand_in = reference()
            if stand_in is not None:
                stand_in.let_go()
        memory, self.memory = self.memory, None
        self._is_unread = False
        if memory is not None:
            self._engine.freed(memory)

    def come(self) -> tuple[torch.Tensor, Slot, Ticket]:
        """Allocate memory on the device to be fetched into."""
        assert self.slot is not None, "it was sent"
        assert self.ticket is not None, "it was sent"
        self._is_unread = True
        self.memory = torch.empty(self._size, dtype=torch.uint8, device=self._engine.device)
        return self.memory, self.slot, self.ticket

    def under(self, ticket: Ticket, *, leaves_host: bool) -> None:
        """Note that a transfer has begun; with `leaves_host`, the slot is given back at its end."""
        self.ticket = ticket
        if leaves_host and self.slot is not None:
            slot, self.slot = self.slot, None
            self._engine.give_back(slot, ticket)

    def arrived(self) -> torch.Tensor:
        """The memory on the device, brought back first if nobody has done so."""
        if self.memory is None:
            fetch([self], self._engine)
        assert self.memory is not None, "it is on its way at least"
        if self._is_unread and self.ticket is not None:
            self._engine.wait(self.ticket)
            self._is_unread = False
            if self.slot is None:
                self.ticket = None
        return self.memory

    def __del__(self) -> None:
        """Give back what it has, in the order of the computation."""
        is_moving = self._is_unread or self.slot is not None
        if is_moving and self.memory is not None and self.ticket is not None:
            self._engine.forget(self.memory, self.ticket, is_target=self._is_unread)
        if self.slot is not None:
            self._engine.give_back(self.slot, self.ticket)


class OffloadedTensor:
    """Stands for a tensor that may be away, in the graph or in a checkpoint."""

    __slots__ = (
        "__weakref__", "_is_spoiled", "_layout", "_prepare",
        "_storage", "_tensor", "_version",
    )  # fmt: skip

    def __init__(
        self, storage: MovableStorage, prepare: Callable[[], None], tensor: torch.Tensor
    ) -> None:
        self._storage = storage
        self._prepare = prepare
        self._layout = MemoryLayout.of(tensor)
        self._tensor: torch.Tensor | None = tensor.detach()
        self._version = version_of(tensor)
        self._is_spoiled = False
        storage.stand_ins.append(weakref.ref(self))  # without holding it

    def let_go(self) -> None:
        """Hold the tensor no longer."""
        if self._tensor is not None:
            self._is_spoiled = version_of(self._tensor) != self._version
            self._tensor = None

    def restored(self) -> torch.Tensor:
        """The tensor.

        Raises:
            PlanMismatchError: It was changed in place, or its plan was closed.
        """
        self._prepare()
        if self._tensor is not None:
            self._is_spoiled = version_of(self._tensor) != self._version
        if self._is_spoiled:
            shape, stage = tuple(self._layout.size), self._storage.stage
            raise changed_in_place_error(f"a tensor of shape {shape} that stage {stage} saved")
        if self._tensor is not None:
            return self._tensor
        return self._layout.over(self._storage.arrived())


def send(storages: Sequence[MovableStorage], engine: Engine) -> None:
    """Start sending `storages` to the host."""
    transfers = [storage.leave() for storage in storages]
    if transfers:
        ticket = engine.send(transfers)
        for storage in storages:
            storage.under(ticket, leaves_host=False)


def release(storages: Sequence[MovableStorage], engine: Engine) -> None:
    """Wait until `storages` have been sent, and let their memory on the device go."""
    leaving = [s for s in storages if s.memory is not None and s.slot is not None and not s.stays]
    for ticket in {id(storage.ticket): storage.ticket for storage in leaving}.values():
        engine.wait(ticket)
    for storage in leaving:
        storage.go()


def fetch(storages: Sequence[MovableStorage], engine: Engine, *, leaves_host: bool = True) -> None:
    """Start bringing `storages` back; without `leaves_host`, the host's copies stay."""
    coming = [(storage, *storage.come()) for storage in storages if storage.memory is None]
    by_ticket = {id(sent): sent for _, _, _, sent in coming}
    for key, sent in by_ticket.items():
        group = [(storage, memory, slot) for storage, memory, slot, s in coming if id(s) == key]
        ticket = engine.fetch([(memory, slot) for _, memory, slot in group], sent)
        for storage, _, _ in group:
            storage.under(ticket, leaves_host=leaves_host)
