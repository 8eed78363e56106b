"""The two extremes: keep everything, or keep nothing but the network's input."""

from __future__ import annotations

from chainstay.baselines.schedule_pieces import kept, nest, one_by_one
from chainstay.schedule import Schedule


def keep_all(stages: int) -> Schedule:
    """Return the schedule of plain training, which keeps everything. Ignores memory."""
    return Schedule.keep_all(stages)


def drop_all(stages: int) -> Schedule:
    """Return the schedule whose every backward restarts from the network's input. Ignores time.

    Example:
        >>> str(drop_all(3))
        'Fc0 Fn1 Fa2 B2 Fc0 Fa1 B1 Fa0 B0'
    """
    return nest([one_by_one(0, stages - 1), kept(stages - 1, stages)])
