"""A program list as computations, each with the transfers that are issued in front of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import ChainProfile
from chainstay.schedule import Op, OpKind, Schedule


@dataclass(slots=True)
class Computation:
    """One operation, or the loss's two, and what is issued in front of it.

    Attributes:
        ops: What is computed.
        overheads: The overhead of each operation, in bytes.
        gap: Transfers and discards that are still to be issued.
    """

    ops: tuple[Op, ...]
    overheads: tuple[int, ...]
    gap: list[Op]

    @property
    def is_loss(self) -> bool:
        """Whether it is the loss, forward and backward."""
        return len(self.ops) > 1

    def __str__(self) -> str:
        return "the loss" if self.is_loss else str(self.ops[0])


def computations_of(
    schedule: Schedule, profile: ChainProfile, overheads: Sequence[int] | None
) -> Iterator[Computation]:
    """The computations of a program list, in its order; arguments as for `plan_transfers`.

    Raises:
        InvalidScheduleError: An operation that no runtime can do there.
    """
    loss = len(profile) - 1
    gap: list[Op] = []
    begun: Computation | None = None
    for index, op in enumerate(schedule):
        if (reason := _refusal(op, loss, is_in_loss=begun is not None)) is not None:
            raise InvalidScheduleError(reason, index=index, ops=schedule.ops)
        if not op.kind.is_computation:
            gap.append(op)
            continue
        stage = profile.stages[op.stage]
        of_stage = (
            stage.forward_overhead_bytes if op.kind.is_forward else stage.backward_overhead_bytes
        )
        overhead = of_stage if overheads is None else overheads[index]
        if begun is not None:
            yield Computation((*begun.ops, op), (*begun.overheads, overhead), begun.gap)
            begun = None
        elif op.stage == loss:
            begun, gap = Computation((op,), (overhead,), gap), []
        else:
            yield Computation((op,), (overhead,), gap)
            gap = []
    if gap:
        raise InvalidScheduleError(f"{gap[0]} comes after the last computation")


def _refusal(op: Op, loss: int, *, is_in_loss: bool) -> str | None:
    """Return the reason why this runtime cannot do `op`, or ``None`` if it can."""
    if op.branch is not None or op.kind is OpKind.TURN:
        return f"{op} is an operation of joins, and this is a single chain"
    if op.stage > loss:
        return f"{op} names stage {op.stage}, the last one is {loss}"
    if not op.kind.is_computation:
        return None
    if is_in_loss and op != Op(OpKind.BACKWARD, loss):
        return f"{op} runs between the loss and its backward, where a runtime cannot do anything"
    if op.stage == loss and not is_in_loss and op.kind is not OpKind.FORWARD_KEEP_ALL:
        return f"{op} is out of order; the loss runs once, and saves what its backward needs"
    return None
