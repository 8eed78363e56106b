"""The optimum of a tiny problem with recomputation and offloading, by exhaustive search.

A* over the states of the simulator (`simulate.HybridMachine`): a state is what is where and what
is running, a step issues one more operation. Nothing is assumed about optimal schedules, but
that nothing is dropped later than right after the operation that read or sent it last, and
that neither what has no bytes nor what the next backward runs on leaves.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain, count
from typing import Final, TypeAlias

from chainstay.errors import InvalidProfileError, InvalidScheduleError
from chainstay.profiles import ChainProfile, Link
from chainstay.schedule import Item, Op, OpKind, Schedule
from chainstay.timetable import exact
from chainstay.validation.hybrid.simulate import HybridMachine
from chainstay.validation.offload.search import Optimum, is_new
from chainstay.validation.simulate import InvalidOperationError

LARGEST_HYBRID: Final = 4
"""Stages of the longest chain accepted."""

_Key: TypeAlias = tuple[object, ...]


def hybrid_optimum(profile: ChainProfile, *, budget: int, link: Link) -> Optimum | None:
    """Return a fastest schedule, or ``None`` if none fits in `budget` bytes.

    Raises:
        InvalidProfileError: The chain has skips, options other than those of single stages, or
            is too long to search.
    """
    if len(profile) > LARGEST_HYBRID:
        raise InvalidProfileError(
            f"exhaustive search with transfers takes chains of at most {LARGEST_HYBRID} stages, "
            f"this one has {len(profile)}; use a solver"
        )
    try:
        start = HybridMachine(profile, budget, link)
    except InvalidScheduleError:
        return None
    order = count()
    open_states: list[tuple[int, int, HybridMachine, tuple[Op, ...]]] = [
        (_bound(start), next(order), start, ())
    ]
    seen: dict[_Key, list[tuple[int, ...]]] = {}
    while open_states:
        bound, _, machine, ops = heapq.heappop(open_states)
        if machine.gradient == 0 and _ends(machine):
            return Optimum(Schedule(ops), exact(Fraction(bound, link.ticks)))
        for op, is_last in _steps(machine, ops):
            following = machine.copy()
            try:
                following.issue(op)
            except (InvalidOperationError, InvalidScheduleError):
                continue
            if is_last:
                following.forget(op.item)
            if _is_new(seen, following, (*ops, op)):
                state = (_bound(following), next(order), following, (*ops, op))
                heapq.heappush(open_states, state)
    return None


def _ends(machine: HybridMachine) -> bool:
    """Return whether every transfer issued so far will end."""
    try:
        machine.copy().finish()
    except InvalidOperationError:
        return False
    return True


def _bound(machine: HybridMachine) -> int:
    """Return ticks that no continuation is faster than: all backwards left, and their forwards."""
    ticks, waiting = machine.link.ticks, 0
    for i in range(machine.gradient):
        rest = [option.first.total_time for option in machine.options[i]]
        if Item("b", i) in machine.here:
            rest.append(machine.saved[i].first.backward_time)
        if Item("b", i) in machine.sent:
            rest.append(machine.away[i].first.backward_time)
        waiting += min(rest)
    return max(machine.now, machine.ends) + ticks * waiting


def _steps(machine: HybridMachine, ops: tuple[Op, ...]) -> Iterator[tuple[Op, bool]]:
    """Yield the operations that may come next, each with whether its item moves no more."""
    for op in chain(_drops(machine, ops), _computations(machine), _offloads(machine)):
        yield op, False
    here, is_limited = machine.here, machine.link.capacity is not None
    for item in sorted(machine.sent - machine.forgotten - here):
        if item.number < machine.gradient:
            yield item.prefetch, False
            if is_limited:
                yield item.prefetch, True


def _drops(machine: HybridMachine, ops: tuple[Op, ...]) -> Iterator[Op]:
    """Yield the discards that may follow the last operation, in one fixed order."""
    for item in sorted(_droppable(ops) & machine.here):
        yield item.discard


def _computations(machine: HybridMachine) -> Iterator[Op]:
    here = machine.here
    for i in range(machine.gradient):
        if Item("a", i) in here or Item("b", i - 1) in here:
            if Item("b", i) not in here:
                for option in range(len(machine.options[i])):
                    yield Op(OpKind.FORWARD_KEEP_ALL, i, option=option)
            if Item("a", i + 1) not in here and i + 1 < machine.gradient:
                yield Op(OpKind.FORWARD_KEEP_INPUT, i)
    if machine.gradient:
        yield Op(OpKind.BACKWARD, machine.gradient - 1)


def _offloads(machine: HybridMachine) -> Iterator[Op]:
    for item in sorted(machine.here - machine.sent):
        if machine.size(item) and item != Item("b", machine.gradient - 1):
            yield item.offload


def _droppable(ops: tuple[Op, ...]) -> set[Item]:
    """Return the items that the last operations issued may have used for the last time."""
    *before, last = ops or (None,)
    if last is None or last.kind.is_prefetch:
        return set()
    if last.kind.is_offload:
        return {last.item}
    if not last.kind.is_discard:
        return _touched(last)
    while before and before[-1].kind.is_discard:
        before.pop()
    if not before or before[-1].kind.is_transfer:
        return set()
    return {item for item in _touched(before[-1]) if item > last.item}


def _touched(op: Op) -> set[Item]:
    return {Item("a", op.stage), Item("b", op.stage - 1)}


def _is_new(
    seen: dict[_Key, list[tuple[int, ...]]], machine: HybridMachine, ops: tuple[Op, ...]
) -> bool:
    """Record a state; return False if a known one is as far with everything at least as early."""
    pending = sorted(machine.events, key=lambda event: (event[1], event[2].kind, event[2].stage))
    key: _Key = (
        machine.gradient,
        frozenset(machine.stored),
        frozenset(machine.ready),
        frozenset(machine.released),
        frozenset(machine.sent),
        tuple(machine.saved[i] for kind, i in sorted(machine.stored) if kind == "b"),
        tuple(machine.away[i] for kind, i in sorted(machine.sent) if kind == "b"),
        frozenset(machine.host),
        frozenset(machine.forgotten),
        machine.queue,
        tuple(op for *_, op in pending),
        frozenset(_droppable(ops) & machine.here),
    )
    return is_new(seen, key, (machine.now, *(time for time, *_ in pending)))
