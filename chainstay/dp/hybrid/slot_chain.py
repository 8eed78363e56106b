"""A chain in slots of memory, what its operations need, and how rooms are rounded to slots."""

from __future__ import annotations

import math
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.jit import kernel

_Floats = NDArray[np.float64]

InputForm: TypeAlias = int
"""The form of a stage's input: `PLAIN`, or k + 1 if it is part of what the stage before saved under
the k-th of its options that count (those that no other replaces)."""
PLAIN: Final = 0
INFINITE: Final = 1e30
FINITE: Final = 1e29
"""Any cost above is infinite, with something finite subtracted."""
TINY: Final = 1e-9
"""In slots: more than sums of floats can be wrong by."""


class Rooms(NamedTuple):
    """The grid of rooms in which stages are recomputed.

    Attributes:
        slots: K, the slots of the budget.
        is_bound: Whether rooms are rounded up, for a lower bound; they are rounded down for a
            plan.
    """

    slots: int
    is_bound: bool


class SlotChain(NamedTuple):
    """A chain in slots of memory; a time stands for the slots that the link moves in it.

    Attributes:
        activation: Shape (n + 1,), slots of ``a^0 .. a^n``.
        gradient: Shape (n + 1,), slots of ``δ^0 .. δ^n``.
        forward_overhead: Shape (n,), slots in use only during a forward that is not kept.
        forward: Shape (n,), times of forwards that are not kept.
        counts: Shape (n,): how many options of each stage count; columns below end there.
        saved: Shape (n, options), slots that an option saves.
        forward_need: Shape (n, options), what its forward needs besides input and gradient.
        backward_need: Shape (n, options), what its backward needs besides the input.
        keep: Shape (n, options), times of its forward.
        backward: Shape (n, options), times of its backward.
        least: Shape (n,), the least time of a stage's kept forward and backward, by any option.
        rooms: The budget in slots, and how rooms are rounded.
    """

    activation: _Floats
    gradient: _Floats
    forward_overhead: _Floats
    forward: _Floats
    counts: NDArray[np.int64]
    saved: _Floats
    forward_need: _Floats
    backward_need: _Floats
    keep: _Floats
    backward: _Floats
    least: _Floats
    rooms: Rooms


@kernel
def input_forms(chain: SlotChain, i: int) -> int:
    """Return how many forms the input of stage i can have."""
    return 1 + int(chain.counts[i - 1]) if i else 1


@kernel
def input_size(chain: SlotChain, i: int, form: int) -> float:
    """Return the slots of the input of stage i in one of its forms."""
    return float(chain.saved[i - 1, form - 1] if form else chain.activation[i])


@kernel
def passing(chain: SlotChain, k: int, first: int, last: int) -> float:
    """Return what a forward of stage k needs besides the input of `first`, which stays."""
    need = chain.gradient[last + 1] + chain.activation[k + 1] + chain.forward_overhead[k]
    return float(need + chain.activation[k] if k > first else need)


@kernel
def row_of(i: int, j: int) -> int:
    """Return the row of stages i..j."""
    return j * (j + 1) // 2 + i


@kernel
def rounded(rooms: Rooms, size: float) -> int:
    """Return what a size takes of a room, rounded: down for a bound, up for a plan."""
    return math.floor(size + TINY) if rooms.is_bound else math.ceil(size - TINY)


@kernel
def column_of(rooms: Rooms, room: float) -> int:
    """Return the column of a room: rounded up for a bound, down for a plan."""
    at = math.ceil(room - TINY) if rooms.is_bound else math.floor(room + TINY)
    return min(rooms.slots, at)
