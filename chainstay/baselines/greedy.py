"""Greedy by ratio: keep what costs the most time per byte, until memory is full.

Stands for the rule that planners without an optimiser follow (and for the first version of
most in-house ones): rank stages by forward time per saved byte, keep from the top. Ignores
that a dropped stage gets dearer the farther away the nearest kept one is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from fractions import Fraction
from itertools import groupby

from chainstay.baselines.schedule_pieces import kept, nest, one_by_one
from chainstay.profiles import ChainProfile, Stage
from chainstay.schedule import Schedule


def greedy_by_ratio(profile: ChainProfile) -> Iterator[Schedule]:
    """Yield schedules that keep the best 0, 1, … n-1 stages by forward time per saved byte.

    All of them keep the loss.
    """
    ranked = sorted(range(len(profile) - 1), key=lambda stage: _ratio(profile.stages[stage]))
    for kept_stages in range(len(profile)):
        yield keep_stages(len(profile), ranked[len(ranked) - kept_stages :])


def keep_stages(stages: int, chosen: Collection[int]) -> Schedule:
    """Keep all of the `chosen` stages and of the last; run the others again one by one.

    Example:
        >>> str(keep_stages(4, {0}))
        'Fa0 Fc1 Fn2 Fa3 B3 Fc1 Fa2 B2 Fa1 B1 B0'
    """
    chosen = {*chosen, stages - 1}
    pieces = []
    for is_kept, run in groupby(range(stages), key=chosen.__contains__):
        start, *rest = run
        pieces.append((kept if is_kept else one_by_one)(start, start + 1 + len(rest)))
    return nest(pieces)


def _ratio(stage: Stage) -> tuple[bool, Fraction]:
    """Return the forward time per byte; stages that save nothing stand above all others."""
    ratio = Fraction(stage.forward_time, max(1, stage.saved_bytes))
    return stage.saved_bytes == 0, ratio
