"""The items that operations read, make and free, and the last uses of copies that move.

They are stated here a second time, beside `Op.reads`, `Op.makes` and `Op.frees`, which solvers use:
the referee of their schedules does not believe them.
"""

from __future__ import annotations

from collections.abc import Iterable

from chainstay.schedule import Item, Op, OpKind, Schedule


def output_item(op: Op) -> Item:
    """Return the item that a forward makes."""
    if op.kind is OpKind.FORWARD_KEEP_ALL:
        return Item("b", op.stage)
    return Item("a", op.stage + 1)


def read_items(op: Op, stored: Iterable[Item]) -> tuple[Item, ...]:
    """Return the items that a computation reads: its input is ``a^i``, or in what was saved."""
    plain = Item("a", op.stage)
    source = plain if plain in stored else Item("b", op.stage - 1)
    return (source, Item("b", op.stage)) if op.kind is OpKind.BACKWARD else (source,)


def freed_items(op: Op) -> tuple[Item, ...]:
    """Return the items that a computation removes where they are stored."""
    if op.kind is OpKind.BACKWARD:
        return (Item("a", op.stage), Item("b", op.stage))
    return (Item("a", op.stage),) if op.kind is OpKind.FORWARD_DROP else ()


def last_uses(schedule: Schedule) -> dict[int, list[Item]]:
    """Return, by operation, the offloaded items whose copy on the device is used there last."""
    stored: set[Item] = {Item("a", 0)}
    leaving: dict[Item, int] = {}
    released: dict[int, list[Item]] = {}
    for index, op in enumerate(schedule):
        match op.kind:
            case _ if op.kind.is_offload:
                leaving[op.item] = index
            case OpKind.DISCARD_ACTIVATION | OpKind.DISCARD_SAVED:
                leaving.pop(op.item, None)
                stored.discard(op.item)
            case OpKind.PREFETCH_ACTIVATION | OpKind.PREFETCH_SAVED:
                _returns(op.item, stored, leaving, released)
            case OpKind.TURN:
                pass  # the machine refuses it, and says where it is
            case _:
                _computes(op, index, stored, leaving, released)
    for item, index in leaving.items():
        released.setdefault(index, []).append(item)
    return released


def last_transfers(schedule: Schedule) -> set[int]:
    """Return the positions of the transfers after which the copy off the device is not needed."""
    last: dict[Item, int] = {}
    for index, op in enumerate(schedule):
        if op.kind.is_transfer:
            last[op.item] = index
    return set(last.values())


def _returns(
    item: Item, stored: set[Item], leaving: dict[Item, int], released: dict[int, list[Item]]
) -> None:
    if item in leaving:
        released.setdefault(leaving.pop(item), []).append(item)
    stored.add(item)


def _computes(
    op: Op, index: int, stored: set[Item], leaving: dict[Item, int], released: dict[int, list[Item]]
) -> None:
    for item in read_items(op, stored):
        if item in leaving:
            leaving[item] = index
    for item in freed_items(op):
        stored.discard(item)
        leaving.pop(item, None)
    if op.kind is not OpKind.BACKWARD:
        _returns(output_item(op), stored, leaving, released)
