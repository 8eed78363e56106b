"""Values that need no gradient and are used by many stages: made once, kept by reference.

Masks, position numbers and rotary angles depend on nothing but the model's inputs. What a
value may be made from, if it is made before the first stage, is decided here: no gradient,
no random numbers, nothing that the forward changes in place elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import fx

from chainstay.runtime.capture.graph import CapturedGraph
from chainstay.runtime.capture.operators import Observations


def movable_nodes(captured: CapturedGraph, seen: Observations) -> frozenset[fx.Node]:
    """Operators that may run before the first stage instead of at their place."""
    operators = captured.operators
    position = {node: index for index, node in enumerate(operators)}
    writers = _writers(operators, seen)
    movable = {node for node in operators if _is_pure(node, seen)}
    size = -1
    while size != len(movable):
        size = len(movable)
        movable -= {
            node
            for node in operators
            if any(each in position and each not in movable for each in node.all_input_nodes)
        }
        movable -= _entangled(operators, movable, writers, seen)
    return frozenset(movable)


def with_makers(
    wanted: Iterable[fx.Node], movable: frozenset[fx.Node], seen: Observations
) -> set[fx.Node]:
    """`wanted` movable nodes and all that make their values, changes in place included."""
    writers = _writers(movable, seen)
    made: set[fx.Node] = set()
    pending = list(wanted)
    while pending:
        node = pending.pop()
        if node in made:
            continue
        made.add(node)
        pending += [each for each in node.all_input_nodes if each in movable]
        pending += [each for storage in seen[node].storages for each in writers.get(storage, ())]
    return made


def _is_pure(node: fx.Node, seen: Observations) -> bool:
    """True if a node needs no gradient, draws nothing, and changes only what the forward made."""
    return (
        not seen[node].requires_grad
        and bool(seen[node].storages or seen[node].is_number)
        and not seen[node].draws_random
        and not seen[node].written & seen.external
    )


def _writers(nodes: Iterable[fx.Node], seen: Observations) -> Mapping[int, list[fx.Node]]:
    """Return the nodes that change each storage in place."""
    writers: dict[int, list[fx.Node]] = {}
    for node in nodes:
        for storage in seen[node].written:
            writers.setdefault(storage, []).append(node)
    return writers


def _entangled(
    operators: list[fx.Node],
    movable: set[fx.Node],
    writers: Mapping[int, list[fx.Node]],
    seen: Observations,
) -> set[fx.Node]:
    """Movable nodes that touch a storage which is changed by, or while in use by, others."""
    fixed: set[int] = set()
    last_write = {storage: nodes[-1] for storage, nodes in writers.items()}
    unfinished = set(writers)
    for node in operators:
        touched = _touched(node, seen) & writers.keys()
        if node not in movable:
            fixed |= touched & unfinished
        unfinished -= {storage for storage in touched if last_write[storage] is node}
    return {node for node in movable if _touched(node, seen) & fixed}


def _touched(node: fx.Node, seen: Observations) -> set[int]:
    """Storages of its value and of its arguments."""
    nodes = [node, *(each for each in node.all_input_nodes if each.op != "get_attr")]
    return {storage for each in nodes for storage in seen[each].storages} | seen[node].written
