"""The optimum of a small offloading problem, by exhaustive search over all schedules.

A* over the states of the simulator (`simulate.OffloadMachine`): a state is what has been issued
and what is running, a step issues one more operation. Nothing is assumed about optimal
schedules but that offloading what B runs on next, or what has no bytes, is of no use.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import count
from typing import NamedTuple, TypeAlias

from chainstay.errors import InfeasibleBudgetError, InvalidScheduleError
from chainstay.profiles import Link, OffloadProfile
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.timetable import Time, computations, exact
from chainstay.validation.offload.simulate import OffloadMachine
from chainstay.validation.simulate import InvalidOperationError

_Key: TypeAlias = tuple[object, ...]


class Optimum(NamedTuple):
    """A fastest schedule and its makespan in ns."""

    schedule: Schedule
    makespan: Time


def proposition3_bound(profile: OffloadProfile, *, budget: int, link: Link) -> Time:
    """Return the bound of Proposition 3 of [BES20]: no schedule is faster, whatever moves.

    Every computation runs once, and what the peak has above the budget moves away and back:
    with one direction at a time, both on the same link.
    """
    excess = _peak(profile) - budget
    if excess <= 0:
        return profile.least_time
    moving = link.transfer_time(excess)
    return exact(max(Fraction(profile.least_time), moving if link.is_full_duplex else 2 * moving))


def _peak(profile: OffloadProfile) -> int:
    """Return the peak without transfers, by simulation: no cost is shared with the solvers."""
    machine = OffloadMachine(profile, budget=1 << 62, link=Link(bandwidth=1))
    for op in computations(len(profile)):
        machine.issue(op)
    return machine.peak


def offload_optimum(profile: OffloadProfile, *, budget: int, link: Link) -> Optimum:
    """Return a fastest schedule, by exhaustive search; for up to about six stages.

    Raises:
        InfeasibleBudgetError: No schedule fits in `budget` bytes.
        InvalidScheduleError: No schedule ends with so little room on the host.
    """
    if (required := _least_budget(profile, replace(link, capacity=None))) > budget:
        raise InfeasibleBudgetError(
            budget=budget, required=required, stages=len(profile), family="all"
        )
    order = count()
    start = OffloadMachine(profile, budget, link)
    open_states: list[tuple[int, int, OffloadMachine, tuple[Op, ...]]] = [
        (_bound(start), next(order), start, ())
    ]
    seen: dict[_Key, list[tuple[int, ...]]] = {}
    while open_states:
        bound, _, machine, ops = heapq.heappop(open_states)
        if machine.issued == 2 * len(profile):
            return Optimum(Schedule(ops), exact(Fraction(bound, link.ticks)))
        for op in _steps(machine):
            following = machine.copy()
            try:
                following.issue(op)
            except InvalidOperationError:
                continue
            if _is_new(seen, following):
                heapq.heappush(open_states, (_bound(following), next(order), following, (*ops, op)))
    raise InvalidScheduleError(
        "no schedule ends with so little host memory, although one does if the host has room"
    )


def _least_budget(profile: OffloadProfile, link: Link) -> int:
    """Return the least budget: that of a schedule that keeps each activation away while it can."""
    stages, ops = len(profile), []
    for i in range(stages):
        ops += [Op(OpKind.FORWARD_KEEP_ALL, i), Op(OpKind.OFFLOAD_ACTIVATION, i)]
    ops.pop()
    for i in reversed(range(stages)):
        if i < stages - 1:
            ops.append(Op(OpKind.PREFETCH_ACTIVATION, i))
        ops.append(Op(OpKind.BACKWARD, i))
    budgets = range(_peak(profile))
    return bisect_left(budgets, x=True, key=lambda budget: _ends_within(profile, budget, link, ops))


def _ends_within(profile: OffloadProfile, budget: int, link: Link, ops: list[Op]) -> bool:
    try:
        OffloadMachine(profile, budget, link).run(Schedule(tuple(ops)))
    except InvalidScheduleError:
        return False
    return True


def _bound(machine: OffloadMachine) -> int:
    """Return ticks that no continuation is faster than: the running computation and all others."""
    times = (*machine.profile.forward_times, *reversed(machine.profile.backward_times))
    return max(machine.now, machine.ends) + machine.link.ticks * sum(times[machine.issued :])


def _steps(machine: OffloadMachine) -> Iterator[Op]:
    stages = len(machine.profile)
    yield computations(stages)[machine.issued]
    for j in range(stages - 1):
        if not machine.profile.activations[j]:
            continue
        if j in machine.offloads:
            if j not in machine.prefetches:
                yield Op(OpKind.PREFETCH_ACTIVATION, j)
        elif j <= machine.issued < 2 * stages - 1 - j:
            yield Op(OpKind.OFFLOAD_ACTIVATION, j)


def _is_new(seen: dict[_Key, list[tuple[int, ...]]], machine: OffloadMachine) -> bool:
    """Record a state; return False if a known one is as far with everything at least as early."""
    pending = sorted(machine.events, key=lambda event: (event[1], event[2].stage))
    key: _Key = (
        machine.issued,
        frozenset(machine.offloads),
        frozenset(machine.prefetches),
        machine.queue,
        tuple(op for *_, op in pending),
    )
    return is_new(seen, key, (machine.now, *(time for time, *_ in pending)))


def is_new(seen: dict[_Key, list[tuple[int, ...]]], key: _Key, times: tuple[int, ...]) -> bool:
    """Record `times` under `key`; return False if a known entry has all times at least as early."""
    better = seen.setdefault(key, [])
    if any(all(a <= b for a, b in zip(known, times, strict=True)) for known in better):
        return False
    better[:] = [
        known for known in better if not all(b <= a for a, b in zip(known, times, strict=True))
    ]
    better.append(times)
    return True
