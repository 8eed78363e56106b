"""The meaning of a schedule of a join: validity, makespan, peak and memory over time.

For a `JoinProfile`, the memory model of `chainstay.validation.simulate` on every branch and
on the tail, with a tape's discards: plain activations may be dropped, but never the input
of saved data that is stored. It starts with the branches' inputs and the gradient of the
loss.

- Stage 0 of the tail reads the outputs of all branches: ``a^{L_j}`` of branch j, itself or
  inside the saved data of the last stage. ``Fn0`` needs and drops all of them themselves;
  ``0:Da3`` drops the output of a branch of three stages.
- Its backward gives the gradients of all those outputs, and from then on each branch has a
  gradient of its own. That of a branch's input is gone at once unless it is kept.
- Without a tail, ``T`` is all of this at once, for nothing.
- A shared gradient is in memory once one of its users has run backward, and until all have; also
  while the first and the last of them do.
- Options and costs by kind of run are those of `chainstay.validation.simulate`: ``0:Fa3.1`` keeps
  stage 3 of branch 0 under its option 1, a stage's first forward is its first run, and only what
  reads its input in the backward must have it.

For a `HomogeneousJoin`, see `chainstay.validation.join.slot_memory`. This module shares no code
with any solver.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import (
    ChainProfile,
    HomogeneousJoin,
    Join,
    JoinProfile,
    RunCost,
    StageOption,
    kept_gradients,
)
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.validation.arguments import require_replayable
from chainstay.validation.join.slot_memory import SlotMemory
from chainstay.validation.simulate import InvalidOperationError, Replay, Snapshot

_Value: TypeAlias = tuple[int | None, int]
"""Branch (None for the tail) and index of an activation, or of the stage that saved data."""


def simulate_join(
    profile: Join,
    schedule: Schedule,
    *,
    keep: Sequence[bool] | None = None,
    overheads: Sequence[int] | None = None,
) -> Replay:
    """Replay `schedule` on a join.

    Args:
        profile: The join; sizes and the peak of a `HomogeneousJoin` are in slots.
        schedule: The schedule to replay.
        keep: For each branch, whether the gradient of its input stays until the end.
        overheads: Bytes that each operation needs while it runs besides what is stored, in
            place of its stage's in the profile, where more is known of this schedule; not of
            a `HomogeneousJoin`. Less than zero for a backward that frees what it has read
            before it has made all that it gives; what is stored before and behind it counts.

    Returns:
        The replay; comparing its peak with a budget is the caller's business.

    Raises:
        InvalidScheduleError: An operation lacks what it needs (``error.index`` says which),
            or the schedule ends before the gradients of all inputs are there.
        InvalidProfileError: `keep` has not one flag for each branch.
        ValueError: Not one of `overheads` per operation, or overheads of a `HomogeneousJoin`.

    Example:
        >>> join = JoinProfile.homogeneous((1, 0), forward_time=1, backward_time=2, turn_time=3)
        >>> replay = simulate_join(join, Schedule.parse("0:Fc0 T 0:B0"))
        >>> replay.makespan, replay.peak_bytes
        (6, 3)
    """
    require_replayable(profile, schedule, JoinProfile, HomogeneousJoin, overheads=overheads)
    flags = kept_gradients(profile, keep)
    memory: SlotMemory | _ByteMemory
    if isinstance(profile, HomogeneousJoin):
        if overheads is not None:
            problem = "overheads are bytes, and a homogeneous join has slots; leave them out"
            raise ValueError(problem)  # either is right without the other
        memory = SlotMemory(profile, flags)
    else:
        memory = _ByteMemory(profile, flags)
    peak_bytes = sum(memory.stored())
    timeline: list[Snapshot] = []
    clock = 0
    for index, op in enumerate(schedule):
        start, before = clock, sum(memory.stored())
        try:
            during_bytes, duration, overhead_bytes = memory.apply(op)
            if overheads is not None:
                overhead_bytes = overheads[index]
            during_bytes += overhead_bytes
        except InvalidOperationError as refusal:
            raise InvalidScheduleError(str(refusal), index=index, ops=schedule.ops) from None
        clock += duration
        activation_bytes, saved_bytes, gradient_bytes = memory.stored()
        if overheads is not None:
            behind = activation_bytes + saved_bytes + gradient_bytes
            during_bytes = max(during_bytes, before, behind)
        snapshot = Snapshot(
            op=op,
            start=start,
            end=clock,
            during_bytes=during_bytes,
            overhead_bytes=overhead_bytes,
            activation_bytes=activation_bytes,
            saved_bytes=saved_bytes,
            gradient_bytes=gradient_bytes,
        )
        timeline.append(snapshot)
    if missing := memory.missing():
        raise InvalidScheduleError(
            f"the schedule ends before {missing}; every stage needs its backward"
        )
    peak_bytes = max([peak_bytes, *memory.during(timeline)])
    return Replay(makespan=clock, peak_bytes=peak_bytes, timeline=tuple(timeline))


@dataclass(slots=True)
class _ByteMemory:
    """The stored data: activations and saved data by branch and index, and the gradients.

    Attributes:
        profile: The join.
        keep: For each branch, whether the gradient of its input stays until the end.
        activations: The stored activations.
        saved: By stage, the option and the run of the ``Fa`` whose saved data is stored.
        has_run: Stages of which a forward has run.
        gradients: By branch (None for the tail), the index of the activation whose gradient
            is held; -1 for none.
        back: Stages whose backward has run.
        shared: Bytes and users of the shared gradients.
    """

    profile: JoinProfile
    keep: tuple[bool, ...]
    activations: set[_Value] = field(default_factory=set)
    saved: dict[_Value, tuple[StageOption, RunCost]] = field(default_factory=dict)
    has_run: set[_Value] = field(default_factory=set)
    gradients: dict[int | None, int] = field(default_factory=dict)
    back: set[_Value] = field(default_factory=set)
    shared: list[tuple[int, set[_Value]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        tail = len(self.profile.branches)
        for gradient, users in zip(self.profile.shared, self.profile.users, strict=True):
            self.shared.append((gradient.bytes, {(None if j == tail else j, i) for j, i in users}))
        self.activations = {(j, 0) for j in range(len(self.profile.branches))}
        self.gradients = dict.fromkeys(range(len(self.profile.branches)), -1)
        self.gradients[None] = len(self.profile.closing)

    def apply(self, op: Op) -> tuple[int, int, int]:
        """Run `op` and return the bytes stored meanwhile, its time, and its overhead bytes."""
        if op.kind is OpKind.TURN:
            return self._turn(op), 0, 0
        self._require_stage(op)
        if op.kind.is_forward:
            return self._forward(op)
        match op.kind:
            case OpKind.BACKWARD:
                return self._backward(op)
            case OpKind.DISCARD_ACTIVATION | OpKind.DISCARD_SAVED:
                return self._discard(op), 0, 0
        raise InvalidOperationError(f"{op} moves data over a link, and here there is none")

    def stored(self) -> tuple[int, int, int]:
        """Return the bytes of activations, of saved data and of gradients."""
        return (
            sum(self._chain_of(j).activation_bytes(i) for j, i in self.activations),
            sum(option.saved_bytes for option, _ in self.saved.values()),
            sum(self._chain_of(j).gradient_bytes(i) for j, i in self.gradients.items() if i >= 0)
            + sum(self._half_summed().values()),
        )

    def _half_summed(self) -> dict[int, int]:
        """Return the bytes of shared gradients that some of their users have given a summand."""
        return {
            number: size
            for number, (size, users) in enumerate(self.shared)
            if not users.isdisjoint(self.back) and not users <= self.back
        }

    def missing(self) -> str:
        """Return the next backward that has not run, or an empty text when all have."""
        if self.gradients[None] > 0:
            return "the turn" if self.profile.tail is None else f"B{self.gradients[None] - 1}"
        left = ((j, i) for j, i in self.gradients.items() if i > 0)
        return next((f"{j}:B{i - 1}" for j, i in left), "")

    def during(self, timeline: Sequence[Snapshot]) -> Iterator[int]:
        """Yield the bytes in use at each time where they count towards the peak."""
        return (snapshot.during_bytes for snapshot in timeline)

    def _turn(self, op: Op) -> int:
        if self.profile.tail is not None:
            raise InvalidOperationError(
                f"{op} stands for a free loss, and this join has a tail; run that"
            )
        if self.gradients[None] <= 0:
            raise InvalidOperationError(f"{op} has run; it runs once")
        self._require_inputs(op, None, 0)
        return sum(self.stored()) + self._turn_around()

    def _turn_around(self) -> int:
        """Replace all outputs by their gradients, one a branch; return the gradients' bytes."""
        self.gradients[None] = -1
        added = 0
        for j, branch in enumerate(self.profile.branches):
            self.activations.discard((j, len(branch)))
            self.gradients[j] = len(branch)
            added += branch.gradient_bytes(len(branch))
        return added

    def _forward(self, op: Op) -> tuple[int, int, int]:
        j, stage = op.branch, op.stage
        self._require_inputs(op, j, stage)
        inputs = self._inputs(j, stage)
        if op.kind is OpKind.FORWARD_DROP and not self.activations.issuperset(inputs):
            raise InvalidOperationError(
                f"{op} needs its input itself to drop it, and it is not stored"
            )
        if op.kind is OpKind.FORWARD_DROP and j is not None and stage == 0:
            raise InvalidOperationError(
                f"{op} would drop a branch's input, which nothing can recompute"
            )
        is_first = (j, stage) not in self.has_run
        self.has_run.add((j, stage))
        if op.kind is OpKind.FORWARD_KEEP_ALL:
            option = self._option(op)
            run = option.run(first=is_first)
            self.saved[j, stage] = (option, run)
        else:
            run = self._chain_of(j).stages[stage].dropped(first=is_first)
            self.activations.add((j, stage + 1))
        during_bytes = sum(self.stored())
        if op.kind is OpKind.FORWARD_DROP:
            self.activations.difference_update(inputs)
            self._require_tape(op)
        return during_bytes, run.time, run.overhead_bytes

    def _option(self, op: Op) -> StageOption:
        """Return the option under which `op` keeps its stage."""
        options = self._chain_of(op.branch).stages[op.stage].all_options
        if op.option >= len(options):
            raise InvalidOperationError(
                f"{op} names option {op.option}, and that stage has {len(options)}, counted from 0"
            )
        # The papers' model lets Fa run again on what it has saved, which gains nothing.
        if (op.branch, op.stage) in self.saved and not self.profile.is_plain:
            raise InvalidOperationError(f"{op} would save a stage twice; run its backward first")
        return options[op.option]

    def _backward(self, op: Op) -> tuple[int, int, int]:
        j, stage = op.branch, op.stage
        if self.gradients[j] != stage + 1:
            held = f"that of a{self.gradients[j]}" if self.gradients[j] >= 0 else "none"
            raise InvalidOperationError(
                f"{op} needs the gradient of a{stage + 1}, but {held} is held"
            )
        if (j, stage) not in self.saved:
            raise InvalidOperationError(f"{op} needs what Fa{stage} saves, and it is not stored")
        option, run = self.saved[j, stage]
        if option.needs_input:
            self._require_inputs(op, j, stage)
        before, half = sum(self.stored()), self._half_summed()
        del self.saved[j, stage]
        self.back.add((j, stage))
        if j is None and stage == 0:
            added = self._turn_around()
        else:
            added = self._chain_of(j).gradient_bytes(stage)
            self.activations.discard((j, stage))
            is_gone = stage == 0 and j is not None and not self.keep[j]
            self.gradients[j] = -1 if is_gone else stage
        self._require_tape(op)
        added += sum(size for n, size in self._half_summed().items() if n not in half)
        return before + added, run.backward_time, option.backward_overhead_bytes

    def _discard(self, op: Op) -> int:
        if op.kind is OpKind.DISCARD_ACTIVATION and op.stage == 0 and op.branch is not None:
            raise InvalidOperationError(
                f"{op} would drop a branch's input, which nothing can recompute"
            )
        is_saved = op.kind is OpKind.DISCARD_SAVED
        if (op.branch, op.stage) not in (self.saved if is_saved else self.activations):
            raise InvalidOperationError(f"{op} drops what is not stored")
        during_bytes = sum(self.stored())
        if is_saved:
            del self.saved[op.branch, op.stage]
        else:
            self.activations.remove((op.branch, op.stage))
        self._require_tape(op)
        return during_bytes

    def _require_inputs(self, op: Op, j: int | None, stage: int) -> None:
        for branch, i in self._inputs(j, stage):
            if not self._has(branch, i):
                where = "" if branch is None else f" of branch {branch}"
                raise InvalidOperationError(
                    f"{op} needs a{i}{where}, and it is not stored in any form"
                )

    def _require_tape(self, op: Op) -> None:
        for (j, stage), (option, _) in self.saved.items():
            has_inputs = all(self._has(*value) for value in self._inputs(j, stage))
            if option.needs_input and not has_inputs:
                where = "the tail" if j is None else f"branch {j}"
                raise InvalidOperationError(
                    f"{op} removes the input of stage {stage} of {where}, whose saved data stays"
                )

    def _inputs(self, j: int | None, stage: int) -> tuple[_Value, ...]:
        if j is None and stage == 0:
            return tuple((b, len(branch)) for b, branch in enumerate(self.profile.branches))
        return ((j, stage),)

    def _has(self, j: int | None, i: int) -> bool:
        return (j, i) in self.activations or (j, i - 1) in self.saved

    def _require_stage(self, op: Op) -> None:
        """Refuse a stage that there is none of."""
        branches = self.profile.branches
        if op.branch is None and self.profile.tail is None:
            raise InvalidOperationError(
                f"{op} names a stage of the tail, and there is none; write T"
            )
        if op.branch is not None and op.branch >= len(branches):
            raise InvalidOperationError(
                f"{op} names branch {op.branch}, the last one is {len(branches) - 1}"
            )
        chain = self._chain_of(op.branch)
        # The output of a tail's loss is stored only where a first run made it warm.
        has_output = op.branch is not None or not self.profile.is_plain
        is_output = op.kind is OpKind.DISCARD_ACTIVATION and has_output
        if op.stage >= len(chain) + is_output:
            raise InvalidOperationError(
                f"{op} names stage {op.stage}, the last one is {len(chain) - 1}"
            )

    def _chain_of(self, j: int | None) -> ChainProfile:
        return self.profile.closing if j is None else self.profile.branches[j]
