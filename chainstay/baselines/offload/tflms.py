"""TFLMS-like: move the first activations, bring each back a fixed number of steps ahead.

After TensorFlow Large Model Support ([LNIK18]). No computation ever waits for memory there:
one that would have to has run out of memory, and so has a prefetch. Computations wait for
what they read only; transfers for the link, in the order in which they were asked for.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import accumulate
from typing import Final, NamedTuple

from chainstay.problems.ordered_no_wait import OrderedNoWait
from chainstay.schedule import Item
from chainstay.timetable import TimedSchedule, exact, sorted_by_start

_FINE: Final = 24
"""Up to so many counts and steps ahead all are tried; beyond, in steps that grow by a half."""


class _Event(NamedTuple):
    """Memory taken (or, negative, freed) at a time.

    At one time what an offload frees comes first, then starts and ends of computations in
    their order (twice their number, and one more), then prefetches.
    """

    time: int
    rank: int
    size: int


def tflms(ordered: OrderedNoWait) -> TimedSchedule | None:
    """Return the best plan of all settings that does not run out of memory."""
    counts, lookaheads = _spread(len(ordered.movable)), _spread(len(ordered.sizes))[1:]
    plans = (_tflms_plan(ordered, count, ahead) for count in counts for ahead in lookaheads)
    return min(filter(None, plans), key=lambda plan: plan.makespan, default=None)


def _tflms_plan(ordered: OrderedNoWait, count: int, ahead: int) -> TimedSchedule | None:
    """Move the first `count` activations, each back `ahead` computations before its backward.

    Returns:
        The plan, or ``None`` if it runs out of memory.
    """
    chosen, stages = ordered.movable[:count], len(ordered.sizes)
    if ordered.exceeds_host(chosen):
        return None
    clock = [0, *accumulate(ordered.times[0])]
    offloads: dict[int, int] = {}
    free = 0
    for j in chosen:
        offloads[j] = max(free, clock[j])
        free = offloads[j] + ordered.moving[j]
    back_free = 0 if ordered.problem.link.is_full_duplex else free
    starts, prefetches, waiting = clock[:stages], dict[int, int](), sorted(chosen, reverse=True)
    now = clock[-1]
    for i in reversed(range(stages)):
        while waiting and waiting[0] >= i - ahead:
            j = waiting.pop(0)
            away = max(clock[j + 1], offloads[j] + ordered.moving[j])
            prefetches[j] = max(now, back_free, away)
            back_free = prefetches[j] + ordered.moving[j]
        if i in prefetches:
            now = max(now, prefetches[i] + ordered.moving[i])
        starts.append(now)
        now += ordered.times[1][i]
    if not _fits(ordered, starts, offloads, prefetches):
        return None
    transfers = {Item("a", j).offload: t for j, t in offloads.items()}
    transfers |= {Item("a", j).prefetch: t for j, t in prefetches.items()}
    makespan = exact(Fraction(now, ordered.problem.link.ticks))
    return TimedSchedule(makespan, sorted_by_start(starts, transfers))


def _fits(
    ordered: OrderedNoWait, starts: list[int], offloads: dict[int, int], prefetches: dict[int, int]
) -> bool:
    """Return whether memory suffices at every computation and every prefetch."""
    profile, stages = ordered.problem.profile, len(ordered.sizes)
    x, y, events, last = profile.activations, profile.gradients, [], 2 * stages - 1
    for j, start in offloads.items():
        used, left = starts[j] + ordered.times[0][j], start + ordered.moving[j]
        rank = 2 * j + 1 if used >= left else -1
        events.append(_Event(max(used, left), rank, -x[j]))
        events.append(_Event(prefetches[j], 2 * len(starts), x[j]))
    for i in range(stages):
        start, overhead = starts[i], profile.forward_overheads[i]
        events.append(_Event(start, 2 * i, x[i + 1] + overhead))
        events.append(_Event(start + ordered.times[0][i], 2 * i + 1, -overhead))
        start, overhead = starts[last - i], profile.backward_overheads[i]
        taken = y[i] + overhead + y[i + 1] * (i == stages - 1)
        events.append(_Event(start, 2 * (last - i), taken))
        freed = -overhead - x[i + 1] - y[i + 1]
        events.append(_Event(start + ordered.times[1][i], 2 * (last - i) + 1, freed))
    memory = x[0]
    for event in sorted(events):
        memory += event.size
        if memory > ordered.problem.budget:
            return False
    return True


def _spread(most: int) -> list[int]:
    """Return numbers from 0 to `most`: all of the small ones, and ever fewer of the large."""
    values, value = [], 0
    while value < most:
        values.append(value)
        value += max(1, value // 2 - _FINE // 2 + 1)
    return [*values, most]
