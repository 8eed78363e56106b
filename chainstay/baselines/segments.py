"""Nothing kept, or equal segments recomputed from their inputs: √L, ``checkpoint_sequential``.

Stands for [CXZG16] (Chen et al., *Training deep nets with sublinear memory cost*, 2016) and
for ``torch.utils.checkpoint.checkpoint_sequential``, which most people reach for. Ignores
all sizes and times: segments are equal in their number of stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import isqrt

from chainstay.baselines.schedule_pieces import kept, nest, one_by_one, recomputed
from chainstay.errors import UnknownMethodError
from chainstay.schedule import Schedule


def drop_all(stages: int) -> Schedule:
    """Return the schedule whose every backward restarts from the network's input. Ignores time.

    Example:
        >>> str(drop_all(3))
        'Fc0 Fn1 Fa2 B2 Fc0 Fa1 B1 Fa0 B0'
    """
    return nest([one_by_one(0, stages - 1), kept(stages - 1, stages)])


def checkpoint_sequential(stages: int, segments: int) -> Schedule:
    """Return what ``checkpoint_sequential(functions, segments, input)`` does, the loss appended.

    Cuts as torch 2.13 does: ``len(functions) // segments`` functions each; the last segment
    takes the rest and is kept, as is the loss.

    Args:
        stages: Stages of the whole chain, the loss included: one more than torch's functions.
        segments: Number of segments, from 1 to ``stages - 1``.

    Raises:
        UnknownMethodError: Fewer functions than segments, or no segment.

    Example:
        >>> str(checkpoint_sequential(5, 2))
        'Fc0 Fn1 Fa2 Fa3 Fa4 B4 B3 B2 Fa0 Fa1 B1 B0'
    """
    if not 1 <= segments <= max(1, stages - 1):
        raise UnknownMethodError(
            f"segments is {segments}, must be from 1 to {max(1, stages - 1)}: one per function "
            f"of this {stages}-stage chain, its loss apart"
        )
    size = (stages - 1) // segments
    starts = [index * size for index in range(segments)]
    again = (recomputed(start, stop) for start, stop in pairwise(starts))
    return nest([*again, kept(starts[-1], stages)])


def square_root(stages: int) -> Schedule:
    """Return the schedule of [CXZG16]: as many segments as the root of the number of functions."""
    return checkpoint_sequential(stages, max(1, isqrt(stages - 1)))


def every_segment_count(stages: int) -> Iterator[Schedule]:
    """Yield `checkpoint_sequential` with 1, 2, … segments: all that a user could try."""
    return (checkpoint_sequential(stages, count) for count in range(1, max(2, stages)))
