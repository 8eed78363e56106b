"""Values that cross each place at which a graph's operators could be cut in two.

Place p lies behind operator p. A value crosses it if it exists there and is used behind it;
as values are used from their making to their last use, each crosses a contiguous range.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from torch import fx

from chainstay.runtime.capture.graph import CapturedGraph
from chainstay.runtime.capture.operators import Observations


@dataclass(frozen=True, slots=True)
class Crossings:
    """Values and the places that they cross.

    Attributes:
        operators: The operators in order; there is a place behind each.
        first: Per value, the first place it crosses; -1 for inputs of the model.
        last: Per value, the last one; that behind the last operator for outputs.
        movable: Values that need not cross: they can be made before the first operator.
    """

    operators: Sequence[fx.Node]
    first: dict[fx.Node, int]
    last: dict[fx.Node, int]
    movable: frozenset[fx.Node]

    def at(self, place: int) -> list[fx.Node]:
        """Values that cross `place` and are not movable, in order of making."""
        return [
            node
            for node, first in self.first.items()
            if first <= place <= self.last[node] and node not in self.movable
        ]

    def sweep(self) -> Iterator[list[fx.Node]]:
        """``at(place)`` for every place but the one behind the last operator."""
        crossing = self.at(-1)
        for place, node in enumerate(self.operators[:-1]):
            crossing = [value for value in crossing if self.last[value] >= place]
            if self.last[node] >= place and node not in self.movable:
                crossing.append(node)
            yield crossing


def find_crossings(
    captured: CapturedGraph, state_inputs: Collection[fx.Node], movable: frozenset[fx.Node]
) -> Crossings:
    """Find where every value of the graph is made and last used.

    Args:
        captured: The graph.
        state_inputs: Inputs through which gradients go on, to whatever made them. Other inputs
            are there for everyone, and are no values.
        movable: Operators that may run before the first stage.
    """
    operators = captured.operators
    position = {node: index for index, node in enumerate(operators)}
    first = {node: -1 for node in captured.placeholders if node in state_inputs}
    first |= position
    outputs = {leaf for leaf in captured.output if isinstance(leaf, fx.Node)}
    last = {
        node: len(operators) - 1
        if node in outputs
        else max((position[user] - 1 for user in node.users if user in position), default=-2)
        for node in first
    }
    return Crossings(operators, first, last, movable)


def forbidden_places(crossings: Crossings, seen: Observations) -> set[int]:
    """Places where a cut would break something.

    * Between an operator that gives no single tensor and those who take what it gives: a state
      has tensors.
    * Between the making of a tensor and its last change in place: the change would spoil the
      state in front of it.
    * Between a mere reader of an input and a later change of it: run again, the reader would
      see the change. (What a stage changes itself is put back before it runs again.)
    """
    forbidden: set[int] = set()
    for node in crossings.operators:
        if seen[node].tensor is None and node not in crossings.movable:
            forbidden.update(range(crossings.first[node], crossings.last[node] + 1))
    begun: dict[int, int] = {}
    for index, node in enumerate(crossings.operators):
        for storage in seen[node].written:
            forbidden.update(range(begun.get(storage, index), index))
        for storage in seen[node].storages:
            begun.setdefault(storage, index)
        for argument in node.all_input_nodes:
            if argument.op == "placeholder":
                for storage in set(seen[argument].storages) - seen[node].written:
                    begun.setdefault(storage, index)
    return forbidden
