"""A schedule from the timed operations of an answer of a hybrid model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from chainstay.formulations.hybrid.truncation import Item
from chainstay.schedule import Op, OpKind, Schedule

__all__ = ["OFFLOAD_KINDS", "PREFETCH_KINDS", "ScheduleBuilder"]

OFFLOAD_KINDS: Final = (
    {"a": OpKind.OFFLOAD_ACTIVATION, "b": OpKind.OFFLOAD_SAVED},
    {"a": OpKind.SPILL_ACTIVATION, "b": OpKind.SPILL_SAVED},
)
"""The operation that offloads an item, by level of the link and kind of item."""
PREFETCH_KINDS: Final = {"a": OpKind.PREFETCH_ACTIVATION, "b": OpKind.PREFETCH_SAVED}
"""The operation that prefetches an item, by kind of item."""
_DROP: Final = {"a": OpKind.DISCARD_ACTIVATION, "b": OpKind.DISCARD_SAVED}


@dataclass(slots=True)
class ScheduleBuilder:
    """Operations with their times, and the lifetimes that they make, read or send.

    Attributes:
        items: By number of the lifetime, the item that it is a copy of.
        timed: Operations with their sort keys.
        uses: By number of the lifetime, the operations that make, read or send it.
    """

    items: dict[int, Item] = field(default_factory=dict)
    timed: list[tuple[tuple[float, ...], Op]] = field(default_factory=list)
    uses: dict[int, list[int]] = field(default_factory=dict)

    def add(self, when: tuple[float, ...], op: Op, lifetimes: Iterable[int]) -> None:
        """Add an operation; operations are sorted by `when`."""
        for number in lifetimes:
            self.uses.setdefault(number, []).append(len(self.timed))
        self.timed.append((when, op))

    def schedule(self) -> Schedule:
        """Return the schedule, with discards of what is not read any more.

        What is read for the last time is dropped right after; a forward drops its own input.
        """
        order = sorted(range(len(self.timed)), key=lambda entry: (self.timed[entry][0], entry))
        ops = {entry: self.timed[entry][1] for entry in order}
        positions = {entry: position for position, entry in enumerate(order)}
        dropped: dict[int, list[Op]] = {}
        for number, entries in self.uses.items():
            kind, i = self.items[number]
            last = max(entries, key=positions.__getitem__)
            op = ops[last]
            if op.kind is OpKind.BACKWARD and op.stage == i:
                continue
            if op.kind is OpKind.FORWARD_KEEP_INPUT and (kind, i) == ("a", op.stage):
                ops[last] = Op(OpKind.FORWARD_DROP, op.stage)
            else:
                dropped.setdefault(last, []).append(Op(_DROP[kind], i))
        return Schedule(
            tuple(op for entry in order for op in (ops[entry], *dropped.get(entry, ())))
        )
