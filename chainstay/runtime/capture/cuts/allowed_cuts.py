"""Places between two operators at which a cut is allowed, and what lies between two places."""

from __future__ import annotations

from dataclasses import dataclass

from chainstay.runtime.capture.cuts.crossings import Crossings, forbidden_places
from chainstay.runtime.capture.operators import Observations

__all__ = ["Place", "allowed_places", "saved_between"]


@dataclass(frozen=True, slots=True)
class Place:
    """A place at which a cut is allowed.

    Attributes:
        index: The index of the operator in front of it.
        storages: The storages that cross the place.
        size: Their bytes, without those that model and caller hold.
        is_saved: Autograd saves all of them anyway.
    """

    index: int
    storages: frozenset[int]
    size: int
    is_saved: bool


def allowed_places(crossings: Crossings, seen: Observations) -> list[Place]:
    """Allowed places with a state that something requires a gradient of."""
    forbidden = forbidden_places(crossings, seen)
    saved = {storage for node in crossings.operators for storage in seen[node].saved}
    places = []
    for index, state in enumerate(crossings.sweep()):
        if index not in forbidden and any(seen[node].requires_grad for node in state):
            storages = frozenset(storage for node in state for storage in seen[node].storages)
            places.append(Place(index, storages, seen.size_of(storages), storages <= saved))
    return places


def saved_between(crossings: Crossings, seen: Observations, start: int, end: int) -> int:
    """Bytes that operators ``start`` to ``end - 1`` save, each storage counted once."""
    nodes = crossings.operators[start:end]
    return seen.size_of(storage for node in nodes for storage in seen[node].saved)
