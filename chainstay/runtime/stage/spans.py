"""Spans of stages that are worth keeping as one, by options that make a part of them again.

An option of one stage keeps the state behind that stage. One of a *span* need not: it may start
again from what is in front of the span, or from a smaller state inside of it. Spans worth it are

- those between small states: as the blocks of a network are, whether the model says so or not;
- those over idle cuts, whose state is gone once the stage behind has run (see `idle_cuts`);
- those over what is cheap to run again: what an activation function gives is saved, but a stage
  that multiplies no matrices takes little time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final, TypeAlias

from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.idle_cuts import cuts_of
from chainstay.runtime.stage.states import State

_STRETCHES: Final = (1, 2)
"""How many stretches between small states are kept as one."""
_LONGEST: Final = 16
"""The most stages of a span: of idle bytes between more, a sixteenth is left."""
_SHORT: Final = 4
"""Stages of a span over cuts beside cheap stages, or twice as many; others gain next to nothing."""

Span: TypeAlias = tuple[int, int]
"""The first and last of stages that are kept as one."""


def spans_worth_keeping(
    stages: Sequence[ChainStage],
    source: State,
    shared: Sequence[Any],
    blocks: Sequence[Span],
    least: int,
) -> tuple[Span, ...]:
    """Return the spans that are worth keeping as one besides the model's `blocks`.

    They are between small states; over cuts with at least so many idle bytes; and where no short
    span is, over cuts of at least so many bytes beside a cheap stage. The chain is run once.
    """
    cuts = list(cuts_of(stages, source, shared))
    least = max(least, 1)
    between = spans_between([cut.bytes for cut in cuts])
    spans = [span for span in between if not any(_crosses(span, b) for b in blocks)]
    spans += spans_over([cut.idle_bytes >= least for cut in cuts], 2, _LONGEST)
    short = (span for span in (*blocks, *spans) if span[1] - span[0] < 2 * _SHORT)
    inside = {stage for first, last in short for stage in range(first, last + 1)}
    is_cheap = [
        cut.is_beside_cheap and cut.bytes >= least and not inside & {cut.index - 1, cut.index}
        for cut in cuts
    ]
    spans += spans_over(is_cheap, _SHORT, 2 * _SHORT)
    return tuple(span for span in dict.fromkeys(spans) if span not in blocks)


def spans_between(sizes: Sequence[int]) -> list[Span]:
    """Return spans from one small state to the next, and over two such stretches.

    A state is small if those beside it are larger; of several that are equal, the last counts. The
    ends of the chain count as small states if there is one between them.

    Args:
        sizes: The bytes of the input of every stage. Those of the first do not count.

    Example:
        >>> spans_between([0, 4, 1, 3, 3, 2, 5])
        [(0, 1), (2, 4), (5, 6), (0, 4), (2, 6)]
    """
    runs = [(size, list(run)) for size, run in groupby(range(1, len(sizes)), key=sizes.__getitem__)]
    levels = [math.inf, *(size for size, _ in runs), math.inf]
    small = [
        run[-1]
        for (size, run), before, after in zip(runs, levels, levels[2:], strict=False)
        if before > size < after and len(runs) > 1
    ]
    borders = [0, *small, len(sizes)] if small else []
    return [
        (first, behind - 1)
        for count in _STRETCHES
        for first, behind in zip(borders, borders[count:], strict=False)
        if 1 < behind - first <= _LONGEST
    ]


def spans_over(is_joined: Sequence[bool], shortest: int, longest: int) -> list[Span]:
    """Return spans of `shortest` stages, of twice as many, and so on, over cuts that are joined.

    Whether the cut in front of a stage is, says `is_joined`. At the end of a stretch, spans are
    shorter.

    Example:
        >>> spans_over([False, True, True, True, False, True], 2, 16)
        [(0, 1), (0, 3), (2, 3), (4, 5)]
    """
    spans: set[Span] = set()
    first = 0
    for behind in range(1, len(is_joined) + 1):
        if behind < len(is_joined) and is_joined[behind]:
            continue
        length = shortest
        while length == shortest or (length <= longest and length < 2 * (behind - first)):
            starts = range(first, behind - 1, length)
            spans.update((start, min(start + length, behind) - 1) for start in starts)
            length *= 2
        first = behind
    return sorted(spans)


def _crosses(span: Span, block: Span) -> bool:
    """Return whether a span has a part of a block, but not all of it."""
    first, last = block
    contains = span[0] <= first and last <= span[1]
    return not contains and span[0] <= last and first <= span[1]
