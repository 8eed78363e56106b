"""Memory of a homogeneous join: Table 3 of [BHPS20], one slot a value.

Values are the inputs of steps: ``x_i`` of branch j is the input of its step i, ``y_i`` that
of tail step i (the join step is tail step 0, ``y_1`` its output). Gradients take a slot each.

=======  ==========================================  ==========================  ==============
op       needs                                       adds                        removes
=======  ==========================================  ==========================  ==============
``Fc``   its input: ``x_i``; all ``x_ℓ`` for the     its output                  --
         join step
``Fn``   as ``Fc``                                   its output                  its inputs
``B``    the input of its forward, the gradient      the gradient of its input   what it needs
         of its output
``Da``   the value                                   --                          the value
``T``    the last value: ``y``, or all ``x_ℓ``       its gradient                what it needs
=======  ==========================================  ==========================  ==============

An operation may write over what it removes, and over what is discarded right after it: slots
are counted between operations, once such discards are done. The turn runs once. The gradient
of the input of a branch is gone at once unless it is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import TypeAlias

from chainstay.profiles import HomogeneousJoin
from chainstay.schedule import Op, OpKind
from chainstay.validation.simulate import InvalidOperationError, Snapshot

_Value: TypeAlias = tuple[int | None, int]


@dataclass(slots=True)
class SlotMemory:
    """The stored values and gradients, by branch (None for the tail) and index."""

    profile: HomogeneousJoin
    keep: tuple[bool, ...]
    values: set[_Value] = field(default_factory=set)
    gradients: dict[int | None, int] = field(default_factory=dict)
    has_turned: bool = False

    def __post_init__(self) -> None:
        self.values = {(j, 0) for j in range(len(self.profile.lengths))}

    def apply(self, op: Op) -> tuple[int, int, int]:
        """Run `op` and return the slots in use after it, its time, and no overhead."""
        self._require_step(op)
        match op.kind:
            case OpKind.FORWARD_DROP | OpKind.FORWARD_KEEP_INPUT:
                self._forward(op)
                time = self.profile.forward_time
            case OpKind.BACKWARD:
                self._backward(op)
                time = self.profile.backward_time
            case OpKind.TURN:
                self._turn(op)
                time = self.profile.turn_time
            case OpKind.DISCARD_ACTIVATION:
                self._take(op, [(op.branch, op.stage)])
                time = 0
            case _:
                raise InvalidOperationError(
                    f"{op} is no operation of a homogeneous join: Fn, Fc, B, Da, T"
                )
        return sum(self.stored()), time, 0

    def stored(self) -> tuple[int, int, int]:
        """Return the slots of values, of saved data (none here) and of gradients."""
        return len(self.values), 0, len(self.gradients)

    def missing(self) -> str:
        """Return the next operation that must still come, or an empty text when all have run."""
        if not self.has_turned:
            return "the turn"
        left = ((j, i) for j, i in self.gradients.items() if i > 0 or j is None)
        return next((f"{'' if j is None else f'{j}:'}B{i - 1}" for j, i in left), "")

    def during(self, timeline: Sequence[Snapshot]) -> Iterator[int]:
        """Yield the slots in use between operations, once discards are done."""
        for snapshot, following in zip_longest(timeline, timeline[1:]):
            if following is None or following.op.kind is not OpKind.DISCARD_ACTIVATION:
                yield snapshot.after_bytes

    def _forward(self, op: Op) -> None:
        inputs = self._inputs(op.branch, op.stage)
        self._require(op, inputs)
        if op.kind is OpKind.FORWARD_DROP:
            self.values.difference_update(inputs)
        self.values.add((op.branch, op.stage + 1))

    def _backward(self, op: Op) -> None:
        j, i = op.branch, op.stage
        if self.gradients.get(j) != i + 1:
            raise InvalidOperationError(
                f"{op} needs the gradient of value {i + 1}, but held is: {self.gradients.get(j)}"
            )
        self._take(op, self._inputs(j, i))
        del self.gradients[j]
        if j is None and i == 0:
            self._reach_branches()
        elif i > 0 or j is None or self.keep[j]:
            self.gradients[j] = i

    def _turn(self, op: Op) -> None:
        if self.has_turned:
            raise InvalidOperationError(f"{op} has run; it runs once")
        tail = self.profile.tail_length
        self._take(op, [(None, tail)] if tail else self._inputs(None, 0))
        self.has_turned = True
        if tail:
            self.gradients[None] = tail
        else:
            self._reach_branches()

    def _reach_branches(self) -> None:
        for j, length in enumerate(self.profile.lengths):
            if length > 0 or self.keep[j]:
                self.gradients[j] = length

    def _take(self, op: Op, values: Sequence[_Value]) -> None:
        self._require(op, values)
        self.values.difference_update(values)

    def _require(self, op: Op, values: Sequence[_Value]) -> None:
        for j, i in values:
            if (j, i) not in self.values:
                where = "the tail" if j is None else f"branch {j}"
                raise InvalidOperationError(f"{op} needs value {i} of {where}, which is not stored")

    def _inputs(self, j: int | None, i: int) -> list[_Value]:
        if j is None and i == 0:
            return list(enumerate(self.profile.lengths))
        return [(j, i)]

    def _require_step(self, op: Op) -> None:
        lengths = self.profile.lengths
        if op.kind is OpKind.TURN:
            return
        if op.branch is not None and op.branch >= len(lengths):
            raise InvalidOperationError(
                f"{op} names branch {op.branch}, the last one is {len(lengths) - 1}"
            )
        steps = self.profile.tail_length if op.branch is None else lengths[op.branch]
        if op.stage >= steps + (op.kind is OpKind.DISCARD_ACTIVATION):
            raise InvalidOperationError(f"{op} names step {op.stage} of {steps}, counted from 0")
