"""Knapsack by block: every stage keeps its input, the best ones keep all.

Stands for planners that decide per block, once and for all: torch's
``activation_memory_budget`` (``dp_knapsack`` in its min-cut partitioner) and tools that pick
blocks to checkpoint by a 0/1 knapsack of saved bytes against recompute time. Ignores when
memory is needed: one bound on the sum of what is saved stands for the peak, and no stage may
be recomputed from farther away than its own input.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from chainstay.baselines.schedule_pieces import kept, nest, recomputed
from chainstay.profiles import ChainProfile
from chainstay.schedule import Schedule

_SLOTS: Final = 1000
_SHARES: Final = 20


def knapsack_by_block(profile: ChainProfile, capacity: int) -> Schedule:
    """Keep all of the stages that save the most time within `capacity` extra bytes.

    Args:
        profile: The chain.
        capacity: Bytes of saved data beyond the inputs, which all stay. Sizes round up to
            1/1000 of it, so that (unlike torch's) the choice never overspends.
    """
    last = len(profile) - 1
    unit = max(1, capacity // _SLOTS)
    slots = [-(-size // unit) for size in _beyond_outputs(profile)[:last]]
    times = [stage.forward_time for stage in profile.stages[:last]]
    chosen = {*_knapsack(times, slots, capacity // unit), last}
    pieces = ((kept if i in chosen else recomputed)(i, i + 1) for i in range(len(profile)))
    return nest(pieces)


def knapsack_by_every_share(profile: ChainProfile) -> list[Schedule]:
    """Return the knapsack schedules at 0 %, 5 %, … 100 % of all bytes, like torch's option."""
    total = sum(_beyond_outputs(profile))
    capacities = (total * share // _SHARES for share in range(_SHARES + 1))
    return list(dict.fromkeys(knapsack_by_block(profile, capacity) for capacity in capacities))


def _beyond_outputs(profile: ChainProfile) -> list[int]:
    """Return the bytes that each stage saves besides its output, which is stored in any case."""
    arrays = profile.arrays()
    beyond: list[int] = np.maximum(0, arrays.saved - np.diagonal(arrays.fresh, 1)).tolist()
    return beyond


def _knapsack(values: list[int], weights: list[int], capacity: int) -> list[int]:
    """Return the indices of the items with the most value within `capacity`."""
    best = np.zeros(capacity + 1, dtype=np.int64)
    is_taken = np.zeros((len(values), capacity + 1), dtype=bool)
    for item, (value, weight) in enumerate(zip(values, weights, strict=True)):
        if weight > capacity:
            continue
        with_item = best[: capacity + 1 - weight] + value
        is_taken[item, weight:] = with_item >= best[weight:]
        best[weight:] = np.maximum(best[weight:], with_item)
    chosen = []
    for item in reversed(range(len(values))):
        if is_taken[item, capacity]:
            chosen.append(item)
            capacity -= weights[item]
    return chosen
