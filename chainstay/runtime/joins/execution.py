"""Live ranges of the values in a schedule of a join; compare `liveness`.

A stage is (part, index); parts are the branches in their order, then the tail, whose last
stage is the loss. A state is (part, index) likewise: state i of a branch is the input of its
stage i. The tail's stage 0 reads the last states of all branches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from chainstay.errors import InvalidScheduleError
from chainstay.schedule import Op, OpKind, Schedule

__all__ = ["JoinExecution", "JoinShape", "JoinStep", "Place", "plan_join"]

Place = tuple[int, int]
"""Part and index of a stage or a state."""


@dataclass(frozen=True, slots=True)
class JoinShape:
    """The number of stages in each part.

    Attributes:
        lengths: The numbers of stages of the branches.
        tail: The number of stages of the tail, the loss excluded.
    """

    lengths: tuple[int, ...]
    tail: int

    @property
    def loss(self) -> Place:
        """The stage that is the user's."""
        return len(self.lengths), self.tail

    def stages(self) -> list[Place]:
        """All but the loss, in the order in which plain training runs them."""
        parts = enumerate((*self.lengths, self.tail))
        return [(part, index) for part, length in parts for index in range(length)]

    def place(self, op: Op) -> Place:
        """The stage that `op` names."""
        return len(self.lengths) if op.branch is None else op.branch, op.stage

    def inputs(self, stage: Place) -> tuple[Place, ...]:
        """The states that a stage reads."""
        if stage == (len(self.lengths), 0):
            return tuple(enumerate(self.lengths))
        return (stage,)

    def reader(self, state: Place) -> Place:
        """The stage that reads a state."""
        part, index = state
        is_last = part < len(self.lengths) and index == self.lengths[part]
        return (len(self.lengths), 0) if is_last else state


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinStep:
    """One forward of one stage.

    Attributes:
        stage: Which.
        is_first: Nobody ran this stage before in this step of training.
        is_last: Nobody runs it again.
        captures: What it saves is what the stage's backward will use.
        wanted: Which of the states that it reads a later forward reads again.
        output_wanted: A later forward reads its output.
    """

    stage: Place
    is_first: bool
    is_last: bool
    captures: bool
    wanted: frozenset[Place]
    output_wanted: bool


@dataclass(frozen=True, slots=True)
class JoinExecution:
    """A schedule, cut into what the forward does and what the backward triggers.

    Attributes:
        shape: The shape of the join.
        forward: All before the loss's forward; the first runs are in the order of plain
            training, so that random numbers and buffers are what they would be there.
        backward: Stages in the order of their backwards, the loss excluded.
        before_backward: Per stage, the forwards that run just before its backward.
    """

    shape: JoinShape
    forward: tuple[JoinStep, ...]
    backward: tuple[Place, ...]
    before_backward: Mapping[Place, tuple[JoinStep, ...]]

    @property
    def is_plain_order(self) -> bool:
        """Whether backwards come in the order in which autograd runs them by itself."""
        return list(self.backward) == self.shape.stages()[::-1]


def plan_join(schedule: Schedule, shape: JoinShape) -> JoinExecution:
    """Cut `schedule` into steps; operations on the loss are the user's.

    Args:
        schedule: Valid for the join (see `chainstay.simulate_join`).
        shape: The shape of the join.

    Raises:
        InvalidScheduleError: First runs are not in the order of plain training, or something is
            made anew while recorded data holds it.

    Complexity:
        O(len(schedule)).
    """
    steps = _steps(schedule, shape)
    forward: list[JoinStep] = []
    backward: list[Place] = []
    before: dict[Place, tuple[JoinStep, ...]] = {}
    pending: list[JoinStep] = []
    is_forward_done = False
    for index, (op, step) in enumerate(zip(schedule, steps, strict=True)):
        stage = shape.place(op)
        if op.kind is OpKind.TURN:
            raise InvalidScheduleError(
                f"{op} is for joins without a tail, and here the loss is the tail's last stage",
                index=index,
                ops=schedule.ops,
            )
        if step is not None and stage == shape.loss:
            is_forward_done = True
        elif step is not None:
            (pending if is_forward_done else forward).append(step)
        elif op.kind is OpKind.BACKWARD and stage != shape.loss:
            backward.append(stage)
            before[stage], pending = tuple(pending), []
    firsts = [step.stage for step in forward if step.is_first]
    if firsts != shape.stages():
        raise InvalidScheduleError(
            "stages run first in another order than in plain training, which would change "
            "random numbers and buffers"
        )
    return JoinExecution(shape, tuple(forward), tuple(backward), before)


def _steps(schedule: Schedule, shape: JoinShape) -> list[JoinStep | None]:
    """A step for every forward that somebody needs, found by reading the schedule backwards."""
    readers = _JoinReaders(shape)
    steps: list[JoinStep | None] = []
    for index in reversed(range(len(schedule))):
        op = schedule[index]
        if op.kind is OpKind.BACKWARD:
            readers.recorded.add(shape.place(op))
        step = readers.take_forward(op, index, schedule) if op.kind.is_forward else None
        steps.append(step)
    steps.reverse()
    seen: set[Place] = set()
    for index, step in enumerate(steps):
        if step is not None and step.stage not in seen:
            seen.add(step.stage)
            steps[index] = replace(step, is_first=True)
    return steps


@dataclass(slots=True)
class _JoinReaders:
    """The values that operations behind a point of the schedule read.

    Attributes:
        wanted: States that a forward reads before they are made anew.
        recorded: Stages between the forward that captures and their backward.
        run_later: Stages that run again.
    """

    shape: JoinShape
    wanted: set[Place] = field(default_factory=set)
    recorded: set[Place] = field(default_factory=set)
    run_later: set[Place] = field(default_factory=set)

    def take_forward(self, op: Op, index: int, schedule: Schedule) -> JoinStep | None:
        """The step of a forward that somebody behind it needs; what it reads is needed before."""
        shape, stage = self.shape, self.shape.place(op)
        output = (stage[0], stage[1] + 1)
        is_recorded = stage in self.recorded
        captures = is_recorded and op.kind is OpKind.FORWARD_KEEP_ALL
        output_wanted = output in self.wanted
        if not captures and (is_recorded or not output_wanted):
            return None
        reader = shape.reader(output)
        if reader in self.recorded and reader != shape.loss:
            raise InvalidScheduleError(
                f"{op} makes anew what the saved data of stage {reader[1]} behind it still holds, "
                "which this runtime does not do in joins",
                index=index,
                ops=schedule.ops,
            )
        inputs = shape.inputs(stage)
        step = JoinStep(
            stage=stage,
            is_first=False,
            is_last=stage not in self.run_later,
            captures=captures,
            wanted=frozenset(self.wanted.intersection(inputs)),
            output_wanted=output_wanted,
        )
        if captures:
            self.recorded.discard(stage)
        self.wanted.discard(output)
        self.wanted.update(inputs)
        self.run_later.add(stage)
        return step
