"""One training step's transfers: which storages an item lies in, and what to do with them when."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, assert_never

import torch

from chainstay.runtime.execute.handles import Packed, Staying, unpack
from chainstay.runtime.execute.items import Act, Action, Item
from chainstay.runtime.execute.liveness import Step
from chainstay.runtime.stage.states import State, address_of, version_of
from chainstay.runtime.transfer.cells import Cell, Parked, fetch, release, send
from chainstay.runtime.transfer.engine import Engine

__all__ = ["ParkedState", "Parking", "Traffic"]

Cells = dict[int, weakref.ref[Cell]]
"""By the address of their storage, good as long as they are on the device."""


@dataclass(slots=True)
class Traffic:
    """Transfers between one forward and its backward.

    It holds no cell: the graph's handles do, checkpoints, and whoever runs stages.

    Attributes:
        engine: Moves bytes.
        parcels: For every item that goes to the host, the storages that it lies in.
        cells: All that were made.
        spare_bytes: The bytes that small storages may still take that stay on the device although
            their item goes to the host.
    """

    engine: Engine
    parcels: dict[Item, list[weakref.ref[Cell]]] = field(default_factory=dict)
    cells: Cells = field(default_factory=dict)
    spare_bytes: int = 0

    def act(self, actions: Iterable[Action]) -> None:
        """Do what the plan says."""
        for action in actions:
            parcel = self.parcels.get(action.item, ())
            cells = [cell for cell in (reference() for reference in parcel) if cell is not None]
            match action.act:
                case Act.SEND:
                    send(cells, self.engine)
                case Act.RELEASE:
                    release(cells, self.engine)
                case Act.FETCH | Act.COPY:
                    fetch(cells, self.engine, leaves_host=action.act is Act.FETCH)
                    for cell in cells:
                        self._know(cell)
                case _:
                    assert_never(action.act)

    def parking(self, step: Step, given: State, prepare: Callable[[], None]) -> Parking | None:
        """Return a parking for a run of a stage that saves tensors that move; ``None`` if none do.

        Args:
            step: The run.
            given: Its input, and what all stages may read.
            prepare: Brings about all that comes before the stage's backward.
        """
        known = {address_of(tensor) for tensor in given}
        inputs = {address for address in known if self.cell_at(address) is not None}
        if step.makes is None and not inputs:
            return None
        own, fixed = None, known - inputs
        if step.makes is not None:
            own = self.parcels[step.makes] = []
        return Parking(step.stage, prepare, self, frozenset(fixed), own)

    def made(self, step: Step, given: State, output: State) -> list[Cell]:
        """Know the state that `step` made of `given`: what is new in it is part of its item.

        Returns:
            Its cells, to be held as long as the state is.
        """
        held = []
        passed = {address_of(tensor) for tensor in given}
        parcel = None if step.makes is None else self.parcels.setdefault(step.makes, [])
        for tensor in output:
            address = address_of(tensor)
            cell = self.cell_at(address)
            if address in passed:
                if cell is not None:  # it belongs to several states from now on
                    cell.stays = True
            elif cell is None and parcel is not None and is_movable(tensor, self.engine):
                cell = self.new_cell(step.stage, tensor, parcel)
            if cell is not None:
                held.append(cell)
        return held

    def checkpoint(self, state: State) -> ParkedState:
        """`state` to be read again; what moves may be away meanwhile."""
        return ParkedState.of(state, self)

    def cell_at(self, address: int) -> Cell | None:
        """The cell whose memory on the device is there, if there is one."""
        reference = self.cells.get(address)
        cell = reference() if reference is not None else None
        if cell is None or cell.memory is None or address_of(cell.memory) != address:
            return None
        return cell

    def new_cell(
        self, stage: int, tensor: torch.Tensor, parcel: list[weakref.ref[Cell]]
    ) -> Cell | None:
        """Return one for the storage of `tensor`; ``None`` if that is small and may stay."""
        size = tensor.untyped_storage().nbytes()
        if size < self.engine.least_bytes and size <= self.spare_bytes:
            self.spare_bytes -= size
            return None
        cell = Cell(stage, self.engine, tensor)
        parcel.append(weakref.ref(cell))
        self._know(cell)
        return cell

    def _know(self, cell: Cell) -> None:
        if cell.memory is not None:
            self.cells[address_of(cell.memory)] = weakref.ref(cell)


@dataclass(frozen=True, slots=True)
class ParkedState:
    """A state whose tensors may be away; stands for a `Versioned` one.

    Attributes:
        tensors: The tensors as they are, or what stands for them.
        versions: How often each of the former had been changed in place.
        wanting: Which want gradients.
    """

    tensors: tuple[torch.Tensor | Parked, ...]
    versions: tuple[int, ...]
    wanting: tuple[bool, ...]

    @classmethod
    def of(cls, state: State, traffic: Traffic) -> ParkedState:
        """Hold `state`, or the cells that its tensors lie in."""
        held = []
        for tensor in state:
            cell = traffic.cell_at(address_of(tensor))
            held.append(tensor if cell is None else Parked(cell, _nothing, tensor))
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
        tensors = (
            tensor.restored().detach() if isinstance(tensor, Parked) else tensor
            for tensor in self.tensors
        )
        return tuple(
            tensor.requires_grad_(wants)
            for tensor, wants in zip(tensors, self.wanting, strict=True)
        )


@dataclass(slots=True)
class Parking:
    """Pack hook of a stage's run. The graph keeps it, so it holds no memory.

    Attributes:
        stage: Which.
        prepare: Brings about all that comes before its backward.
        traffic: Knows the cells.
        fixed: Addresses of what stays: an input that does not move, and if its own data moves,
            parameters and buffers.
        own: Gets the cells of what it saves, if that moves.
    """

    stage: int
    prepare: Callable[[], None]
    traffic: Traffic
    fixed: frozenset[int]
    own: list[weakref.ref[Cell]] | None

    def __call__(self, tensor: torch.Tensor) -> object:
        """A handle if the tensor moves; others stay, as autograd would hold them."""
        return self.parked(tensor) or Staying.of(self.stage, tensor)

    def parked(self, tensor: torch.Tensor) -> Parked | None:
        """Return the stand-in for the tensor, or ``None`` if it does not move."""
        if not is_movable(tensor, self.traffic.engine):
            return None
        address = address_of(tensor)
        cell = self.traffic.cell_at(address)
        if cell is None and self.own is not None and address not in self.fixed:
            cell = self.traffic.new_cell(self.stage, tensor, self.own)
        return None if cell is None else Parked(cell, self.prepare, tensor)

    def hooks(self) -> AbstractContextManager[object]:
        """Return the hooks for a run whose saved data stays in the graph, or goes to the host."""
        return torch.autograd.graph.saved_tensors_hooks(self, restored)


def restored(packed: Parked | Packed) -> torch.Tensor:
    """Unpack hook of the same."""
    return packed.restored() if isinstance(packed, Parked) else unpack(packed)


def is_movable(tensor: torch.Tensor, engine: Engine) -> bool:
    """Whether it is plain memory on the device; parameters and tensors of other types are not."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout == torch.strided
        and tensor.device == engine.device
        and tensor.untyped_storage().nbytes() > 0
    )


_PLAIN: Final = (torch.Tensor,)


def _nothing() -> None:
    """A checkpoint's tensors are asked for when all is prepared."""


def _version_of(tensor: torch.Tensor | Parked) -> int:
    return 0 if isinstance(tensor, Parked) else version_of(tensor)
