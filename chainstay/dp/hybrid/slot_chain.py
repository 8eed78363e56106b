"""A chain in slots of memory, what its operations need, and how rooms are rounded to slots."""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.jit import kernel

_Floats = NDArray[np.float64]

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
        saved: Shape (n,), slots of ``ā^0 .. ā^{n-1}``.
        gradient: Shape (n + 1,), slots of ``δ^0 .. δ^n``.
        forward_overhead: Shape (n,), slots in use only during a forward.
        backward_overhead: Shape (n,), slots in use only during a backward.
        forward: Shape (n,), times of forwards.
        backward: Shape (n,), times of backwards.
        rooms: The budget in slots, and how rooms are rounded.
    """

    activation: _Floats
    saved: _Floats
    gradient: _Floats
    forward_overhead: _Floats
    backward_overhead: _Floats
    forward: _Floats
    backward: _Floats
    rooms: Rooms


@kernel
def recording(chain: SlotChain, i: int, last: int) -> float:
    """Return what ``Fa`` of stage i needs besides its input, the gradient of `last` held."""
    return float(chain.gradient[last + 1] + chain.saved[i] + chain.forward_overhead[i])


@kernel
def backing(chain: SlotChain, i: int) -> float:
    """Return what the backward of stage i needs besides its input."""
    gradients = chain.gradient[i] + chain.gradient[i + 1]
    return float(chain.saved[i] + gradients + chain.backward_overhead[i])


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
