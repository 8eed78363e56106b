"""The order in which autograd runs backwards, changed to that of a plan.

Of all nodes that are ready, autograd runs the one with the highest number first, and numbers
nodes as they are made: what ran last comes back first. The nodes of independent branches may
change places without changing a number, if no gradient is summed in another order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

import torch
from torch.autograd.graph import Node

from chainstay.runtime.stage.states import State


def can_change_order() -> bool:
    """Whether this version of torch has what it takes."""
    node = torch.zeros(1, requires_grad=True).neg().grad_fn
    return hasattr(node, "_set_sequence_nr") and hasattr(torch._C._autograd, "_get_sequence_nr")  # noqa: SLF001  # no public way


def now() -> int:
    """The number of the next node that this thread makes."""
    number: int = torch._C._autograd._get_sequence_nr()  # noqa: SLF001  # no public way
    return number


def reorder(outputs: State, ranges: Sequence[range]) -> None:
    """Number the nodes below `outputs` anew, so that `ranges` run backward in that order.

    A range has the numbers of the nodes that were made in one run of a stage.
    """
    spans = sorted(ranges, key=lambda run: run.start)
    low, high = spans[0].start, spans[-1].stop
    shift: dict[int, int] = {}
    following = low
    for run in reversed(ranges):
        shift[run.start] = following - run.start
        following += len(run)
    starts = [run.start for run in spans]
    for node in _nodes_below(outputs, low):
        number: int = node._sequence_nr()  # noqa: SLF001  # no public way
        if low <= number < high:
            span = spans[bisect_right(starts, number) - 1]
            if number < span.stop:
                node._set_sequence_nr(number + shift[span.start])  # type: ignore[attr-defined]  # noqa: SLF001


def _nodes_below(outputs: State, low: int) -> Iterator[Node]:
    """Nodes of this graph that are not older than number `low`, each once."""
    pending = [tensor.grad_fn for tensor in outputs]
    seen: set[Node] = set()
    while pending:
        node = pending.pop()
        if node is None or node in seen or node._sequence_nr() < low:  # noqa: SLF001  # no public way
            continue
        seen.add(node)
        pending += [below for below, _ in node.next_functions]
        yield node
