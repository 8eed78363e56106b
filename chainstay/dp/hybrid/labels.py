"""The labels of a search, in columns, and the hash table that finds the label of a cell."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from chainstay.dp.hybrid.slot_chain import SlotChain
from chainstay.dp.jit import kernel

_Floats = NDArray[np.float64]


class Labels(NamedTuple):
    """Ways to get to stages, in columns.

    Attributes:
        cost: Time that it took so far.
        kept: ``A``, slots that stay on the device until after the turn.
        leaving: ``D_F``, slots that have to leave.
        returning: ``D_B``, slots that have to come back.
        total: Time that it takes at least in all.
        parent: The label before, -1 for the first.
        stage: The stage that it has got to.
        form: The form of the stage's input, an `InputForm`.
        moved: Whether the input of the parent's stage was offloaded.
        following: The next label of the same stage and form, -1 after the last.
        first: Shape (stages, forms): the first label of a stage and form, or -1.
        made: Shape (1,): how many labels there are.
        key: The hash table's cells, 0 for none.
        label: The hash table's labels of these cells.
    """

    cost: _Floats
    kept: _Floats
    leaving: _Floats
    returning: _Floats
    total: _Floats
    parent: NDArray[np.int32]
    stage: NDArray[np.int16]
    form: NDArray[np.int16]
    moved: NDArray[np.bool_]
    following: NDArray[np.int32]
    first: NDArray[np.int32]
    made: NDArray[np.int64]
    key: NDArray[np.int64]
    label: NDArray[np.int32]


def no_labels(chain: SlotChain, most: int) -> Labels:
    """Return room for so many labels; the system gives memory as they come."""
    stages, options = chain.saved.shape
    table = 2 << math.ceil(math.log2(most + 1))
    return Labels(
        cost=np.empty(most),
        kept=np.empty(most),
        leaving=np.empty(most),
        returning=np.empty(most),
        total=np.empty(most),
        parent=np.empty(most, dtype=np.int32),
        stage=np.empty(most, dtype=np.int16),
        form=np.empty(most, dtype=np.int16),
        moved=np.empty(most, dtype=np.bool_),
        following=np.empty(most, dtype=np.int32),
        first=np.full((stages, options + 1), -1, dtype=np.int32),
        made=np.zeros(1, dtype=np.int64),
        key=np.zeros(table, dtype=np.int64),
        label=np.empty(table, dtype=np.int32),
    )


@kernel
def slot_of(labels: Labels, key: int) -> int:
    """Return where a cell is in the hash table, or should be."""
    mask = len(labels.key) - 1
    at = ((key * 0x9E3779B97F4A7C1) >> 20) & mask
    while labels.key[at] != 0 and labels.key[at] != key:
        at = (at + 1) & mask
    return at


@kernel
def allocate(labels: Labels, place: int, key: int, stage: int, form: int) -> int:
    """Return the number of a new label, or -1 if there is no room for it."""
    at = labels.made[0]
    if at >= len(labels.cost):
        labels.made[0] = len(labels.cost) + 1
        return -1
    labels.made[0] = at + 1
    labels.key[place], labels.label[place] = key, at
    labels.stage[at], labels.form[at] = stage, form
    labels.following[at] = labels.first[stage, form]
    labels.first[stage, form] = at
    return int(at)
