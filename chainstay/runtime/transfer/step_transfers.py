"""One training step's transfers: which storages an item lies in, and what to do with them when."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import assert_never

import torch

from chainstay.runtime.execute.handles import Staying, unpack
from chainstay.runtime.execute.items import Act, Action
from chainstay.runtime.execute.liveness import Step
from chainstay.runtime.stage.states import State, address_of, version_of
from chainstay.runtime.transfer.engine import Engine
from chainstay.runtime.transfer.movable_storage import (
    MovableStorage,
    OffloadedTensor,
    fetch,
    release,
    send,
)
from chainstay.schedule import Item

StoragesByAddress = dict[int, weakref.ref[MovableStorage]]
"""By the address of their storage, good as long as they are on the device."""


@dataclass(slots=True)
class StepTransfers:
    """Transfers between one forward and its backward.

    It holds no storage: the graph's handles do, checkpoints, and whoever runs stages.

    Attributes:
        engine: Moves bytes.
        by_item: For every item that goes to the host, the storages that it lies in.
        by_address: All storages that were made, those that came back under their new addresses.
        spare_bytes: The bytes that small storages may still take that stay on the device although
            their item goes to the host.
    """

    engine: Engine
    by_item: dict[Item, list[weakref.ref[MovableStorage]]] = field(default_factory=dict)
    by_address: StoragesByAddress = field(default_factory=dict)
    spare_bytes: int = 0

    def act(self, actions: Iterable[Action]) -> None:
        """Do what the plan says."""
        for action in actions:
            of_item = self.by_item.get(action.item, ())
            storages = [
                storage for storage in (reference() for reference in of_item) if storage is not None
            ]
            match action.act:
                case Act.SEND:
                    send(storages, self.engine)
                case Act.RELEASE:
                    release(storages, self.engine)
                case Act.FETCH | Act.COPY:
                    fetch(storages, self.engine, leaves_host=action.act is Act.FETCH)
                    for storage in storages:
                        self._know(storage)
                case _:
                    assert_never(action.act)

    def hook(self, step: Step, given: State, prepare: Callable[[], None]) -> OffloadHook | None:
        """Return the hook for a run that saves tensors that move; ``None`` if none do."""
        known = {address_of(tensor) for tensor in given}
        inputs = {address for address in known if self.storage_at(address) is not None}
        if step.makes is None and not inputs:
            return None
        own, fixed = None, known - inputs
        if step.makes is not None:
            own = self.by_item[step.makes] = []
        return OffloadHook(step.stage, prepare, self, frozenset(fixed), own)

    def made(self, step: Step, given: State, output: State) -> list[MovableStorage]:
        """Know the state that `step` made of `given`: what is new in it is part of its item.

        Returns:
            Its storages, to be held as long as the state is.
        """
        held = []
        passed = {address_of(tensor) for tensor in given}
        of_item = None if step.makes is None else self.by_item.setdefault(step.makes, [])
        for tensor in output:
            address = address_of(tensor)
            storage = self.storage_at(address)
            if address in passed:
                if storage is not None:  # it belongs to several states from now on
                    storage.stays = True
            elif storage is None and of_item is not None and _is_movable(tensor, self.engine):
                storage = self.new_storage(step.stage, tensor, of_item)
            if storage is not None:
                held.append(storage)
        return held

    def storage_at(self, address: int) -> MovableStorage | None:
        """The storage whose memory on the device is there, if there is one."""
        reference = self.by_address.get(address)
        storage = reference() if reference is not None else None
        if storage is None or storage.memory is None or address_of(storage.memory) != address:
            return None
        return storage

    def new_storage(
        self, stage: int, tensor: torch.Tensor, of_item: list[weakref.ref[MovableStorage]]
    ) -> MovableStorage | None:
        """Return one for the storage of `tensor`; ``None`` if that is small and may stay."""
        size = tensor.untyped_storage().nbytes()
        if size < self.engine.least_bytes and size <= self.spare_bytes:
            self.spare_bytes -= size
            return None
        storage = MovableStorage(stage, self.engine, tensor)
        of_item.append(weakref.ref(storage))
        self._know(storage)
        return storage

    def _know(self, storage: MovableStorage) -> None:
        if storage.memory is not None:
            self.by_address[address_of(storage.memory)] = weakref.ref(storage)


@dataclass(frozen=True, slots=True)
class StoredState:
    """A state to be read again, whose tensors may be away meanwhile.

    Attributes:
        tensors: The tensors as they are, or what stands for them.
        versions: How often each of the former had been changed in place.
        wanting: Which want gradients.
    """

    tensors: tuple[torch.Tensor | OffloadedTensor, ...]
    versions: tuple[int, ...]
    wanting: tuple[bool, ...]

    @classmethod
    def of(cls, state: State, transfers: StepTransfers | None) -> StoredState:
        """Hold `state`, or the storages of its tensors; it is read when all is prepared."""
        held = []
        for tensor in state:
            storage = None if transfers is None else transfers.storage_at(address_of(tensor))
            held.append(
                tensor if storage is None else OffloadedTensor(storage, lambda: None, tensor)
            )
        return cls(
            tuple(held),
            tuple(_version_of(value) for value in held),
            tuple(tensor.requires_grad for tensor in state),
        )

    @property
    def is_unchanged(self) -> bool:
        """Whether nothing that is here has been changed in place since."""
        return self.versions == tuple(map(_version_of, self.tensors))

    @property
    def state(self) -> State:
        """The tensors.

        Raises:
            PlanMismatchError: One was changed in place before it went.
        """
        return tuple(
            tensor.restored().detach().requires_grad_(wants)
            if isinstance(tensor, OffloadedTensor)
            else tensor
            for tensor, wants in zip(self.tensors, self.wanting, strict=True)
        )


@dataclass(slots=True)
class OffloadHook:
    """Pack hook of a stage's run. The graph keeps it, so it holds no memory.

    Attributes:
        stage: Which.
        prepare: Brings about all that comes before its backward.
        transfers: Knows the storages.
        fixed: Addresses of what stays: an input that does not move, and if its own data moves,
            parameters and buffers.
        own: Gets the storages of what it saves, if that moves.
    """

    stage: int
    prepare: Callable[[], None]
    transfers: StepTransfers
    fixed: frozenset[int]
    own: list[weakref.ref[MovableStorage]] | None

    def __call__(self, tensor: torch.Tensor) -> object:
        """A handle if the tensor moves; others stay, as autograd would hold them."""
        return self.stand_in(tensor) or Staying.of(self.stage, tensor)

    def stand_in(self, tensor: torch.Tensor) -> OffloadedTensor | None:
        """Return the stand-in for the tensor, or ``None`` if it does not move."""
        if not _is_movable(tensor, self.transfers.engine):
            return None
        address = address_of(tensor)
        storage = self.transfers.storage_at(address)
        if storage is None and self.own is not None and address not in self.fixed:
            storage = self.transfers.new_storage(self.stage, tensor, self.own)
        return None if storage is None else OffloadedTensor(storage, self.prepare, tensor)

    def hooks(self) -> AbstractContextManager[object]:
        """Return the hooks for a run whose saved data stays in the graph, or goes to the host."""
        return torch.autograd.graph.saved_tensors_hooks(self, unpack)


def _is_movable(tensor: torch.Tensor, engine: Engine) -> bool:
    """Whether it is plain memory on the device; parameters and tensors of other types are not."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout == torch.strided
        and tensor.device == engine.device
        and tensor.untyped_storage().nbytes() > 0
    )


def _version_of(tensor: torch.Tensor | OffloadedTensor) -> int:
    return 0 if isinstance(tensor, OffloadedTensor) else version_of(tensor)
