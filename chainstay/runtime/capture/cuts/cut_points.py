"""The choice of places at which a model is cut into stages.

A good cut is crossed by little: candidates are the places that one tensor alone crosses, and
local minima of the bytes that cross. Of neighbours that are crossed by equally much, those
count whose tensors autograd saves anyway, so that keeping the state costs nothing more.

Stages that still save much are split where a cut costs least. Down a U-Net every level adds to
what crosses, so that there is no minimum before the bottom; yet a cut pays as soon as keeping its
state costs less than keeping what it lets go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Final, Literal

from torch import fx

from chainstay.runtime.capture.cuts.crossings import Crossings
from chainstay.runtime.capture.cuts.stage_names import block_of
from chainstay.runtime.capture.operators import ObservedGraph

Granularity = int | Literal["fine", "blocks"]
"""How many stages: at most so many, as many as make sense, or one per block of the model."""

_Saved = Callable[[int, int], int]
"""Tells the bytes that operators from one up to another save, each storage counted once."""

_BIG: Final = 1 << 62

_LEAST_NEWS: Final = 256
"""A state that differs from the one before in less than this part is no state of its own."""

_LARGE: Final = 20
"""A stage is large that saves more than this part of what the whole model saves."""

_LEAST_PART: Final = 4
"""Neither side of a split saves less than this part of the stage."""


@dataclass(frozen=True, slots=True)
class _CutPlace:
    """A place at which a cut is allowed."""

    index: int  # of the operator in front of it
    storages: frozenset[int]
    size: int  # in bytes, without what model and caller hold
    unsaved: int  # bytes of it that autograd does not save anyway


def choose_cuts(
    crossings: Crossings, forbidden: set[int], granularity: Granularity, blocks: frozenset[str]
) -> tuple[int, ...]:
    """Return the places of the cuts, in order; none of them is `forbidden`.

    With ``"fine"`` these are all good cuts; with ``"blocks"``, those of them between two of the
    `blocks`, children of the model's lists of layers. With a number, stages with least saved bytes
    are joined until there are no more than so many.
    """
    places = _allowed_places(crossings, forbidden)
    count = len(crossings.operators)

    def saved(start: int, end: int) -> int:
        return _saved_up_to(crossings.operators[start:end], crossings.observed)[-1]

    cuts = _without_idle_stages(_distinct(_candidates(places), crossings.observed), count, saved)
    if granularity == "blocks":
        sizes = {place.index: place.size for place in places}
        return tuple(_between_blocks(cuts, sizes, crossings.operators, blocks))
    cuts = _with_large_split(cuts, places, crossings)
    while granularity != "fine" and len(cuts) >= granularity:
        ends = [-1, *cuts, count - 1]
        joined = {
            cut: saved(before + 1, after + 1)
            for before, cut, after in zip(ends[:-2], cuts, ends[2:], strict=True)
        }
        cuts.remove(min(cuts, key=joined.__getitem__))
    return tuple(cuts)


def _allowed_places(crossings: Crossings, forbidden: set[int]) -> list[_CutPlace]:
    """Return the allowed places with a state that something requires a gradient of."""
    observed = crossings.observed
    saved = {storage for node in crossings.operators for storage in observed[node].saved}
    places = []
    for index, state in enumerate(crossings.sweep()):
        if index not in forbidden and any(observed[node].requires_grad for node in state):
            storages = frozenset(storage for node in state for storage in observed[node].storages)
            size, unsaved = observed.size_of(storages), observed.size_of(storages - saved)
            places.append(_CutPlace(index, storages, size, unsaved))
    return places


def _saved_up_to(nodes: Sequence[fx.Node], observed: ObservedGraph) -> list[int]:
    """Return the bytes that the first 0, 1, 2, ... operators save, each storage counted once."""
    known = set(observed.external)
    sizes = [0]
    for node in nodes:
        new = observed[node].saved - known
        known |= new
        sizes.append(sizes[-1] + observed.size_of(new))
    return sizes


def _candidates(places: Sequence[_CutPlace]) -> list[_CutPlace]:
    """Return the places that one tensor alone crosses, and local minima."""
    runs = [
        list(run) for _, run in groupby(places, key=lambda place: (place.size, len(place.storages)))
    ]
    sizes = [_BIG, *(run[0].size for run in runs), _BIG]
    found: list[_CutPlace] = []
    for before, run, after in zip(sizes, runs, sizes[2:], strict=False):
        if len(run[0].storages) == 1 or before > run[0].size <= after:
            saved = [place for place in run if not place.unsaved]
            found += saved or [min(run[::-1], key=lambda place: place.unsaved)]
    return found


def _distinct(places: Sequence[_CutPlace], observed: ObservedGraph) -> list[int]:
    """Leave out places whose state is that of the place before and next to nothing else."""
    kept: list[_CutPlace] = []
    for place in places:
        new = place.storages - kept[-1].storages if kept else place.storages
        if observed.size_of(new) * _LEAST_NEWS >= place.size:
            kept.append(place)
    return [place.index for place in kept]


def _without_idle_stages(cuts: Sequence[int], count: int, saved: _Saved) -> list[int]:
    """Join stages that save nothing to the stage before, or the first one to the next."""
    kept: list[int] = []
    start = 0
    for cut in cuts:
        if saved(start, cut + 1):
            kept.append(cut)
        elif kept:
            kept[-1] = cut
        else:
            continue
        start = cut + 1
    if kept and not saved(start, count):
        kept.pop()
    return kept


def _between_blocks(
    cuts: Sequence[int],
    sizes: Mapping[int, int],
    operators: Sequence[fx.Node],
    blocks: frozenset[str],
) -> list[int]:
    """Return the cuts between stages that end in different blocks.

    Where the border lies inside a stage, it is that of the two cuts around that stage which less
    crosses: what a block lets go of at its end (terms of a sum) crosses no border then.
    """
    if not cuts:
        return []  # and perhaps no operators
    borders: dict[int, None] = {}
    for cut, end in pairwise([*cuts, len(operators) - 1]):
        block = block_of(operators[cut], blocks)
        if block is not None and block == block_of(operators[end], blocks):
            continue
        is_inside = block_of(operators[cut + 1], blocks) == block
        is_better = is_inside and end in cuts and sizes[end] < sizes[cut]
        borders[end if is_better else cut] = None
    return list(borders)


def _with_large_split(
    cuts: Sequence[int], places: Sequence[_CutPlace], crossings: Crossings
) -> list[int]:
    """Add cuts where stages are large, and both sides have a fair part of what they save."""
    operators, observed = crossings.operators, crossings.observed
    crossing = {place.index: place.storages for place in places}
    found, everything = set(cuts), _saved_up_to(operators, observed)[-1]
    pending = list(pairwise([-1, *cuts, len(operators) - 1]))
    while pending:
        before, after = pending.pop()
        nodes = operators[before + 1 : after + 1]
        up_to = _saved_up_to(nodes, observed)  # by the number of operators from the front
        whole = up_to[-1]
        if whole * _LARGE <= everything:
            continue
        behind = _saved_up_to(nodes[::-1], observed)[::-1]
        kept = crossing.get(before, frozenset[int]())
        added = {
            place: observed.size_of(place.storages - kept)
            for place in places
            if before < place.index < after
            and up_to[place.index - before] * _LEAST_PART >= whole
            and behind[place.index - before] * _LEAST_PART >= whole
        }
        best = min(added, key=lambda place: (added[place], place.unsaved), default=None)
        if best is not None and added[best] * 2 <= whole:
            found.add(best.index)
            pending += [(before, best.index), (best.index, after)]
    return sorted(found)
