"""Single choices of what a stage keeps, by minimum cuts: the corners of the front's convex hull.

For weights of a byte and of a nanosecond, the choice with the least weighted sum is a minimum cut.
Every operator has two vertices, which are on the source's side if it is *replayed*, and if its
result is *wanted*:

=======================  ==========================================================
from, to, capacity       is cut, and paid, where
=======================  ==========================================================
source, wanted, inf      autograd saves the result, and it is not wanted: never
wanted, replayed, bytes  the result is wanted and not replayed, so it is kept
replayed, wanted, inf    a replay reads what is not wanted: never
replayed, sink, time     it is replayed
source, replayed, bytes  it is not replayed, so what it saves besides its result is
                         kept, or drawn again
=======================  ==========================================================

Choices inside of the hull are not found, and a cut takes as long whatever the graph's width: this
is for stages of which `front.pareto_front` would have to look at too many states.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import networkx as nx

from chainstay.profiles.operators import Operator
from chainstay.runtime.options.selection import Selection


def fewest_bytes(operators: Sequence[Operator]) -> Selection | None:
    """Return the choice that keeps the fewest bytes, the fastest of these; ``None`` without any.

    Example:
        >>> stage = (
        ...     Operator(time=90, result_bytes=8, is_saved=True),
        ...     Operator(time=2, inputs=(0,), result_bytes=8, is_saved=True),
        ... )
        >>> fewest_bytes(stage).replay_time
        92
    """
    return _best(operators, 1 + sum(operator.time for operator in operators), 1)


def convex_front(operators: Sequence[Operator], most: int) -> list[Selection]:
    """Return at most `most` choices on the hull of the front, from the most bytes to the fewest.

    Each further one is looked for where the hull so far leaves the largest area.
    """
    sizes = sum(o.result_bytes + o.extra_bytes + o.state_bytes for o in operators)
    found = [_best(operators, 1, 1 + sizes), fewest_bytes(operators)]
    front = [choice for choice in found if choice is not None]
    if len({choice.kept_bytes for choice in front}) < len(front):
        front = front[:1]  # the fastest keeps the fewest bytes
    sides = [_side(*ends) for ends in pairwise(front)]
    while sides and len(front) < most:
        _, large, small = max(sides, key=lambda side: side[0])
        sides.remove(_side(large, small))
        choice = _best(
            operators,
            small.replay_time - large.replay_time,
            large.kept_bytes - small.kept_bytes,
        )
        assert choice is not None, "there are two"
        if large.kept_bytes > choice.kept_bytes > small.kept_bytes:
            front.append(choice)
            sides += [_side(large, choice), _side(choice, small)]
    return sorted(front, key=lambda choice: -choice.kept_bytes)


def _side(large: Selection, small: Selection) -> tuple[int, Selection, Selection]:
    """Return the area under a side of the hull, and its ends."""
    size = large.kept_bytes - small.kept_bytes
    return size * (small.replay_time - large.replay_time), large, small


def _best(operators: Sequence[Operator], byte: int, nanosecond: int) -> Selection | None:
    """Return the choice with the least sum of weighted bytes and time, ``None`` without any."""
    graph = nx.DiGraph()  # an edge without a capacity has an infinite one
    graph.add_nodes_from(("source", "sink"))
    for index, operator in enumerate(operators):
        replayed, wanted = ("replayed", index), ("wanted", index)
        if operator.is_saved:
            graph.add_edge("source", wanted)
        kept = {"capacity": byte * operator.result_bytes} if operator.is_keepable else {}
        graph.add_edge(wanted, replayed, **kept)
        again = byte * operator.state_bytes + nanosecond * operator.time
        is_redrawn = _redraws(operator, byte, nanosecond)
        beside = again if is_redrawn else byte * operator.extra_bytes
        graph.add_edge("source", replayed, capacity=beside)
        graph.add_edge(replayed, "sink", **({"capacity": again} if operator.is_replayable else {}))
        for source in operator.inputs:
            graph.add_edge(replayed, ("wanted", source))
    try:
        _, (ours, _) = nx.minimum_cut(graph, "source", "sink")
    except nx.NetworkXUnbounded:  # something can neither be kept nor made again
        return None
    chosen = frozenset(i for i in range(len(operators)) if ("replayed", i) in ours)
    return _selection(operators, chosen, byte, nanosecond)


def _redraws(operator: Operator, byte: int, nanosecond: int) -> bool:
    """Whether to draw again what the operator saves besides its result, if it is not replayed."""
    saved = byte * (operator.extra_bytes - operator.state_bytes)
    return operator.is_redrawable and saved > nanosecond * operator.time


def _selection(
    operators: Sequence[Operator], replayed: frozenset[int], byte: int, nanosecond: int
) -> Selection:
    """Return the choice that replays these operators."""
    read = {source for index in replayed for source in operators[index].inputs}
    size = time = 0
    redrawn = set[int]()
    for index, operator in enumerate(operators):
        is_redrawn = index not in replayed and _redraws(operator, byte, nanosecond)
        if is_redrawn:
            redrawn.add(index)
        if index in replayed or is_redrawn:
            size += operator.state_bytes
            time += operator.time
        if index not in replayed:
            size += operator.result_bytes * (operator.is_saved or index in read)
            size += operator.extra_bytes * (not is_redrawn)
    return Selection(
        kept_bytes=size, replay_time=time, replayed=replayed, redrawn=frozenset(redrawn)
    )
