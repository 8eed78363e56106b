"""Schedules that people use instead of an optimal one, to be compared in the same simulator.

`BASELINES` maps a name to a function from a profile and a budget to candidate schedules:
all those that a user of that tool would try. `fastest_within` picks among them::

    candidates = BASELINES["revolve"](profile, budget)
    schedule = fastest_within(candidates, partial(simulate, profile), budget)

Every candidate is valid on its profile and persistent, so `DP` is never slower within the
same memory. None is promised to fit: `fastest_within` finds that out. Read `schedule_pieces`
first, then any of the others; `offload/` has the baselines that move activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from chainstay.baselines.greedy import greedy_by_ratio
from chainstay.baselines.knapsack import knapsack_by_block, knapsack_by_every_share
from chainstay.baselines.revolve import equal_slots, revolve
from chainstay.baselines.segments import (
    checkpoint_sequential,
    drop_all,
    every_segment_count,
    square_root,
)
from chainstay.baselines.selection import ScheduleCosts, fastest_within
from chainstay.baselines.single_pass import single_pass
from chainstay.profiles import ChainProfile
from chainstay.schedule import Schedule

__all__ = [
    "BASELINES",
    "Baseline",
    "ScheduleCosts",
    "checkpoint_sequential",
    "fastest_within",
    "knapsack_by_block",
    "revolve",
    "single_pass",
    "square_root",
]

Baseline = Callable[[ChainProfile, int], Iterable[Schedule]]
"""A function from a profile and a budget in bytes to candidate schedules, at least one."""

BASELINES: Final[Mapping[str, Baseline]] = MappingProxyType(
    {
        "keep-all": lambda profile, _: [Schedule.keep_all(len(profile))],
        "drop-all": lambda profile, _: [drop_all(len(profile))],
        "sqrt": lambda profile, _: [square_root(len(profile))],
        "checkpoint-sequential": lambda profile, _: every_segment_count(len(profile)),
        "revolve": lambda profile, budget: [revolve(len(profile), equal_slots(profile, budget))],
        "single-pass": lambda profile, budget: [single_pass(profile, budget)],
        "greedy": lambda profile, _: greedy_by_ratio(profile),
        "knapsack": lambda profile, _: knapsack_by_every_share(profile),
    }
)
