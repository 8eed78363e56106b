"""Memory and gradients that several states share, told apart from new ones.

Storages and tensors get numbers that stay the same from state to state, as long as a stage
passes them through. A tensor that crosses several cuts becomes a `Skip` of the profile:
whatever holds some of these states holds its memory once, and its gradient is one, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch

from chainstay.profiles import Skip
from chainstay.runtime.devices.memory import allocated_bytes
from chainstay.runtime.measures.boundary import Gradients
from chainstay.runtime.stage.states import State, address_of


@dataclass(frozen=True, slots=True)
class NumberedState:
    """One state of a chain.

    Attributes:
        storages: Bytes of its storages, by their numbers.
        tensors: Numbers of its tensors, in order.
    """

    storages: Mapping[int, int]
    tensors: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """The bytes of the whole state."""
        return sum(self.storages.values())

    def bytes_outside(self, other: NumberedState) -> int:
        """Return the bytes of the state that `other` has not."""
        return sum(size for number, size in self.storages.items() if number not in other.storages)


@dataclass(slots=True)
class Lineage:
    """Numbers the states of a chain, one after another.

    Attributes:
        outside: Addresses of storages that the model or the caller holds anyway.
        device: The device whose memory counts: what is on its host takes none of it.
        states: The states numbered so far.
    """

    outside: frozenset[int]
    device: torch.device
    states: list[NumberedState] = field(default_factory=list)
    _numbers: count[int] = field(default_factory=count)

    @classmethod
    def beside(cls, tensors: Iterable[torch.Tensor], device: torch.device) -> Lineage:
        """Nothing numbered yet; memory of `tensors` will not count, nor any but the device's."""
        return cls(frozenset(map(address_of, tensors)), device)

    def add(self, state: State, before: State = ()) -> None:
        """Number the next state; `before`, the one in front of it, is alive still."""
        addresses = {address_of(tensor): tensor for tensor in state}
        known: dict[int, int] = {}
        passed: dict[int, int] = {}
        if self.states:
            last = self.states[-1]
            known = dict(zip(dict.fromkeys(map(address_of, before)), last.storages, strict=True))
            passed = {
                id(tensor): number for tensor, number in zip(before, last.tensors, strict=True)
            }
        self.states.append(
            NumberedState(
                storages={
                    known.get(address, next(self._numbers)): self._bytes_of(tensor)
                    for address, tensor in addresses.items()
                },
                tensors=tuple(passed.get(id(tensor), next(self._numbers)) for tensor in state),
            )
        )

    def _bytes_of(self, tensor: torch.Tensor) -> int:
        is_elsewhere = tensor.device.type != self.device.type
        return 0 if is_elsewhere or address_of(tensor) in self.outside else allocated_bytes(tensor)


def shared_skips(
    states: Sequence[NumberedState], gradients: Sequence[Gradients]
) -> tuple[Skip, ...]:
    """Return the tensors that several of `states` have, joined where they cross the same cuts."""
    bytes_of: Counter[tuple[int, int]] = Counter()
    gradient_of: Counter[tuple[int, int]] = Counter()
    sizes = [state.storages for state in states]
    slopes = [  # of a tensor that is there twice, the first one's
        dict(zip(reversed(state.tensors), reversed(layout.sizes), strict=True))
        for state, layout in zip(states, gradients, strict=True)
    ]
    for counter, by_state in ((bytes_of, sizes), (gradient_of, slopes)):
        for cuts, size in _crossings(by_state):
            counter[cuts] += size
    return tuple(
        Skip(first=cuts[0], last=cuts[1], bytes=bytes_of[cuts], gradient_bytes=gradient_of[cuts])
        for cuts in sorted(bytes_of | gradient_of)
    )


def _crossings(by_state: Sequence[Mapping[int, int]]) -> list[tuple[tuple[int, int], int]]:
    """First and last state, and the least size on the way, of what is in several states."""
    found: dict[int, tuple[int, int, int]] = {}
    for index, sizes in enumerate(by_state):
        for number, size in sizes.items():
            first, _, least = found.get(number, (index, index, size))
            found[number] = (first, index, min(least, size))
    return [
        ((first, last), least) for first, last, least in found.values() if first < last and least
    ]
