"""The choice of a model's calls that become stages."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise

from chainstay.runtime.capture.blocks.calls import BlockCall

_Calls = Sequence[BlockCall]


def follows(segment: _Calls, call: BlockCall) -> bool:
    """Whether `call` takes all that has a gradient of what the last call of `segment` made.

    Whatever else it takes with a gradient must be from the segment, unchanged.
    """
    passed = {each for each in segment[-1].outputs if each.requires_grad}
    known = {*segment[0].taken, *(each for before in segment for each in before.outputs)}
    return bool(passed) and passed <= {*call.taken} <= known


def choose_calls(calls: _Calls, unfit: Collection[str]) -> list[BlockCall]:
    """Return the calls to take, in order: those of lists of one class, or of the largest list."""
    refused = {call.name for call in calls if not call.is_stage} | set(unfit)
    groups: dict[str, list[BlockCall]] = {}
    for call in calls:
        if call.name not in refused:
            groups.setdefault(call.container, []).append(call)
    alike = {path: group for path, group in groups.items() if _is_of_one_class(group)}
    chained = {path: group for path, group in alike.items() if _has_chain(group)}
    for candidates in (chained, alike):
        chosen = [path for path in candidates if _is_chosen(path, candidates)]
        if chosen:
            names = {id(call) for path in chosen for call in candidates[path]}
            return [call for call in calls if id(call) in names]
    mixed = {path: group for path, group in groups.items() if len(group) >= 2}
    return max(mixed.values(), key=_parameters, default=[])


def _is_of_one_class(group: _Calls) -> bool:
    return len(group) >= 2 and len({type(call.block) for call in group}) == 1


def _has_chain(group: _Calls) -> bool:
    return any(follows([one], other) for one, other in pairwise(group))


def _parameters(group: _Calls) -> int:
    blocks = {call.block for call in group}
    return sum(parameter.numel() for block in blocks for parameter in block.parameters())


def _is_chosen(path: str, candidates: Mapping[str, _Calls]) -> bool:
    """Whether the finest lists with most of the parameters are taken, and `path` is one of them."""
    outer = [other for other in candidates if other != path and _is_inside(path, other)]
    return not _is_split(path, candidates) and all(_is_split(each, candidates) for each in outer)


def _is_split(path: str, candidates: Mapping[str, _Calls]) -> bool:
    """Whether lists inside the blocks of list `path` are taken in its place."""
    inner = [other for other in candidates if other != path and _is_inside(other, path)]
    outermost = [one for one in inner if not any(_is_inside(one, it) for it in inner if it != one)]
    held = sum(_parameters(candidates[other]) for other in outermost)
    return bool(inner) and 2 * held >= _parameters(candidates[path])


def _is_inside(path: str, other: str) -> bool:
    return path.startswith(f"{other}.") if other else bool(path)
