"""The order in which autograd runs backwards, changed to that of a plan.

Of all nodes that are ready, autograd runs the one with the highest number first, and numbers
nodes as they are made: what ran last comes back first. The nodes of independent branches may
change places without changing a number, if no gradient is summed in another order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import torch

from chainstay.runtime.stage.states import State, nodes_below


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
    for node in nodes_below(outputs, low):
        number: int = node._sequence_nr()  # noqa: SLF001  # no public way
        if low <= number < high:
            span = spans[bisect_right(starts, number) - 1]
            if number < span.stop:
                node._set_sequence_nr(number + shift[span.start])  # noqa: SLF001  # no public way
