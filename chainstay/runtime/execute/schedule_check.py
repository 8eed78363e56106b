"""Whether a schedule of a chain can run at all: every operation finds what it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from chainstay.errors import InvalidScheduleError
from chainstay.runtime.execute.items import Item, item_of
from chainstay.schedule import Op, OpKind, Schedule

__all__ = ["require_runnable"]


def require_runnable(schedule: Schedule, stages: int, *, has_link: bool) -> None:
    """Follow what is stored; the first operation that lacks its input is refused."""
    stored = _Stored(gradient=stages, has_link=has_link)
    for index, op in enumerate(schedule):
        reason = stored.refuse(op)
        if reason is not None:
            raise InvalidScheduleError(f"{op} {reason}", index=index, ops=schedule.ops)
        stored.apply(op)
    if stored.gradient > 0:
        raise InvalidScheduleError(
            f"the schedule ends before B{stored.gradient - 1}; every stage needs its backward"
        )


@dataclass(slots=True)
class _Stored:
    """The activations and saved data that exist, and the stage whose gradient does.

    Whether data is on the device when it is needed is for whoever plans transfers to say.
    """

    gradient: int
    has_link: bool
    activations: set[int] = field(default_factory=lambda: {0})
    saved: set[int] = field(default_factory=set)
    away: set[Item] = field(default_factory=set)

    def has_input(self, stage: int) -> bool:
        return stage in self.activations or stage - 1 in self.saved

    def refuse(self, op: Op) -> str | None:  # noqa: C901  # one case per kind of operation
        """Return the reason why `op` cannot run, or ``None`` if it can."""
        if op.branch is not None:
            return "names a branch, and this chain has none"
        match op.kind:
            case OpKind.DISCARD_ACTIVATION:
                held, what = op.stage in self.activations and op.stage > 0, f"a{op.stage}"
            case OpKind.DISCARD_SAVED:
                held, what = op.stage in self.saved, f"the saved data of stage {op.stage}"
            case OpKind.FORWARD_DROP:
                held, what = op.stage in self.activations, f"a{op.stage} itself"
            case OpKind.FORWARD_KEEP_INPUT | OpKind.FORWARD_KEEP_ALL:
                held, what = self.has_input(op.stage), f"its input a{op.stage}"
            case OpKind.BACKWARD if self.gradient != op.stage + 1:
                held, what = False, f"the gradient of a{op.stage + 1}"
            case OpKind.BACKWARD:
                held = op.stage in self.saved and self.has_input(op.stage)
                what = f"its input and what Fa{op.stage} saves"
            case OpKind.TURN:
                return "is an operation of joins, and this is a single chain"
            case _ if not self.has_link:
                return "moves data to or from the host, and this runtime has no link to it"
            case OpKind.PREFETCH_ACTIVATION | OpKind.PREFETCH_SAVED:
                held, what = item_of(op) in self.away, f"{item_of(op)} on the host"
            case (
                OpKind.OFFLOAD_ACTIVATION
                | OpKind.OFFLOAD_SAVED
                | OpKind.SPILL_ACTIVATION
                | OpKind.SPILL_SAVED
            ):
                held, what = True, ""
            case _:
                assert_never(op.kind)
        return None if held else f"needs {what}, which is not stored"

    def apply(self, op: Op) -> None:  # noqa: C901  # one case per kind of operation
        match op.kind:
            case OpKind.FORWARD_KEEP_ALL:
                self.saved.add(op.stage)
            case OpKind.FORWARD_KEEP_INPUT:
                self.activations.add(op.stage + 1)
            case OpKind.FORWARD_DROP:
                self.activations.add(op.stage + 1)
                self.activations.discard(op.stage)
            case OpKind.DISCARD_ACTIVATION:
                self.activations.discard(op.stage)
            case OpKind.DISCARD_SAVED:
                self.saved.discard(op.stage)
            case OpKind.BACKWARD:
                self.gradient = op.stage
                self.saved.discard(op.stage)
                self.activations.discard(op.stage)
            case (
                OpKind.OFFLOAD_ACTIVATION
                | OpKind.OFFLOAD_SAVED
                | OpKind.SPILL_ACTIVATION
                | OpKind.SPILL_SAVED
            ):
                self.away.add(item_of(op))
            case OpKind.PREFETCH_ACTIVATION:
                self.activations.add(op.stage)
            case OpKind.PREFETCH_SAVED:
                self.saved.add(op.stage)
            case OpKind.TURN:
                raise AssertionError(f"{op} was refused")
            case _:
                assert_never(op.kind)
