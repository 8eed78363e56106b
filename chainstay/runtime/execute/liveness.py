"""Live ranges of a schedule's values: what a runtime has to hold, and until when.

A schedule says what is stored; a runtime needs to know who still reads it. Both are
derived here from the order of operations alone, without sizes. What is held is then never
more than what is stored:

* A forward that records nothing and whose output nobody reads is left out, and so is one
  whose output is in recorded saved data anyway.
* Saved data whose input is made anew before its backward (as it must be, if the input was
  dropped) is recorded without the input and gets the new one back.

An option that keeps several stages together is planned as if each of them were kept, one after
another; its runs are then joined into one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType

from chainstay.errors import InvalidScheduleError
from chainstay.runtime.execute.items import Action, TransferPlan
from chainstay.runtime.execute.schedule_check import require_runnable
from chainstay.schedule import Item, Op, OpKind, Schedule


@dataclass(frozen=True, slots=True)
class Shape:
    """Stages and states of a chain or a join, by number.

    Stages are numbered as plain training runs them: branch by branch, then the tail, then the
    loss. State i is what stage i reads. The tail's first stage reads several states, the last
    ones of all branches; their numbers are above those of all others. A chain is a tail alone.

    Attributes:
        tail: The number of stages of the tail, the loss excluded.
        lengths: The numbers of stages of the branches.
    """

    tail: int
    lengths: tuple[int, ...] = ()

    @property
    def loss(self) -> int:
        """The stage that is the user's, and the number of stages before it."""
        return sum(self.lengths) + self.tail

    def position(self, op: Op) -> int:
        """Return the number of the stage that `op` names."""
        return sum(self.lengths[: op.branch]) + op.stage

    def inputs(self, stage: int) -> tuple[int, ...]:
        """Return the states that a stage reads."""
        if self.lengths and stage == sum(self.lengths):
            return tuple(self.loss + 2 + branch for branch in range(len(self.lengths)))
        return (stage,)

    def output(self, stage: int) -> int:
        """Return the state that a stage makes."""
        for branch, end in enumerate(accumulate(self.lengths)):
            if stage + 1 == end:
                return self.loss + 2 + branch
        return stage + 1

    def reader(self, state: int) -> int:
        """Return the stage that reads a state."""
        is_met = bool(self.lengths) and state > self.loss + 1  # the last state of a branch
        return sum(self.lengths) if is_met else state


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One forward of one stage.

    Attributes:
        stage: The stage's number.
        is_first: Nobody ran this stage before in this step of training.
        is_last: Nobody runs it again.
        captures: True if the stage's backward uses what it saves.
        releases_input: It captures, but not its input: the backward gets that from a
            later forward of the stage before.
        wanted: The states among its inputs that a later forward reads before they are made anew.
        output_wanted: A later forward or backward reads its output, likewise.
        makes: The item that it makes, if that goes to the host.
        actions: Transfers in front of it.
        option: The option under which it captures.
        span: The number of stages that it runs, one behind another; `stage` is the first.
    """

    stage: int
    is_first: bool
    is_last: bool
    captures: bool
    releases_input: bool
    wanted: frozenset[int]
    output_wanted: bool
    makes: Item | None = None
    actions: tuple[Action, ...] = ()
    option: int = 0
    span: int = 1

    @property
    def stages(self) -> range:
        """The stages that it runs."""
        return range(self.stage, self.stage + self.span)

    @property
    def is_untouched(self) -> bool:
        """Whether it is the only run, all of it stays, and nothing else is held or moved."""
        return (
            self.is_first
            and self.is_last
            and self.captures
            and not self.option
            and not (self.releases_input or self.wanted or self.actions)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPlan:
    """A schedule, cut into what the model's forward does and what its backward triggers.

    Attributes:
        shape: The shape of the chain or join.
        forward: All before the loss's forward; it has the first run of every stage, in the order
            of plain training, so that random numbers and buffers are what they would be there.
        backward: Stages in the order of their backwards, the loss excluded.
        before_backward: Per stage, the forwards that run just before its backward.
        released: Stages whose backward needs its input back, made anew by then.
        kept: Stages that run once, and with which nothing else is to be done.
        closing: Transfers after all that, just before the backward of a stage; the loss's,
            just before its forward.
        is_plain_order: Whether backwards come in the order in which autograd runs them by itself.
    """

    shape: Shape
    forward: tuple[Step, ...]
    backward: tuple[int, ...]
    before_backward: tuple[tuple[Step, ...], ...]
    released: frozenset[int]
    kept: frozenset[int]
    closing: Mapping[int, tuple[Action, ...]]
    is_plain_order: bool


Spans = Mapping[tuple[int, int], int]
"""The number of stages that an option keeps together, by stage and option, where that is not 1."""


def expanded(schedule: Schedule, spans: Spans) -> Schedule:
    """Return `schedule` with every stage of a span kept, and going backward, by itself.

    Example:
        >>> str(expanded(Schedule.parse("Fa0 Fa1.2 Fa3 B3 B1 B0"), {(1, 2): 2}))
        'Fa0 Fa1.2 Fa2 Fa3 B3 B2 B1 B0'
    """
    ops: list[Op] = []
    kept: dict[int, int] = {}
    for op in schedule:
        if op.kind is OpKind.FORWARD_KEEP_ALL:
            kept[op.stage] = spans.get((op.stage, op.option), 1)
        further = range(op.stage + 1, op.stage + kept.get(op.stage, 1))
        if op.kind is OpKind.BACKWARD:
            ops += [replace(op, stage=stage) for stage in reversed(further)]
        ops.append(op)
        if op.kind is OpKind.FORWARD_KEEP_ALL:
            ops += [replace(op, stage=stage, option=0) for stage in further]
    return Schedule(tuple(ops))


def plan_execution(
    schedule: Schedule,
    shape: Shape,
    transfers: TransferPlan | None = None,
    spans: Spans = MappingProxyType({}),
) -> ExecutionPlan:
    """Cut `schedule` into steps; operations on the loss are the user's.

    Args:
        schedule: For a chain and its loss, valid under free discards; for a join, valid for it
            (see `chainstay.simulate_join`).
        shape: The shape of the chain, of at least one stage, or of the join.
        transfers: The actions that the transfers in `schedule` become, if it may have any.
        spans: Options that keep several stages together; only of a chain without transfers.

    Raises:
        InvalidScheduleError: An operation of a chain lacks what it needs, or a backward is
            missing. Stages of a join run first in another order than in plain training, or
            something is made anew while recorded data holds it.

    Complexity:
        O(len(schedule)).
    """
    schedule = expanded(schedule, spans)
    if not shape.lengths:
        require_runnable(schedule, shape.loss + 1, has_link=transfers is not None)
    forward: list[Step] = []
    before: dict[int, tuple[Step, ...]] = {}
    waiting: list[Step] = []
    is_forward_done = False
    steps = _steps(schedule, shape)
    moved = frozenset() if transfers is None else transfers.moved
    actions = iter(() if transfers is None else transfers.actions)
    pending: tuple[Action, ...] = ()
    closing: dict[int, tuple[Action, ...]] = {}
    for op, step in zip(schedule, steps, strict=True):
        is_backward = op.kind is OpKind.BACKWARD
        if is_backward or op.kind.is_forward:
            pending += next(actions, ())
        if is_backward:
            stage = shape.position(op)
            closing[stage], pending = closing.get(stage, ()) + pending, ()
            if stage != shape.loss:
                before[stage], waiting = tuple(waiting), []
        elif step is None:
            continue
        elif step.stage == shape.loss:
            is_forward_done = True
            closing[shape.loss], pending = pending, ()
        else:
            makes = op.makes if op.makes in moved else None
            target = waiting if is_forward_done else forward
            target.append(replace(step, makes=makes, actions=pending))
            pending = ()
    forward = _joined(forward, spans)
    before = {stage: tuple(_joined(steps, spans)) for stage, steps in before.items()}
    first_runs = [stage for step in forward if step.is_first for stage in step.stages]
    if first_runs != list(range(shape.loss)):
        raise InvalidScheduleError(
            "stages run first in another order than in plain training, which would change "
            "random numbers and buffers"
        )
    kept = (step.stage for step in forward if step.is_untouched and not before[step.stage])
    return ExecutionPlan(
        shape=shape,
        forward=tuple(forward),
        backward=tuple(before),
        before_backward=tuple(before[stage] for stage in range(shape.loss)),
        kept=frozenset(stage for stage in kept if not closing.get(stage)),
        released=frozenset(step.stage for step in steps if step and step.releases_input),
        closing={stage: some for stage, some in closing.items() if some},
        is_plain_order=list(before) == list(reversed(range(shape.loss))),
    )


def _joined(steps: Sequence[Step], spans: Spans) -> list[Step]:
    """Return the steps with those of each span as one."""
    joined: list[Step] = []
    position = 0
    while position < len(steps):
        span = spans.get((steps[position].stage, steps[position].option), 1)
        members = steps[position : position + span]
        joined.append(
            replace(
                members[0],
                is_first=all(step.is_first for step in members),
                is_last=all(step.is_last for step in members),
                output_wanted=members[-1].output_wanted,
                span=span,
            )
        )
        position += span
    return joined


def _steps(schedule: Schedule, shape: Shape) -> list[Step | None]:
    """A step for every forward that somebody needs, found by reading the schedule backwards."""
    readers = _Readers(shape)
    steps: list[Step | None] = []
    for index in reversed(range(len(schedule))):
        op = schedule[index]
        if op.kind is OpKind.TURN:
            raise InvalidScheduleError(
                f"{op} is for joins without a tail, and here the loss is the tail's last stage",
                index=index,
                ops=schedule.ops,
            )
        if op.kind is OpKind.BACKWARD:
            readers.recorded.add(shape.position(op))
        steps.append(readers.take_forward(op, index, schedule) if op.kind.is_forward else None)
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
        shape: The shape; the loss's backward has its input, the output, from the user.
        wanted: States that a forward reads before they are made anew.
        recorded: Stages between the forward that captures and their backward.
        released: Those of `recorded` whose input is made anew in between.
        run_later: Stages that run again.
    """

    shape: Shape
    wanted: set[int] = field(default_factory=set)
    recorded: set[int] = field(default_factory=set)
    released: set[int] = field(default_factory=set)
    run_later: set[int] = field(default_factory=set)

    def take_forward(self, op: Op, index: int, schedule: Schedule) -> Step | None:
        """The step of a forward that somebody behind it needs; what it reads is needed before."""
        shape, stage = self.shape, self.shape.position(op)
        output = shape.output(stage)
        reader = shape.reader(output)
        is_recorded = stage in self.recorded
        captures = is_recorded and op.kind is OpKind.FORWARD_KEEP_ALL
        is_awaited = reader in self.recorded and reader not in {shape.loss, *self.released}
        output_wanted = output in self.wanted or (is_awaited and not shape.lengths)
        if not captures and (is_recorded or not output_wanted):
            return None
        if is_awaited and shape.lengths:
            raise InvalidScheduleError(
                f"{op} makes anew what the saved data of stage {reader} behind it still holds, "
                "which this runtime does not do in joins",
                index=index,
                ops=schedule.ops,
            )
        inputs = shape.inputs(stage)
        step = Step(
            stage=stage,
            is_first=False,
            is_last=stage not in self.run_later,
            captures=captures,
            option=op.option if captures else 0,
            releases_input=captures and stage in self.released,
            wanted=frozenset(self.wanted.intersection(inputs)),
            output_wanted=output_wanted,
        )
        if is_awaited:
            self.released.add(output)
        if captures:
            self.recorded.discard(stage)
        self.wanted.discard(output)
        self.wanted.update(inputs)
        self.run_later.add(stage)
        return step
