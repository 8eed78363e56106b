"""From what happens in an answer of a hybrid model to the program list that makes it happen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from chainstay.formulations.extent import Item
from chainstay.schedule import Op, OpKind, Schedule

__all__ = ["BACK", "SENT", "Happenings"]

SENT: Final = (
    {"a": OpKind.OFFLOAD_ACTIVATION, "b": OpKind.OFFLOAD_SAVED},
    {"a": OpKind.SPILL_ACTIVATION, "b": OpKind.SPILL_SAVED},
)
"""By level and kind of item."""
BACK: Final = {"a": OpKind.PREFETCH_ACTIVATION, "b": OpKind.PREFETCH_SAVED}
_DROP: Final = {"a": OpKind.DISCARD_ACTIVATION, "b": OpKind.DISCARD_SAVED}


@dataclass(slots=True)
class Happenings:
    """Operations with their place in time, and the lives that they make, read or send.

    Attributes:
        items: By number of the life, what it is a copy of.
    """

    items: dict[int, Item] = field(default_factory=dict)
    timed: list[tuple[tuple[float, ...], Op]] = field(default_factory=list)
    touched: dict[int, list[int]] = field(default_factory=dict)

    def note(self, when: tuple[float, ...], op: Op, lives: Iterable[int]) -> None:
        """`op` happens; they are sorted by `when`."""
        for number in lives:
            self.touched.setdefault(number, []).append(len(self.timed))
        self.timed.append((when, op))

    def schedule(self) -> Schedule:
        """What is read for the last time goes with that; a forward drops its own input."""
        order = sorted(range(len(self.timed)), key=lambda entry: (self.timed[entry][0], entry))
        ops = {entry: self.timed[entry][1] for entry in order}
        places = {entry: place for place, entry in enumerate(order)}
        dropped: dict[int, list[Op]] = {}
        for number, entries in self.touched.items():
            kind, i = self.items[number]
            last = max(entries, key=places.__getitem__)
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
