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

from math import inf

from chainstay.profiles import ChainProfile, Skip
from chainstay.schedule import Item, OpKind, Schedule, update_stored


def remade_bytes(profile: ChainProfile, schedule: Schedule) -> int:
    """Return the most bytes that the runtime needs for `schedule` beyond those simulated.

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
    stored = {Item("a", 0)}
    gradient: float = inf  # the state whose gradient is held; backwards from there on are over
    total = 0
    for op in schedule:
        if op.kind.is_forward:
            made = (skip for skip in profile.skips if skip.first == op.stage + 1)
            total += sum(skip.bytes for skip in made if _is_held(skip, stored, gradient))
        update_stored(stored, op)
        if op.kind is OpKind.BACKWARD:
            gradient = op.stage
    return total


def _is_held(skip: Skip, stored: set[Item], gradient: float) -> bool:
    """Return whether the runtime holds a shared tensor in some stored item."""
    states = {
        item.stage + 1
        for item in stored
        if item.kind == "a" or item.stage + 1 < gradient or item.stage + 1 == skip.first
    }
    return not states.isdisjoint(skip.states)
