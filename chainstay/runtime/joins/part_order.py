"""A model's operators part by part: one branch after another, then the tail.

Models may compute a bit of each branch in turns. Branches that know nothing of each other can
run one after another as well, if that changes no number: random numbers are drawn and
buffers changed in the same order, and gradients are summed in the same order. Autograd sums
them from the last use to the first; of the first two summands either may come first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from torch import fx

from chainstay.errors import NotAJoinError
from chainstay.runtime.capture.cuts.branches import Parts, title_of
from chainstay.runtime.capture.operators import ObservedGraph

_T = TypeVar("_T")


def sort_by_part(observed: ObservedGraph, parts: Parts) -> None:
    """Bring the operators of a graph into the order of their parts.

    Raises:
        NotAJoinError: Another order gives other numbers, or a tensor that is changed in place
            belongs to several parts.
    """
    before = observed.captured.operators
    after = sorted(before, key=parts.part_of.__getitem__)
    _refuse_common_changes(before, observed, parts)
    if before != after:
        _require_same_numbers(observed, before, after)
        end = observed.captured.graph.output_node()
        for node in after:
            end.prepend(node)


def same_sum(plain: Sequence[_T], other: Sequence[_T]) -> bool:
    """Whether summands in these two orders have the same sum, bit for bit."""
    return plain == other or (plain[:2] == other[:2][::-1] and plain[2:] == other[2:])


def _require_same_numbers(
    observed: ObservedGraph, before: Sequence[fx.Node], after: Sequence[fx.Node]
) -> None:
    drawing, drawing_then = (
        [n for n in order if observed[n].draws_random] for order in (before, after)
    )
    if drawing != drawing_then:
        one, other = next(p for p in zip(drawing, drawing_then, strict=True) if p[0] is not p[1])
        raise NotAJoinError(
            f"the branches draw random numbers in turns ({title_of(one)} before "
            f"{title_of(other)}); compute one branch after the other"
        )
    changed = {storage for node in before for storage in observed[node].written & observed.external}
    for storage in changed:
        users, users_then = (
            [n for n in order if storage in observed.touched(n)] for order in (before, after)
        )
        if users != users_then:
            raise NotAJoinError(
                f"the branches change a buffer in turns, at {title_of(users[0])} first; compute "
                "one branch after the other"
            )
    place, place_then = ({n: i for i, n in enumerate(order)} for order in (before, after))
    values = {node.name: _uses([node], observed) for node in before if observed[node].requires_grad}
    for name, uses in (*values.items(), *uses_of_leaves(observed)):
        plain = sorted(uses, key=place.__getitem__, reverse=True)
        if not same_sum(plain, sorted(uses, key=place_then.__getitem__, reverse=True)):
            raise NotAJoinError(
                f"the branches use {name} in turns, {len(uses)} times, so that its gradient "
                "would be summed in another order; compute one branch after the other"
            )


def uses_of_leaves(observed: ObservedGraph) -> list[tuple[str, list[fx.Node]]]:
    """Return parameters and inputs with gradients, and the operators that use them, in order."""
    captured = observed.captured
    nodes: dict[int, list[fx.Node]] = {}
    names: dict[int, str] = {}
    for node, given in zip(captured.placeholders, captured.inputs, strict=True):
        if observed[node].requires_grad:
            storage = observed[node].storages[0]
            nodes.setdefault(storage, []).append(node)
            names.setdefault(storage, given.name)
    return [(names[storage], _uses(aliases, observed)) for storage, aliases in nodes.items()]


def _uses(nodes: Sequence[fx.Node], observed: ObservedGraph) -> list[fx.Node]:
    """Operators with gradients that take any of `nodes`."""
    users = dict.fromkeys(user for node in nodes for user in node.users)
    return [user for user in users if user.op != "output" and observed[user].requires_grad]


def _refuse_common_changes(
    operators: Sequence[fx.Node], observed: ObservedGraph, parts: Parts
) -> None:
    """A tensor that one part changes in place must be no other part's.

    But buffers that every part changes each time it reads them (running statistics): these
    are saved and put back for a stage that runs again.
    """
    touching: dict[int, list[fx.Node]] = {}
    for node in operators:
        for storage in observed.touched(node):
            touching.setdefault(storage, []).append(node)
    for storage, nodes in touching.items():
        writers = [node for node in nodes if storage in observed[node].written]
        found = {parts.part_of[node] for node in nodes}
        if not writers or len(found) == 1:
            continue
        if storage in observed.external:
            is_harmless = len(writers) == len(nodes)
        else:  # made in the first of these parts, and read in others
            is_harmless = {parts.part_of[node] for node in writers} == {min(found)}
        if not is_harmless:
            raise NotAJoinError(
                f"{title_of(writers[0])} changes in place what several parts use, "
                f"{parts.name(min(found))} and {parts.name(max(found))} among them; let it "
                "change a clone"
            )
