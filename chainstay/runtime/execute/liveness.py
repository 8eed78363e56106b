"""Live ranges of a schedule's values: what a runtime has to hold, and until when.

A schedule says what is stored; a runtime needs to know who still reads it. Both are
derived here from the order of operations alone, without sizes. What is held is then never
more than what is stored:

* A forward that records nothing and whose output nobody reads is left out, and so is one
  whose output is in recorded saved data anyway.
* Saved data whose input is made anew before its backward (as it must be, if the input was
  dropped) is recorded without the input and gets the new one back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from chainstay.errors import InvalidScheduleError
from chainstay.runtime.execute.items import Action, Item, TransferPlan, item_of, made_by
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
        releases_input: It captures, but not its input: the backward gets that from a
            later forward of the stage before.
        input_wanted: A later forward reads its input before anyone makes it anew.
        output_wanted: A later forward or backward reads its output, likewise.
        makes: What it makes, if that goes to the host.
        actions: Transfers in front of it.
    """

    stage: int
    is_first: bool
    is_last: bool
    captures: bool
    releases_input: bool
    input_wanted: bool
    output_wanted: bool
    makes: Item | None = None
    actions: tuple[Action, ...] = ()

    @property
    def is_untouched(self) -> bool:
        """Whether it is the only run, all of it stays, and nothing else is held or moved."""
        return (
            self.is_first
            and self.is_last
            and self.captures
            and not (self.releases_input or self.input_wanted or self.actions)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPlan:
    """A schedule, cut into what the model's forward does and what its backward triggers.

    Attributes:
        forward: All before the loss's forward; it has the first run of every stage.
        before_backward: Per stage, the forwards that run just before its backward.
        released: Stages whose backward needs its input back, made anew by then.
        kept: Stages that run once, and with which nothing else is to be done.
        closing: Transfers after all that, just before the backward of a stage; the loss's,
            just before its forward.
    """

    forward: tuple[Step, ...]
    before_backward: tuple[tuple[Step, ...], ...]
    released: frozenset[int]
    kept: frozenset[int] = frozenset()
    closing: Mapping[int, tuple[Action, ...]] = field(default_factory=dict)


def plan_execution(
    schedule: Schedule, stages: int, transfers: TransferPlan | None = None
) -> ExecutionPlan:
    """Cut `schedule` into steps; operations on the loss (stage `stages`) are the user's.

    Args:
        schedule: A schedule for `stages` stages and the loss, valid under free discards.
        stages: At least one.
        transfers: What is made of the transfers in `schedule`, if it may have any.

    Raises:
        InvalidScheduleError: An operation lacks what it needs, or a backward is missing.

    Complexity:
        O(len(schedule)).
    """
    _check(schedule, stages + 1, has_link=transfers is not None)
    forward: list[Step] = []
    segments: list[list[Step]] = [[] for _ in range(stages)]
    gradient = stages  # of this activation; the stage below it has the next backward
    is_forward_done = False
    steps = _steps(schedule, stages)
    moved = frozenset() if transfers is None else transfers.moved
    actions = iter(() if transfers is None else transfers.actions)
    pending: tuple[Action, ...] = ()
    closing: dict[int, tuple[Action, ...]] = {}
    for op, step in zip(schedule, steps, strict=True):
        is_backward = op.kind is OpKind.BACKWARD
        if is_backward or op.kind.is_forward:
            pending += next(actions, ())
        if is_backward:
            closing[op.stage], pending = closing.get(op.stage, ()) + pending, ()
            gradient = op.stage
        elif step is None:
            continue
        elif step.stage == stages:
            is_forward_done = True
            closing[stages], pending = pending, ()
        else:
            makes = made_by(op) if made_by(op) in moved else None
            target = segments[gradient - 1] if is_forward_done else forward
            target.append(replace(step, makes=makes, actions=pending))
            pending = ()
    kept = (step.stage for step in forward if step.is_untouched and not segments[step.stage])
    return ExecutionPlan(
        forward=tuple(forward),
        before_backward=tuple(map(tuple, segments)),
        kept=frozenset(stage for stage in kept if not closing.get(stage)),
        released=frozenset(step.stage for step in steps if step and step.releases_input),
        closing={stage: some for stage, some in closing.items() if some},
    )


def _steps(schedule: Schedule, stages: int) -> list[Step | None]:
    """A step for every forward that somebody needs, found by reading the schedule backwards."""
    readers = _Readers(loss=stages)
    steps: list[Step | None] = []
    for op in reversed(schedule.ops):
        if op.kind is OpKind.BACKWARD:
            readers.recorded.add(op.stage)
        steps.append(readers.take_forward(op) if op.kind.is_forward else None)
    steps.reverse()
    seen: set[int] = set()
    for index, step in enumerate(steps):
        if step is not None and step.stage not in seen:
            seen.add(step.stage)
            steps[index] = replace(step, is_first=True)
    return steps


@dataclass(slots=True)
class _Readers:
    """The values that operations behind a point of the schedule read.

    Attributes:
        loss: The last stage; its backward has its input, the output, from the user.
        wanted: Activations that a forward reads before they are made anew.
        recorded: Stages between the forward that captures and their backward.
        released: Those of `recorded` whose input is made anew in between.
        run_later: Stages that run again.
    """

    loss: int
    wanted: set[int] = field(default_factory=set)
    recorded: set[int] = field(default_factory=set)
    released: set[int] = field(default_factory=set)
    run_later: set[int] = field(default_factory=set)

    def take_forward(self, op: Op) -> Step | None:
        """The step of a forward that somebody behind it needs; what it reads is needed before."""
        stage, output = op.stage, op.stage + 1
        is_recorded = stage in self.recorded
        captures = is_recorded and op.kind is OpKind.FORWARD_KEEP_ALL
        is_awaited = output in self.recorded and output not in {self.loss, *self.released}
        output_wanted = output in self.wanted or is_awaited
        if not captures and (is_recorded or not output_wanted):
            return None
        step = Step(
            stage=stage,
            is_first=False,
            is_last=stage not in self.run_later,
            captures=captures,
            releases_input=captures and stage in self.released,
            input_wanted=stage in self.wanted,
            output_wanted=output_wanted,
        )
        if is_awaited:
            self.released.add(output)
        if captures:
            self.recorded.discard(stage)
        self.wanted.discard(output)
        self.wanted.add(stage)
        self.run_later.add(stage)
        return step


def _check(schedule: Schedule, stages: int, *, has_link: bool) -> None:
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
            case OpKind.OFFLOAD_ACTIVATION | OpKind.OFFLOAD_SAVED:
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
            case OpKind.OFFLOAD_ACTIVATION | OpKind.OFFLOAD_SAVED:
                self.away.add(item_of(op))
            case OpKind.PREFETCH_ACTIVATION:
                self.activations.add(op.stage)
            case OpKind.PREFETCH_SAVED:
                self.saved.add(op.stage)
            case OpKind.TURN:
                raise AssertionError(f"{op} was refused")
            case _:
                assert_never(op.kind)
