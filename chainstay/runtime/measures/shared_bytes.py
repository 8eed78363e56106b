"""Bytes that no stage shows when it is run alone, because stages share them.

* A parameter used by several stages (tied weights) has one gradient. Autograd holds it
  from the backward of its highest use to that of its lowest, where the sum is complete: like
  the gradient of a tensor that is part of all states between, so it is a `Skip` without bytes.
  At every lower use the new summand is added to the old sum, in place if that lies apart.
* Autocast keeps a low-precision copy of every weight it has cast until it ends. A stage is run
  alone above its copies (`CopiesOfWeights`). A weight of two stages may have two: one in the graph
  of a stage that was kept, one made when the other stage runs again after the cache has gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from chainstay.profiles import Skip
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.stage.states import State, is_among

_Leaves = Sequence[tuple[torch.Tensor, ...]]


class LeafGradient(NamedTuple):
    """The storage of a leaf's gradient, or of its sum so far, when a stage has run backward.

    Attributes:
        bytes: Bytes of its storage, 0 if that was not seen: one may be a slice of something larger.
        is_apart: Whether it is known to be dense and alone in there, so that another one is added
            in place.
    """

    bytes: int = 0
    is_apart: bool = False


@dataclass(frozen=True, slots=True)
class LeafUses:
    """Leaves of a stage, or of several, that other stages use, too.

    Attributes:
        behind: Those that stages behind it use: their backwards have sent gradients before.
        before: Those that stages before it use: the sum waits for theirs.
        copied: Those of `behind` to whose sum another gradient is not added in place.
    """

    behind: tuple[torch.Tensor, ...] = ()
    before: tuple[torch.Tensor, ...] = ()
    copied: tuple[torch.Tensor, ...] = ()

    @property
    def bytes(self) -> int:
        """The bytes of all of them, each once."""
        return sum({id(leaf): leaf.nbytes for leaf in self.behind + self.before}.values())

    @classmethod
    def of(
        cls,
        leaves: _Leaves,
        first: int,
        last: int,
        held: Sequence[Sequence[LeafGradient]],
        *,
        has_values: bool = True,
    ) -> LeafUses:
        """Return the uses of leaves of stages `first` to `last`.

        `held` is what holds each of these gradients, for stages behind the last one. Autograd adds
        no stand-ins, which have no values, in place: without the old sum, none is made of the two.
        """
        own = {id(leaf): leaf for of_stage in leaves[first : last + 1] for leaf in of_stage}
        before = {id(leaf) for of_stage in leaves[:first] for leaf in of_stage}
        sums: dict[int, LeafGradient] = {}
        for stage in reversed(range(last + 1, len(leaves))):
            sums |= dict(zip(map(id, leaves[stage]), held[stage], strict=True))
        behind = tuple(leaf for key, leaf in own.items() if key in sums)
        copied = tuple(leaf for leaf in behind if not sums[id(leaf)].is_apart)
        return cls(
            behind=behind if has_values else copied,
            before=tuple(leaf for key, leaf in own.items() if key in before),
            copied=copied,
        )

    def of_leaf(self, leaf: torch.Tensor) -> tuple[bool, ...]:
        """Return whether a leaf is used behind, and before, and what else there is to know."""
        return tuple(is_among(leaf, some) for some in (self.behind, self.before, self.copied))


@dataclass(frozen=True, slots=True)
class TiedGradients:
    """Gradients that several stages sum.

    Attributes:
        waiting: Bytes of half-summed gradients, by the first and the last state beside whose
            gradient they wait.
        sums: By stage, the most bytes that it takes to add to a sum.
    """

    waiting: Mapping[tuple[int, int], int]
    sums: Sequence[int]

    @classmethod
    def of(cls, leaves: _Leaves, held: Sequence[tuple[LeafGradient, ...]]) -> TiedGradients:
        """Return the gradients that are summed."""
        uses: dict[int, list[int]] = {}
        sizes: dict[int, int] = {}
        for index, stage_leaves in enumerate(leaves):
            for leaf in stage_leaves:
                uses.setdefault(id(leaf), []).append(index)
                sizes[id(leaf)] = leaf.nbytes
        most = dict(sizes)  # bytes that hold a sum
        for index, stage_held in enumerate(held):
            for leaf, gradient in zip(leaves[index], stage_held, strict=False):
                most[id(leaf)] = max(most[id(leaf)], gradient.bytes)
        waiting, sums = Counter[tuple[int, int]](), [0] * len(leaves)
        for leaf_id, (lowest, *others) in uses.items():
            if others:
                waiting[lowest + 1, others[-1]] += most[leaf_id]
            for index in (lowest, *others)[:-1]:  # leaves are summed one after another
                sums[index] = max(sums[index], sizes[leaf_id])
        return cls(waiting, sums)

    def beside(self, state: int) -> int:
        """Return the bytes that wait beside the gradient of a state."""
        return sum(size for (first, last), size in self.waiting.items() if first <= state <= last)

    @property
    def skips(self) -> tuple[Skip, ...]:
        """The gradients that wait beside those of several states."""
        return tuple(
            Skip(first=first, last=last, bytes=0, gradient_bytes=size)
            for (first, last), size in sorted(self.waiting.items())
            if first < last
        )


def autocast_copies_bytes(leaves: State, autocast: Autocast | None) -> int:
    """Return the bytes of autocast's copies of `leaves`, should it cast all of them."""
    if autocast is None or not autocast.has_cache:
        return 0
    return sum(
        leaf.numel() * autocast.dtype.itemsize
        for leaf in leaves
        if leaf.dtype == torch.float32  # autocast caches no other type
    )
