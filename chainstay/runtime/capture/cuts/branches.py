"""Branches in a graph: parts whose operators know nothing of each other.

Operators that pass values with gradients on to each other belong together. Read in order of
the forward, groups grow and join, until an operator reads from two groups that both save
much: there two branches meet, and that operator and all behind it are the tail. Parameters
and inputs that several branches read connect nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from torch import fx

from chainstay.errors import NotAJoinError
from chainstay.runtime.capture.cuts.stage_names import module_paths
from chainstay.runtime.capture.operators import ObservedGraph

_LARGE: Final = 20
"""A branch saves at least one part in so many of what the whole model saves."""

_NOTABLE: Final = 100
"""Messages tell of the join of two groups that each save at least one part in so many."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The part of each operator: a branch, or the tail.

    Attributes:
        count: The number of branches, which are numbered in the order in which they begin; at least
            two.
        part_of: Per operator, its branch, or `count` for the tail.
    """

    count: int
    part_of: Mapping[fx.Node, int]

    def name(self, part: int) -> str:
        """Return the name of a part in messages."""
        return "the tail" if part == self.count else f"branch {part}"


def find_parts(observed: ObservedGraph, movable: frozenset[fx.Node]) -> Parts:
    """Return the parts of a model; operators that are `movable` need not be in any.

    Raises:
        NotAJoinError: There are no two of them, or one reads what is computed in another.
    """
    operators = observed.captured.operators
    _read_buffers_directly(observed)
    groups = _Groups(observed)
    for node in operators:
        if observed[node].requires_grad:
            groups.take(node)
        groups.note_writes(node)
    branches = groups.large()
    if len(branches) < 2:
        raise groups.refusal()
    part_of = {node: part for part, group in enumerate(branches) for node in groups.members[group]}
    with_gradient = (node for node in operators if observed[node].requires_grad)
    part_of |= {node: len(branches) for node in with_gradient if node not in part_of}
    _place_others(observed, part_of, movable)
    found = Parts(len(branches), part_of)
    _refuse_exchange(operators, found, movable)
    return found


@dataclass(slots=True)
class _Groups:
    """Operators with gradients that depend on each other."""

    observed: ObservedGraph
    group_of: dict[fx.Node, int | None] = field(default_factory=dict)  # `None` for the tail
    members: dict[int, list[fx.Node]] = field(default_factory=dict)
    saved: dict[int, set[int]] = field(default_factory=dict)  # storages, by group
    sizes: dict[int, int] = field(default_factory=dict)
    writers: dict[int, fx.Node] = field(default_factory=dict)  # the last one of each storage
    # The largest smaller one of two groups that became one, and where.
    joint: tuple[int, fx.Node] | None = None
    everything: int = field(init=False)  # bytes that the whole model saves

    def __post_init__(self) -> None:
        saved = (storage for node in self.observed.nodes.values() for storage in node.saved)
        self.everything = self.observed.size_of(saved)

    def take(self, node: fx.Node) -> None:
        """Put the next operator where it belongs."""
        found = list(dict.fromkeys(self.group_of[giver] for giver in self._givers(node)))
        groups = [group for group in found if group is not None]
        groups.sort(key=self.sizes.__getitem__, reverse=True)
        if None in found or sum(map(self._is_large, groups)) > 1:
            self.group_of[node] = None
            return
        if len(groups) > 1 and (self.joint is None or self.sizes[groups[1]] > self.joint[0]):
            self.joint = (self.sizes[groups[1]], node)
        home = self._united(groups) if groups else len(self.group_of)
        self.group_of[node] = home
        self.members.setdefault(home, []).append(node)
        self._save(home, self.observed[node].saved)

    def note_writes(self, node: fx.Node) -> None:
        """Note that later readers of what `node` changes in place depend on it."""
        if node in self.group_of:
            own = self.observed[node].written - self.observed.external
            self.writers.update(dict.fromkeys(own, node))

    def large(self) -> list[int]:
        """Return the groups large enough to be branches, in the order in which they begin."""
        order = {node: index for index, node in enumerate(self.observed.nodes)}
        large = [group for group in self.members if self._is_large(group)]
        return sorted(large, key=lambda group: order[self.members[group][0]])

    def refusal(self) -> NotAJoinError:
        """Return the error that says why there are no two branches."""
        if self.joint is not None and self.joint[0] * _NOTABLE >= max(self.everything, 1):
            share = self.joint[0] / self.everything
            return NotAJoinError(
                f"the branches exchange values at {title_of(self.joint[1])}, when the smaller one "
                f"has saved {share:.1%} of what the model saves; a join needs at least two that "
                f"save {1 / _LARGE:.0%} each before they meet"
            )
        return NotAJoinError(
            "one chain: no two independent parts meet; a join has at least two parts that save "
            f"{1 / _LARGE:.0%} of what the model saves each, and read nothing of each other"
        )

    def _givers(self, node: fx.Node) -> Iterator[fx.Node]:
        for argument in node.all_input_nodes:
            if argument in self.group_of:
                yield argument
            if argument in self.observed.nodes:
                storages = self.observed[argument].storages
                yield from (self.writers[s] for s in storages if s in self.writers)

    def _united(self, groups: list[int]) -> int:
        home, *others = groups
        for other in others:
            members = self.members.pop(other)
            self.group_of.update(dict.fromkeys(members, home))
            self.members[home] += members
            self._save(home, self.saved.pop(other))
        return home

    def _save(self, group: int, storages: Collection[int]) -> None:
        saved = self.saved.setdefault(group, set())
        new = self.observed.size_of(storage for storage in storages if storage not in saved)
        self.sizes[group] = self.sizes.get(group, 0) + new
        saved.update(storages)

    def _is_large(self, group: int) -> bool:
        return self.sizes[group] * _LARGE > self.everything


def _read_buffers_directly(observed: ObservedGraph) -> None:
    """Let readers of an in-place operator's result read the buffer that it changes.

    Otherwise a branch would seem to read from another one whose normalization it shares.
    """
    inputs = {
        id(observed[node].tensor): node
        for node in observed.captured.placeholders
        if observed[node].tensor is not None
    }
    for node in observed.captured.operators:
        origin = inputs.get(id(observed[node].tensor))
        if origin is not None:
            node.replace_all_uses_with(origin)


def _place_others(
    observed: ObservedGraph, part_of: dict[fx.Node, int], movable: frozenset[fx.Node]
) -> None:
    """Operators without gradients go where they are used, or else where they come from.

    Those that change buffers stay beside the operator with gradients behind them.
    """
    operators = observed.captured.operators
    following = max(part_of.values())
    for node in reversed(operators):
        if node in part_of:
            following = part_of[node]
            continue
        users = {part_of[user] for user in node.users if user in part_of}
        givers = {part_of[argument] for argument in node.all_input_nodes if argument in part_of}
        if observed[node].written & observed.external:
            part_of[node] = min(givers, default=following)
        elif node in movable or len(users) == 1:
            part_of[node] = min(users, default=following)
        else:
            part_of[node] = min(givers or users, default=following)
    for node in operators:
        giver = node.all_input_nodes[0] if node.target is operator.getitem else None
        if giver in part_of and observed[giver].tensor is None:  # one of several outputs
            part_of[node] = part_of[giver]


def _refuse_exchange(
    operators: Iterable[fx.Node], parts: Parts, movable: frozenset[fx.Node]
) -> None:
    for node in operators:
        part = parts.part_of[node]
        for argument in node.all_input_nodes:
            origin = parts.part_of.get(argument, part)
            is_passed_on = origin < part == parts.count
            if origin != part and not is_passed_on and argument not in movable:
                raise NotAJoinError(
                    f"the branches exchange values at {title_of(node)}: {parts.name(part)} reads "
                    f"{argument.name}, which is computed in {parts.name(origin)}"
                )


def title_of(node: fx.Node) -> str:
    """Return the title of an operator in messages: its name, and the module that runs it."""
    paths: Iterable[str] = module_paths(node)[-1:]
    return " in ".join([node.name, *paths])
