"""Stages that save much are split even where no minimum invites a cut.

Down a U-Net every level adds to what crosses, so that there is no minimum before the bottom;
yet a cut pays as soon as keeping its state costs less than keeping what it lets go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from chainstay.runtime.capture.cuts.allowed_cuts import Place, saved_between
from chainstay.runtime.capture.cuts.crossings import Crossings
from chainstay.runtime.capture.operators import Observations

__all__ = ["split_large_stages"]

_LARGE: Final = 20
"""A stage is large that saves more than this part of what the whole model saves."""

_LEAST_PART: Final = 4
"""Neither side of a split saves less than this part of the stage."""


def split_large_stages(
    cuts: Sequence[int], places: Sequence[Place], crossings: Crossings, seen: Observations
) -> list[int]:
    """`cuts` and those added where large stages are split."""
    count = len(crossings.operators)
    everything = saved_between(crossings, seen, 0, count)
    crossing = {place.index: place.storages for place in places}
    found = set(cuts)
    pending = list(pairwise([-1, *cuts, count - 1]))
    while pending:
        before, after = pending.pop()
        saved = saved_between(crossings, seen, before + 1, after + 1)
        if saved * _LARGE <= everything:
            continue
        kept = crossing.get(before, frozenset[int]())
        inside = _balanced(places, before, after, crossings, seen)
        added = {place: seen.size_of(place.storages - kept) for place in inside}
        best = min(added, key=added.__getitem__, default=None)
        if best is not None and added[best] * 2 <= saved:
            found.add(best.index)
            pending += [(before, best.index), (best.index, after)]
    return sorted(found)


def _balanced(
    places: Sequence[Place], before: int, after: int, crossings: Crossings, seen: Observations
) -> Iterator[Place]:
    """Places between two cuts with a fair part of the saved bytes on either side."""
    whole = saved_between(crossings, seen, before + 1, after + 1)
    for place in places:
        if before < place.index < after:
            sides = (
                saved_between(crossings, seen, before + 1, place.index + 1),
                saved_between(crossings, seen, place.index + 1, after + 1),
            )
            if min(sides) * _LEAST_PART >= whole:
                yield place
