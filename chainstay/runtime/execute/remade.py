"""Tensors that a schedule makes again while it still holds them.

In the memory model a tensor of several states counts once, whoever made it how often. The
runtime has one copy per making: a stage that runs again makes its outputs anew, even where
an earlier copy lives on in a later state. Persistent schedules never do that: when a stage
runs again, the backwards of all later stages are over, and so are their states. Nor do they
with saved data that outlive their input: what stages pass on is part of their output, and
the runtime holds that no longer than until the backward of the stage that reads it, while
the memory model counts it for as long as the saved data stay.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from chainstay.profiles import ChainProfile, Skip
from chainstay.schedule import Op, OpKind, Schedule

__all__ = ["remade_bytes"]


def remade_bytes(profile: ChainProfile, schedule: Schedule) -> int:
    """Return the most bytes that the runtime needs for `schedule` beyond those simulated.

    Args:
        profile: The profile of the chain.
        schedule: Valid for it.

    Complexity:
        O(len(schedule) * len(profile.skips) * len(profile)).

    Example:
        >>> from chainstay.profiles import Stage
        >>> stage = Stage(output_bytes=9, saved_bytes=9)
        >>> chain = ChainProfile(input_bytes=9, input_gradient_bytes=0, stages=(stage,) * 3,
        ...                      skips=(Skip(first=1, last=2, bytes=5),))
        >>> remade_bytes(chain, Schedule.parse("Fc0 Fn1 Fc0 Fa2 B2 Fa1 B1 Fa0 B0"))
        5
    """
    held = _Held()
    total = 0
    for op in schedule:
        if op.kind.is_forward:
            made = (skip for skip in profile.skips if skip.first == op.stage + 1)
            total += sum(skip.bytes for skip in made if held.has(skip))
        held.apply(op)
    return total


@dataclass(slots=True)
class _Held:
    """Indices of states and of stages with saved data that are stored.

    Attributes:
        states: States that are stored by themselves.
        saved: Stages whose saved data is stored.
        gradient: The state whose gradient is held; backwards of the stages from there on are over.
    """

    states: set[int] = field(default_factory=lambda: {0})
    saved: set[int] = field(default_factory=set)
    gradient: float = inf

    def has(self, skip: Skip) -> bool:
        return any(index in skip.states for index in self.states) or any(
            stage + 1 in skip.states and (stage + 1 < self.gradient or stage + 1 == skip.first)
            for stage in self.saved
        )

    def apply(self, op: Op) -> None:
        if op.kind is OpKind.FORWARD_KEEP_ALL:
            self.saved.add(op.stage)
        elif op.kind.is_forward:
            self.states.add(op.stage + 1)
        if op.kind is OpKind.BACKWARD:
            self.gradient = op.stage
        if op.kind in (OpKind.BACKWARD, OpKind.DISCARD_SAVED):
            self.saved.discard(op.stage)
        if op.kind in (OpKind.BACKWARD, OpKind.FORWARD_DROP, OpKind.DISCARD_ACTIVATION):
            self.states.discard(op.stage)
