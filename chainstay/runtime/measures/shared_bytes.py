"""Bytes that no stage shows when it is run alone, because stages share them.

* A parameter used by several stages (tied weights) has one gradient. Autograd holds it
  from the backward of its highest use to that of its lowest, where the sum is complete.
  At every lower use the old sum, the new summand and their sum exist together.
* Autocast keeps a low-precision copy of every weight it has cast until it ends. Measuring
  runs under the caller's autocast, where those copies exist from the first run on.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add

import torch

from chainstay.runtime.devices.autocast import Autocast

__all__ = ["autocast_copies_bytes", "tied_gradients_bytes"]

Leaves = Sequence[tuple[torch.Tensor, ...]]


def tied_gradients_bytes(leaves: Leaves, held: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    """Per stage, what half-summed gradients take during its forward and its backward.

    After the backward of the highest use, forwards of any stage below may run again.

    Args:
        leaves: What each stage sends a gradient to.
        held: The memory that holds each of these gradients, as far as that was seen: one may
            be a slice of something larger.
    """
    uses: dict[int, list[int]] = {}
    sizes: dict[int, int] = {}
    for index, stage_leaves in enumerate(leaves):
        for leaf in stage_leaves:
            uses.setdefault(id(leaf), []).append(index)
            sizes[id(leaf)] = leaf.nbytes
    waiting = dict(sizes)  # for their other summands
    for stage_leaves, stage_held in zip(leaves, held, strict=True):
        for leaf, size in zip(stage_leaves, stage_held, strict=False):
            waiting[id(leaf)] = max(waiting[id(leaf)], size)
    forward, backward, sums = ([0] * len(leaves) for _ in range(3))
    for leaf_id, (lowest, *_, highest) in _several(uses):
        for index in range(highest):
            forward[index] += waiting[leaf_id]
        for index in range(lowest, highest + 1):
            backward[index] += waiting[leaf_id]
        for index in uses[leaf_id][:-1]:  # leaves are summed one after another
            sums[index] = max(sums[index], sizes[leaf_id])
    return list(zip(forward, map(add, backward, sums), strict=True))


def _several(uses: dict[int, list[int]]) -> list[tuple[int, list[int]]]:
    return [(leaf_id, indices) for leaf_id, indices in uses.items() if len(indices) > 1]


def autocast_copies_bytes(leaves: Leaves, autocast: Autocast | None) -> int:
    """Return the bytes of autocast's copies of `leaves`, one per stage that uses a leaf.

    A leaf of two stages may have two copies: one in the graph of a stage that was kept,
    one made when the other stage runs again after the cache has gone.
    """
    if autocast is None or not autocast.has_cache:
        return 0
    return sum(
        leaf.numel() * autocast.dtype.itemsize
        for stage_leaves in leaves
        for leaf in stage_leaves
        if leaf.dtype == torch.float32  # autocast caches no other type
    )
