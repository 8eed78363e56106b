"""Binomial checkpointing on a chain that is not homogeneous, as if it were.

Stands for [GW00] (Griewank and Walther, *Algorithm 799: revolve*, 2000), as the tools of
algorithmic differentiation apply it to networks and [BEHJS24], Section 6 compares it: keep
plain activations only, in slots as large as the largest; run every stage once more right
before its backward. Ignores that sizes and times differ, and that a stage may keep its
saved data. (`chainstay.dp.revolve` is exact where this is right; it was written apart.)
"""

from __future__ import annotations

from itertools import count
from math import comb

from chainstay.baselines.schedule_pieces import advance, turn
from chainstay.profiles import ChainProfile
from chainstay.schedule import Op, Schedule


def revolve(stages: int, slots: int) -> Schedule:
    """Return binomial checkpointing with `slots` checkpoints, the network's input among them.

    Example:
        >>> str(revolve(4, 2))
        'Fc0 Fn1 Fc2 Fa3 B3 Fa2 B2 Fc0 Fa1 B1 Fa0 B0'
    """
    ops: list[Op] = []
    pending = [(0, stages, slots)]
    while pending:
        start, stop, free = pending.pop()
        if stop - start == 1:
            ops += turn(start)
            continue
        checkpoint = start + _stride(stop - start, free)
        ops += advance(start, checkpoint)
        pending += [(start, checkpoint, free), (checkpoint, stop, free - 1)]
    return Schedule(tuple(ops))


def equal_slots(profile: ChainProfile, budget: int) -> int:
    """Return how many slots of the largest activation fit beside the largest stage; at least one.

    With the true number of at least one, the schedule of `revolve` fits in the budget.
    """
    activation, gradient = profile.arrays().activation, profile.arrays().gradient
    largest = max(int(activation.max()), 1)
    stages = profile.stages
    forward = (max(s.output_bytes, s.saved_bytes) + s.forward_overhead_bytes for s in stages)
    backward = (s.saved_bytes + s.backward_overhead_bytes for s in stages)
    working = max(max(forward) + int(gradient.max()), max(backward) + 2 * int(gradient.max()))
    return min(len(profile), max(1, (budget - profile.input_bytes - working) // largest))


def _stride(stages: int, slots: int) -> int:
    """Return how far to run before the next checkpoint: the longest optimal stride of [GW00]."""
    repeats = next(r for r in count(1) if comb(slots + r, r) >= stages)
    return min(comb(slots + repeats - 1, slots), stages - comb(slots + repeats - 2, slots - 1))
