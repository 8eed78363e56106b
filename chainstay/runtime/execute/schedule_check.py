"""Checks that a schedule of a chain can run at all: every operation finds what it needs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from typing import assert_never

from chainstay.errors import InvalidScheduleError
from chainstay.schedule import Item, Op, OpKind, Schedule, update_stored


def require_runnable(schedule: Schedule, stages: int, *, has_link: bool) -> None:
    """Follow what is stored; the first operation that lacks its input is refused.

    Whether data is on the device when it is needed is for whoever plans transfers to say.
    """
    stored, away, gradient = {Item("a", 0)}, set[Item](), stages
    for index, op in enumerate(schedule):
        reason = _refusal(op, stored, away, gradient, has_link=has_link)
        if reason is not None:
            raise InvalidScheduleError(f"{op} {reason}", index=index, ops=schedule.ops)
        update_stored(stored, op)
        if op.kind in (OpKind.OFFLOAD_ACTIVATION, OpKind.OFFLOAD_SAVED):
            away.add(op.item)
        elif op.kind in (OpKind.PREFETCH_ACTIVATION, OpKind.PREFETCH_SAVED):
            stored.add(op.item)
        elif op.kind is OpKind.BACKWARD:
            gradient = op.stage
    if gradient > 0:
        raise InvalidScheduleError(
            f"the schedule ends before B{gradient - 1}; every stage needs its backward"
        )


def _refusal(  # noqa: C901  # one case per kind of operation
    op: Op, stored: AbstractSet[Item], away: AbstractSet[Item], gradient: int, *, has_link: bool
) -> str | None:
    """Return the reason why `op` cannot run, or ``None`` if it can."""
    if op.branch is not None:
        return "names a branch, and this chain has none"
    own, saved = Item("a", op.stage), Item("b", op.stage)
    has_input = own in stored or Item("b", op.stage - 1) in stored
    match op.kind:
        case OpKind.DISCARD_ACTIVATION:
            held, what = own in stored and op.stage > 0, f"a{op.stage}"
        case OpKind.DISCARD_SAVED:
            held, what = saved in stored, f"the saved data of stage {op.stage}"
        case OpKind.FORWARD_DROP:
            held, what = own in stored, f"a{op.stage} itself"
        case OpKind.FORWARD_KEEP_INPUT | OpKind.FORWARD_KEEP_ALL:
            held, what = has_input, f"its input a{op.stage}"
        case OpKind.BACKWARD if gradient != op.stage + 1:
            held, what = False, f"the gradient of a{op.stage + 1}"
        case OpKind.BACKWARD:
            held = saved in stored and has_input
            what = f"its input and what Fa{op.stage} saves"
        case OpKind.TURN:
            return "is an operation of joins, and this is a single chain"
        case _ if not has_link:
            return "moves data to or from the host, and this runtime has no link to it"
        case OpKind.PREFETCH_ACTIVATION | OpKind.PREFETCH_SAVED:
            held, what = op.item in away, f"{op.item} on the host"
        case OpKind.OFFLOAD_ACTIVATION | OpKind.OFFLOAD_SAVED:
            held, what = True, ""
        case _:
            assert_never(op.kind)
    return None if held else f"needs {what}, which is not stored"
