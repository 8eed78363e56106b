"""What each operation of a schedule means for a runtime: what to hold, and until when.

A schedule says what is stored; a runtime needs to know who still reads it. Both are
derived here from the order of operations alone, without sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from chainstay.errors import InvalidScheduleError, UnsupportedModelError
from chainstay.schedule import Op, OpKind, Schedule

__all__ = ["ExecutionPlan", "Step", "plan_execution"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward of one stage.

    Attributes:
        stage: Which.
        is_first: Nobody ran this stage before in this step of training.
        is_last: Nobody runs it again.
        captures: What it saves is what the stage's backward will use.
        input_wanted: A later forward reads its input before anyone makes it anew.
        output_wanted: Likewise its output.
    """

    stage: int
    is_first: bool
    is_last: bool
    captures: bool
    input_wanted: bool
    output_wanted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPlan:
    """A schedule, cut into what the model's forward does and what its backward triggers.

    Attributes:
        forward: Up to the last stage's first forward.
        before_backward: Per stage, the forwards that run just before its backward.
    """

    forward: tuple[Step, ...]
    before_backward: tuple[tuple[Step, ...], ...]


def plan_execution(schedule: Schedule, stages: int) -> ExecutionPlan:
    """Cut `schedule` into steps; operations on the loss (stage `stages`) are the user's.

    Args:
        schedule: For `stages` stages and the loss.
        stages: At least one.

    Raises:
        InvalidScheduleError: An operation lacks what it needs, or a backward is missing.
        UnsupportedModelError: Saved data outlives its input, as only free discards allow.

    Complexity:
        O(n * len(schedule)).
    """
    _check(schedule, stages + 1)
    forward: list[Step] = []
    segments: list[list[Step]] = [[] for _ in range(stages)]
    gradient = stages  # of this activation; the stage below it has the next backward
    is_forward_done = False
    for op, step in zip(schedule, _steps(schedule, stages), strict=True):
        if op.kind is OpKind.BACKWARD:
            gradient = op.stage
        elif step is None or op.stage == stages or gradient == 0:
            continue
        elif is_forward_done:
            segments[gradient - 1].append(step)
        else:
            forward.append(step)
            is_forward_done = op.stage == stages - 1
    return ExecutionPlan(
        forward=tuple(forward), before_backward=tuple(tuple(steps) for steps in segments)
    )


def _steps(schedule: Schedule, stages: int) -> list[Step | None]:
    """A step for every forward, found by reading the schedule backwards."""
    wanted: set[int] = set()  # activations that a later forward reads before they are made anew
    uses_capture: set[int] = set()  # stages whose next Fa, Db or B is their B
    run_later: set[int] = set()
    firsts = {
        op.stage: index for index, op in reversed(list(enumerate(schedule))) if op.kind.is_forward
    }
    steps: list[Step | None] = []
    for index, op in reversed(list(enumerate(schedule))):
        step = None
        if op.kind.is_forward:
            step = Step(
                stage=op.stage,
                is_first=firsts[op.stage] == index,
                is_last=op.stage not in run_later,
                captures=op.kind is OpKind.FORWARD_KEEP_ALL and op.stage in uses_capture,
                input_wanted=op.stage in wanted,
                output_wanted=op.stage + 1 in wanted,
            )
            wanted.discard(op.stage + 1)
            wanted.update({op.stage} - {stages})  # the loss reads its input from the user
            run_later.add(op.stage)
        if op.kind is OpKind.BACKWARD:
            uses_capture.add(op.stage)
        elif op.kind in (OpKind.FORWARD_KEEP_ALL, OpKind.DISCARD_SAVED):
            uses_capture.discard(op.stage)
        steps.append(step)
    return steps[::-1]


def _check(schedule: Schedule, stages: int) -> None:
    """Follow what is stored; the first operation that lacks its input is refused."""
    stored = _Stored(gradient=stages)
    for index, op in enumerate(schedule):
        reason = stored.refuse(op)
        if reason is not None:
            raise InvalidScheduleError(f"{op} {reason}", index=index, ops=schedule.ops)
        stored.apply(op)
        orphan = next((stage for stage in stored.saved if not stored.has_input(stage)), None)
        if orphan is not None:
            raise UnsupportedModelError(
                f"step {index + 1} ({op}) drops the input of stage {orphan}, whose saved data "
                "stays; a runtime holds both together, so solve with discards='table1' or 'tape'"
            )
    if stored.gradient > 0:
        raise InvalidScheduleError(
            f"the schedule ends before B{stored.gradient - 1}; every stage needs its backward"
        )


@dataclass(slots=True)
class _Stored:
    """Which activations and saved data exist, and whose gradient."""

    gradient: int
    activations: set[int] = field(default_factory=lambda: {0})
    saved: set[int] = field(default_factory=set)

    def has_input(self, stage: int) -> bool:
        return stage in self.activations or stage - 1 in self.saved

    def refuse(self, op: Op) -> str | None:
        """Why `op` cannot run, if so."""
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
            case _:
                assert_never(op.kind)
        return None if held else f"needs {what}, which is not stored"

    def apply(self, op: Op) -> None:
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
            case _:
                assert_never(op.kind)
