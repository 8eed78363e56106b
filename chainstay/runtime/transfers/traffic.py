"""One training step's transfers: which storages a stage saved, and what to do with them when."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, assert_never

import torch

from chainstay.runtime.handles import Packed, Staying, unpack
from chainstay.runtime.stages import ChainStage
from chainstay.runtime.states import State, address_of
from chainstay.runtime.transfers.cells import Cell, Parked, fetch, release, send
from chainstay.runtime.transfers.engine import Engine
from chainstay.runtime.transfers.planning import Act, Action, TransferPlan

__all__ = ["Traffic"]

Cells = dict[int, weakref.ref[Cell]]
"""By the address of their storage, good as long as they are on the device."""


@dataclass(slots=True)
class Traffic:
    """Transfers between one forward and its backward.

    It holds the cells of the last state only, and only until the next stage has run: after
    that, the graph's handles do.

    Attributes:
        plan: What to do.
        engine: Moves bytes.
        parcels: Per stage, what it saved that moves.
        outputs: Cells of the state that the next stage reads.
        inputs: The same, by address.
    """

    plan: TransferPlan
    engine: Engine
    parcels: dict[int, list[weakref.ref[Cell]]] = field(default_factory=dict)
    outputs: list[Cell] = field(default_factory=list)
    inputs: Cells = field(default_factory=dict)

    def before_forward(self, stage: int) -> None:
        """All that the plan has before the forward of `stage`, or at the end of the last one."""
        self._do(self.plan.before_forward[stage])
        if stage == len(self.plan.before_backward):
            self.outputs = []

    def before_backward(self, stage: int) -> None:
        """All that the plan has before the backward of `stage`."""
        self._do(self.plan.before_backward[stage])

    def acts_before_backward(self, stage: int) -> bool:
        """Whether the plan has anything there."""
        return bool(self.plan.before_backward[stage])

    def hooks(
        self, stage: ChainStage, index: int, state: State, prepare: Callable[[], None]
    ) -> AbstractContextManager[object]:
        """For the forward of stage `index` on `state`: what moves gets handles.

        Args:
            stage: About to run.
            index: Of it.
            state: Its input.
            prepare: Brings about all that comes before the stage's backward.
        """
        if index not in self.plan.moved and not self.inputs:
            return nullcontext()
        own = self.parcels.setdefault(index, []) if index in self.plan.moved else None
        fixed = {address_of(tensor) for _, _, tensor in stage.tensors()}
        fixed |= {address_of(tensor) for tensor in state} - self.inputs.keys()
        pack = Parking(index, prepare, self.engine, frozenset(fixed), dict(self.inputs), own)
        return torch.autograd.graph.saved_tensors_hooks(pack, restored)

    def after_forward(self, index: int, state: State, output: State) -> None:
        """Know the state that stage `index` made of `state`: it goes with what it saved."""
        passed = {address_of(tensor) for tensor in state}
        self._let_stay(output)
        self.inputs, self.outputs = {}, []
        if index not in self.plan.moved:
            return
        parcel = self.parcels.setdefault(index, [])
        known = _by_address(parcel)
        for tensor in output:
            address = address_of(tensor)
            if not _is_movable(tensor, self.engine) or address in passed | self.inputs.keys():
                continue
            cell = known.get(address)
            if cell is None:
                cell = Cell(index, self.engine, tensor)
                parcel.append(weakref.ref(cell))
            self.outputs.append(cell)
            self.inputs[address] = weakref.ref(cell)

    def _let_stay(self, output: State) -> None:
        """What the stage passes on belongs to several states from now on."""
        for tensor in output:
            reference = self.inputs.get(address_of(tensor))
            cell = reference() if reference is not None else None
            if cell is not None:
                cell.stays = True

    def _do(self, actions: Iterable[Action]) -> None:
        for action in actions:
            parcel = self.parcels.get(action.stage, ())
            cells = [cell for cell in (reference() for reference in parcel) if cell is not None]
            match action.act:
                case Act.SEND:
                    send(cells, self.engine)
                case Act.RELEASE:
                    release(cells, self.engine)
                case Act.FETCH:
                    fetch(cells, self.engine)
                case _:
                    assert_never(action.act)


@dataclass(slots=True)
class Parking:
    """Pack hook of a stage's forward. The graph keeps it, so it holds no memory.

    Attributes:
        stage: Which.
        prepare: Brings about all that comes before its backward.
        engine: Moves bytes.
        fixed: Addresses of what stays: parameters, buffers, an input that does not move.
        cells: Of the input, and what has been saved so far.
        own: Gets the cells of what it saves, if that moves.
    """

    stage: int
    prepare: Callable[[], None]
    engine: Engine
    fixed: frozenset[int]
    cells: Cells
    own: list[weakref.ref[Cell]] | None

    def __call__(self, tensor: torch.Tensor) -> object:
        """A handle if the tensor moves; others stay, as autograd would hold them."""
        cell = self._cell(tensor) if _is_movable(tensor, self.engine) else None
        if cell is None:
            return Staying.of(self.stage, tensor)
        return Parked(cell, self.prepare, tensor)

    def _cell(self, tensor: torch.Tensor) -> Cell | None:
        address = address_of(tensor)
        reference = self.cells.get(address)
        cell = reference() if reference is not None else None
        if cell is not None and cell.memory is not None:
            return cell
        if self.own is None or address in self.fixed:
            return None
        cell = Cell(self.stage, self.engine, tensor)
        self.cells[address] = reference = weakref.ref(cell)
        self.own.append(reference)
        return cell


def restored(packed: Parked | Packed) -> torch.Tensor:
    """Unpack hook of the same."""
    return packed.restored() if isinstance(packed, Parked) else unpack(packed)


def _is_movable(tensor: torch.Tensor, engine: Engine) -> bool:
    """Whether it is plain memory on the device; parameters and tensors of other types are not."""
    return (
        type(tensor) in _PLAIN
        and tensor.layout == torch.strided
        and tensor.device == engine.device
        and tensor.untyped_storage().nbytes() > 0
    )


_PLAIN: Final = (torch.Tensor,)


def _by_address(parcel: Iterable[weakref.ref[Cell]]) -> dict[int, Cell]:
    cells = (reference() for reference in parcel)
    return {address_of(cell.memory): cell for cell in cells if cell and cell.memory is not None}
