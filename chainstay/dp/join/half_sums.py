"""Half-summed gradients of what several stages use, by the state of the canonical program.

A shared gradient is in memory if some of its users have run backward and others have not. Each
chain runs backward from its end, so which have is told by the first stage of each chain that is
back. The tail goes back before all branches. While branch j does, the other branches are where
the state of the program says: their moves are undone before or after. So nothing has to be added
to the state, and what is half summed is a number for each state and stage.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import NamedTuple

import numpy as np

from chainstay.dp.forward_costs import Array
from chainstay.profiles import JoinProfile


class HalfSums(NamedTuple):
    """Bytes of half-summed gradients beside the operations of each chain, by case.

    Where the other branches are, as far as it matters to a branch, is one of its *cases*. The tail
    has one case, the last of all: no branch is back.

    Attributes:
        case: Shape (k, states): the case of each branch in each state.
        chain: Of each case, the branch; k for the tail.
        held: Of each case of a chain of n stages, shape (n + 1,), at [i]: while its stages from i
            on are back.
        backward: Likewise, shape (n,), at [s]: beside the backward of each stage.
    """

    case: Array
    chain: tuple[int, ...]
    held: tuple[Array, ...]
    backward: tuple[Array, ...]

    def scaled(self, scale: Callable[[Array], Array]) -> HalfSums:
        """Return these sums with all sizes as `scale` makes them."""
        return self._replace(
            held=tuple(map(scale, self.held)), backward=tuple(map(scale, self.backward))
        )


def half_sums(profile: JoinProfile) -> HalfSums:
    """Return the half-summed gradients of a join, in bytes."""
    lengths, k = [*map(len, profile.branches), len(profile.closing)], len(profile.branches)
    chains: list[int] = []
    case, held, backward = [], list[Array](), list[Array]()
    for c, n in enumerate(lengths):
        # Of every other chain, the first stage that is back.
        axes = [
            [length] if c == k else range(length + 1) if j != c and profile.shared else [0]
            for j, length in enumerate(lengths[:k])
        ]
        back = np.array(list(product(*axes, [0])), dtype=np.int64)
        standing, going = (np.zeros((len(back), i), dtype=np.int64) for i in (n + 1, n))
        for shared, users in zip(profile.shared, profile.users, strict=True):
            given, due = (np.zeros((len(back), n + 1), dtype=bool) for _ in range(2))
            for j, i in users:
                first = np.arange(n + 1)[None, :] if j == c else back[:, j, None]
                given |= i >= first
                due |= i < first
            standing += shared.bytes * (given & due)
            going += shared.bytes * (given[:, :-1] & due[:, 1:])
        distinct, number = np.unique(np.hstack([standing, going]), axis=0, return_inverse=True)
        if c < k:
            grid = len(chains) + number.reshape([*map(len, axes)])
            places = [
                np.minimum((np.arange(2 * length + 1) + 1) // 2, len(axis) - 1)
                for length, axis in zip(lengths[:k], axes, strict=True)
            ]
            case.append(grid[np.ix_(*places)].reshape(-1))
        chains += [c] * len(distinct)
        held += list(distinct[:, : n + 1])
        backward += list(distinct[:, n + 1 :])
    return HalfSums(np.array(case, dtype=np.int64), tuple(chains), tuple(held), tuple(backward))
