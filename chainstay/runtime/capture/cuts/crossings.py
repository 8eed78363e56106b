"""Values that cross each place at which a graph's operators could be cut in two.

Place p lies behind operator p. A value crosses it if it exists there and is used behind it;
as values are used from their making to their last use, each crosses a contiguous range.

Masks, position numbers and rotary angles need no gradient, depend on nothing but the model's
inputs, and are used by many stages: they are made once, kept by reference, and cross nothing.
What a value may be made from, if it is made before the first stage, is decided here: no
gradient, no random numbers, nothing that the forward changes in place elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from chainstay.runtime.capture.operators import ObservedGraph


@dataclass(frozen=True, slots=True)
class Crossings:
    """Values and the places that they cross.

    Attributes:
        operators: The operators in order; there is a place behind each.
        first: Per value, the first place it crosses; -1 for inputs of the model.
        last: Per value, the last one; that behind the last operator for outputs.
        movable: Values that need not cross: they can be made before the first operator.
        observed: The graph that they are in.
    """

    operators: Sequence[fx.Node]
    first: dict[fx.Node, int]
    last: dict[fx.Node, int]
    movable: frozenset[fx.Node]
    observed: ObservedGraph

    def at(self, place: int) -> list[fx.Node]:
        """Return the values that cross `place` and are not movable, in order of making."""
        return [
            node
            for node, first in self.first.items()
            if first <= place <= self.last[node] and node not in self.movable
        ]

    def sweep(self) -> Iterator[list[fx.Node]]:
        """Yield ``at(place)`` for every place but the one behind the last operator."""
        crossing = self.at(-1)
        for place, node in enumerate(self.operators[:-1]):
            crossing = [value for value in crossing if self.last[value] >= place]
            if self.last[node] >= place and node not in self.movable:
                crossing.append(node)
            yield crossing


def find_crossings(observed: ObservedGraph) -> Crossings:
    """Find where every value of a graph is made and last used.

    Inputs through which no gradients go on are there for everyone, and are no values.
    """
    captured = observed.captured
    given = [node for node in captured.placeholders if node in observed.state_inputs]
    return crossings_among(observed, captured.operators, given, movable_nodes(observed))


def crossings_among(
    observed: ObservedGraph,
    operators: Sequence[fx.Node],
    given: Iterable[fx.Node],
    movable: frozenset[fx.Node],
) -> Crossings:
    """Find what crosses the places between some of a graph's operators.

    What is `given` crosses the place in front of the first, what others need that behind the last.
    """
    position = {node: index for index, node in enumerate(operators)}
    outputs = {leaf for leaf in observed.captured.output if isinstance(leaf, fx.Node)}

    def last_place(node: fx.Node) -> int:
        users = [user for user in node.users if user.op != "output"]
        is_needed = node in position and any(user not in position for user in users)
        if node in outputs or is_needed:
            return len(operators) - 1
        return max((position[user] - 1 for user in users if user in position), default=-2)

    first = dict.fromkeys(given, -1) | position
    last = {node: last_place(node) for node in first}
    return Crossings(operators, first, last, movable, observed)


def forbidden_places(crossings: Crossings, *, with_counters: bool = False) -> set[int]:
    """Return the places where a cut would break something.

    * Between an operator that gives no single tensor and those who take what it gives: a state
      has tensors.
    * Between the making of a tensor and its last change in place: the change would spoil the
      state in front of it.
    * Between a mere reader of an input and a later change of it: run again, the reader would
      see the change. (What a stage changes itself is put back before it runs again.)

    Args:
        crossings: The places of a graph.
        with_counters: Whether to return places between two changes of a counter that nobody reads,
            such as BatchNorm's number of batches, too: a network that runs twice is then one stage.
    """
    observed, forbidden = crossings.observed, set[int]()
    for node in crossings.operators:
        if observed[node].tensor is None and node not in crossings.movable:
            forbidden.update(range(crossings.first[node], crossings.last[node] + 1))
    begun: dict[int, int] = {}
    for index, node in enumerate(crossings.operators):
        for storage in observed[node].written:
            forbidden.update(range(begun.get(storage, index), index))
        if with_counters or crossings.last[node] >= index:
            for storage in observed[node].storages:
                begun.setdefault(storage, index)
        for argument in node.all_input_nodes:
            if argument.op == "placeholder":
                for storage in set(observed[argument].storages) - observed[node].written:
                    begun.setdefault(storage, index)
    return forbidden


def movable_nodes(observed: ObservedGraph) -> frozenset[fx.Node]:
    """Return the operators that may run before the first stage instead of at their place."""
    operators = observed.captured.operators
    position = {node: index for index, node in enumerate(operators)}
    writers = _writers(operators, observed)
    movable = {node for node in operators if _is_pure(node, observed)}
    size = -1
    while size != len(movable):
        size = len(movable)
        movable -= {
            node
            for node in operators
            if any(
                argument in position and argument not in movable
                for argument in node.all_input_nodes
            )
        }
        movable -= _entangled(operators, movable, writers, observed)
    return frozenset(movable)


def with_makers(
    wanted: Iterable[fx.Node], movable: frozenset[fx.Node], observed: ObservedGraph
) -> set[fx.Node]:
    """Return `wanted` movable nodes and all that make their values, changes in place included."""
    writers = _writers(movable, observed)
    made: set[fx.Node] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node in made:
            continue
        made.add(node)
        pending += [argument for argument in node.all_input_nodes if argument in movable]
        pending += [
            writer for storage in observed[node].storages for writer in writers.get(storage, ())
        ]
    return made


def _is_pure(node: fx.Node, observed: ObservedGraph) -> bool:
    """True if a node needs no gradient, draws nothing, and changes only what the forward made."""
    return (
        not observed[node].requires_grad
        and not observed[node].draws_random
        and not observed[node].written & observed.external
    )


def _writers(nodes: Iterable[fx.Node], observed: ObservedGraph) -> Mapping[int, list[fx.Node]]:
    writers: dict[int, list[fx.Node]] = {}
    for node in nodes:
        for storage in observed[node].written:
            writers.setdefault(storage, []).append(node)
    return writers


def _entangled(
    operators: list[fx.Node],
    movable: set[fx.Node],
    writers: Mapping[int, list[fx.Node]],
    observed: ObservedGraph,
) -> set[fx.Node]:
    """Return movable nodes that touch a storage which is changed by, or while in use by, others."""
    fixed: set[int] = set()
    last_write = {storage: nodes[-1] for storage, nodes in writers.items()}
    unfinished = set(writers)
    for node in operators:
        touched = observed.touched(node) & writers.keys()
        if node not in movable:
            fixed |= touched & unfinished
        unfinished -= {storage for storage in touched if last_write[storage] is node}
    return {node for node in movable if observed.touched(node) & fixed}
