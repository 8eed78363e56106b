"""A chain's sizes as the program for free discards counts them, tensors of skips once.

Everything that is stored while stages ``s..l`` are to be solved has an index of at most s
(saved data ``ā_i`` counting as i + 1), but for the saved data of stage l where they are held.
So what an item adds to memory depends on ``a^s`` and, for an activation that is dropped, on
the activation kept before it: ``docs/derivations/free-discards.md``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from chainstay.dp.recursion import Array
from chainstay.profiles import ChainProfile

__all__ = ["Sizes", "sizes_of"]


class Sizes(NamedTuple):
    """Sizes in bytes and times in ns, by stage and by node.

    A *node* is where a sub-chain starts and what becomes of its input. Node s < n: at stage s,
    whose input stays. Nodes from n on: at a stage whose input ``a^s`` was swept there from a stage
    r and will be dropped; stages r for which the drop gives equally many bytes share the node.

    Attributes:
        elapsed: Shape (n + 1,), ns: forward time of the stages before.
        saved: Shape (n,), bytes of ``ā_s`` without what passes through.
        gradient: Shape (n + 1,), bytes of ``δ^s``.
        fresh: Shape (n, n + 1), at [s, k]: bytes of ``a^k`` that are no part of ``a^s``.
        nearest: Shape (n + 1,), at [k]: the least of them, in bytes.
        made: Shape (n,), at [s]: bytes of ``a^s`` that stage s - 1 makes and stage s passes on.
        held: Shape (n, n), at [s, l]: bytes of ``ā_l`` that are no part of ``a^s``.
        forward: Shape (n,): bytes that running a stage adds to its input.
        record: Shape (n,): bytes that recording it adds.
        backward: Shape (n,): bytes of saved data and both gradients while its backward runs.
        node: Shape (n, n), at [r, s], r < s: the node of stage s reached from r.
        freed: Shape (nodes,): bytes that dropping the input gives, 0 for those that stay.
        first_node: Shape (n + 1,): nodes ``first_node[s] .. first_node[s + 1] - 1`` drop ``a^s``.
    """

    elapsed: Array
    saved: Array
    gradient: Array
    fresh: Array
    nearest: Array
    made: Array
    held: Array
    forward: Array
    record: Array
    backward: Array
    node: Array
    freed: Array
    first_node: Array


def sizes_of(profile: ChainProfile) -> Sizes:
    """Return the sizes of a chain.

    Complexity:
        O(n^2) for each skip.
    """
    arrays, n = profile.arrays(), len(profile)
    fresh, saved = arrays.fresh, arrays.saved
    own, made = arrays.activation[:n].copy(), np.zeros(n, dtype=np.int64)
    held = np.tile(saved, (n, 1))
    ending = np.zeros((n, n), dtype=np.int64)  # at [r, s]: skips of a^s, but not a^r, that end
    for skip in profile.skips:
        own[skip.first : skip.last + 1] -= skip.bytes
        made[skip.first] += skip.bytes
        held[: skip.first, skip.first : skip.last] += skip.bytes
        ending[: skip.first, skip.last] += skip.bytes
    node, freed, first_node = _nodes(own, ending)
    made_by = np.diagonal(fresh, 1)
    return Sizes(
        elapsed=np.concatenate([[0], np.cumsum(arrays.forward_time)]),
        saved=saved,
        gradient=arrays.gradient,
        fresh=fresh,
        nearest=np.concatenate([arrays.activation[:1], made_by]),
        made=made,
        held=held,
        forward=made_by + arrays.forward_overhead,
        record=saved + arrays.forward_overhead,
        backward=saved + arrays.backward_overhead + arrays.gradients,
        node=node,
        freed=freed,
        first_node=first_node,
    )


def _nodes(own: Array, ending: Array) -> tuple[Array, Array, Array]:
    """Return `Sizes.node`, `Sizes.freed` and `Sizes.first_node`."""
    n = len(own)
    node, first_node = np.zeros((n, n), dtype=np.int64), np.full(n + 1, n, dtype=np.int64)
    freed = [np.zeros(n, dtype=np.int64)]
    for s in range(1, n):
        more, which = np.unique(ending[:s, s], return_inverse=True)
        node[:s, s] = first_node[s] + which
        freed.append(own[s] + more)
        first_node[s + 1] = first_node[s] + len(more)
    return node, np.concatenate(freed), first_node
