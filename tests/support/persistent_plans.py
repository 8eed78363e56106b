"""Every plan of recomputing and offloading of a tiny chain, to compare solvers with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import ChainProfile, Link
from chainstay.schedule import Item, Op, OpKind, Schedule
from chainstay.timetable import Time
from chainstay.validation.hybrid.fractional_transfers import fractional_makespan

_Ops = tuple[Op, ...]


def best_plan(profile: ChainProfile, budget: int, link: Link) -> tuple[Time, Schedule] | None:
    """The fastest of the family P with any set of items moved, by the referee's word alone."""
    best: tuple[Time, Schedule] | None = None
    for ops in _persistent(profile, (), {0}, {0}, len(profile)):
        turn = ops.index(Op(OpKind.BACKWARD, len(profile) - 1))
        items = [Item("a", 0), *(op.makes for op in ops[:turn] if op.makes is not None)]
        for count in range(len(items)):
            for moved in combinations(sorted(set(items)), count):
                schedule = Schedule((*(item.offload for item in moved), *ops))
                try:
                    value = fractional_makespan(profile, schedule, budget=budget, link=link)
                except InvalidScheduleError:
                    continue
                if best is None or value < best[0]:
                    best = value, schedule
    return best


def _persistent(
    profile: ChainProfile, ops: _Ops, plain: set[int], protected: set[int], gradient: int
) -> Iterator[_Ops]:
    """Yield all ways to go on with what is plain; inputs of stages stay that are protected.

    Nothing below a protected stage runs, and what is not kept is read by the next operation.
    """
    if gradient == 0:
        yield ops
        return
    saved = {op.stage for op in ops if op.kind is OpKind.FORWARD_KEEP_ALL}
    saved = {i for i in saved if i < gradient}
    is_passing = bool(ops) and ops[-1].kind in (OpKind.FORWARD_KEEP_INPUT, OpKind.FORWARD_DROP)
    low = ops[-1].stage + 1 if is_passing else max(protected)
    for i in range(low, low + 1 if is_passing else gradient):
        if i in saved or not (i in plain or i - 1 in saved):
            continue
        for number in range(len(profile.stages[i].all_options)):
            keep = Op(OpKind.FORWARD_KEEP_ALL, i, option=number)
            yield from _persistent(profile, (*ops, keep), plain, protected | {i}, gradient)
        if i + 1 < gradient and i + 1 not in plain | saved:
            keep = Op(OpKind.FORWARD_KEEP_INPUT, i)
            yield from _persistent(
                profile, (*ops, keep), plain | {i + 1}, protected | {i}, gradient
            )
            if i in plain - protected:
                drop = Op(OpKind.FORWARD_DROP, i)
                left = plain - {i} | {i + 1}
                yield from _persistent(profile, (*ops, drop), left, protected, gradient)
    last = gradient - 1
    if not is_passing and last in saved and (last in plain or last - 1 in saved):
        back = Op(OpKind.BACKWARD, last)
        left = protected - {last} or {0}
        yield from _persistent(profile, (*ops, back), plain - {last}, left, last)
