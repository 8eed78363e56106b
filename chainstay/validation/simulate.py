"""The meaning of a schedule: validity, makespan, peak and memory over time.

The memory model is Table 1 of [BEHJS24], literally. At any time memory holds activations
``a^i``, saved data ``ā^i`` of stages and one gradient; it starts with the network's input
``a^0`` and the gradient ``δ^n`` of the loss.

=======  ==========================  ======================  =========================
op       needs                       adds                    removes
=======  ==========================  ======================  =========================
``Fn``   ``a^i`` itself              ``a^{i+1}``             ``a^i``
``Fc``   ``a^i``, or ``ā`` of i-1    ``a^{i+1}``             --
``Fa``   ``a^i``, or ``ā`` of i-1    ``ā`` of i              --
``B``    ``δ^{i+1}``, ``ā`` of i,    ``δ^i``                 ``δ^{i+1}``, ``ā`` of i,
         ``a^i`` or ``ā`` of i-1                             ``a^i`` if stored
=======  ==========================  ======================  =========================

While an operation runs, memory is all that is stored before it, what it adds, and its
stage's overhead, or its own where the caller knows that. A skip is in memory while any stored
item has it, and counts once: an activation has the skips that are part of it, saved data those
that are part of its stage's output. The gradient of a skip also counts once, while ``B`` holds
the gradients of its output and of its input. This module shares no code with any solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import assert_never

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import ChainProfile
from chainstay.schedule import Discards, Op, OpKind, Schedule

__all__ = ["InvalidOperationError", "Replay", "Snapshot", "simulate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Memory around one operation.

    Attributes:
        op: The operation.
        start: Time at which it starts, in ns.
        end: Time at which it ends, in ns.
        during_bytes: Memory while it runs, its overhead included.
        activation_bytes: Bytes of the activations ``a^i`` stored after it, ``a^0`` included.
        saved_bytes: Bytes of the saved data stored after it, without skips that activations have.
        gradient_bytes: Bytes of the gradient stored after it.
    """

    op: Op
    start: int
    end: int
    during_bytes: int
    activation_bytes: int
    saved_bytes: int
    gradient_bytes: int

    @property
    def after_bytes(self) -> int:
        """All bytes stored after the operation."""
        return self.activation_bytes + self.saved_bytes + self.gradient_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The result of simulating a schedule.

    Attributes:
        makespan: Total time, in ns.
        peak_bytes: The most bytes in use at any time.
        timeline: One snapshot per operation.
    """

    makespan: int
    peak_bytes: int
    timeline: tuple[Snapshot, ...]


def simulate(
    profile: ChainProfile,
    schedule: Schedule,
    *,
    discards: Discards | str = Discards.TABLE1,
    overheads: Sequence[int] | None = None,
) -> Replay:
    """Replay `schedule` on `profile` under the rules that `discards` names.

    Args:
        profile: The chain.
        schedule: The schedule to replay.
        discards: ``"table1"``, ``"tape"`` or ``"free"``; see `Discards`.
        overheads: Bytes that each operation needs while it runs besides what is stored, in
            place of its stage's in the profile, where more is known of this schedule.

    Returns:
        The replay; comparing its peak with a budget is the caller's business.

    Raises:
        InvalidScheduleError: An operation lacks what it needs (``error.index`` says which),
            or the schedule ends before the gradient of the input is there.
        ValueError: Unknown `discards`, or not one of `overheads` per operation.

    Example:
        >>> from chainstay.profiles import Stage
        >>> stage = Stage(forward_time=2, backward_time=3, output_bytes=10, saved_bytes=30)
        >>> chain = ChainProfile(input_bytes=5, input_gradient_bytes=0, stages=(stage, stage))
        >>> replay = simulate(chain, Schedule.parse("Fc0 Fa1 B1 Fa0 B0"))
        >>> replay.makespan, replay.peak_bytes
        (12, 45)
    """
    memory = _ChainMemory(profile, Discards(discards))
    timeline: list[Snapshot] = []
    clock = 0
    if overheads is not None and len(overheads) != len(schedule):
        raise ValueError(
            f"there are {len(overheads)} overheads for {len(schedule)} operations; give one to each"
        )
    for index, (op, overhead) in enumerate(zip(schedule, overheads or repeat(None), strict=False)):
        start = clock
        try:
            during_bytes = memory.apply(op, overhead)
        except InvalidOperationError as refusal:
            raise InvalidScheduleError(str(refusal), index=index, ops=schedule.ops) from None
        clock += _duration(profile, op)
        timeline.append(
            Snapshot(
                op=op,
                start=start,
                end=clock,
                during_bytes=during_bytes,
                activation_bytes=memory.activation_bytes(),
                saved_bytes=memory.saved_bytes(),
                gradient_bytes=memory.gradient_bytes(),
            )
        )
    if memory.gradient > 0:
        raise InvalidScheduleError(
            f"the schedule ends before B{memory.gradient - 1}; every stage needs its backward"
        )
    peak_bytes = max(snapshot.during_bytes for snapshot in timeline)
    return Replay(makespan=clock, peak_bytes=peak_bytes, timeline=tuple(timeline))


class InvalidOperationError(Exception):
    """The reason why one operation cannot run; the simulators add its position in the schedule."""


@dataclass(slots=True)
class _ChainMemory:
    """The stored data: activations and saved data by index, and one gradient.

    Attributes:
        profile: The chain.
        discards: The rules that say what may be dropped.
        activations: Indices of the stored activations.
        saved: Indices of the stages whose saved data is stored.
        gradient: Index of the gradient that is held.
        own_activation_bytes: Bytes of each activation without its skips.
        own_saved_bytes: Bytes of each stage's saved data without its skips.
        skips_in: Indices of the skips that each activation has.
    """

    profile: ChainProfile
    discards: Discards
    activations: set[int] = field(default_factory=lambda: {0})
    saved: set[int] = field(default_factory=set)
    gradient: int = -1
    own_activation_bytes: tuple[int, ...] = ()
    own_saved_bytes: tuple[int, ...] = ()
    skips_in: tuple[frozenset[int], ...] = ()

    def __post_init__(self) -> None:
        profile = self.profile
        self.gradient = len(profile)
        self.skips_in = tuple(
            frozenset(k for k, skip in enumerate(profile.skips) if i in skip.states)
            for i in range(len(profile) + 1)
        )
        self.own_activation_bytes = tuple(
            profile.activation_bytes(i) - self._skip_bytes(self.skips_in[i])
            for i in range(len(profile) + 1)
        )
        self.own_saved_bytes = tuple(
            stage.saved_bytes - sum(s.bytes for s in profile.skips if s.first == i + 1)
            for i, stage in enumerate(profile.stages)
        )

    def activation_bytes(self) -> int:
        """Return the bytes of all stored activations; each skip in them counts once."""
        own = sum(self.own_activation_bytes[index] for index in self.activations)
        return own + self._skip_bytes(self._skips_in_activations())

    def saved_bytes(self) -> int:
        """Return the bytes of saved data; a skip counts once, or not if an activation has it."""
        own = sum(self.own_saved_bytes[stage] for stage in self.saved)
        in_saved = frozenset[int]().union(*(self.skips_in[stage + 1] for stage in self.saved))
        return own + self._skip_bytes(in_saved - self._skips_in_activations())

    def gradient_bytes(self) -> int:
        return self.profile.gradient_bytes(self.gradient)

    def stored_bytes(self) -> int:
        return self.activation_bytes() + self.saved_bytes() + self.gradient_bytes()

    def apply(self, op: Op, overhead_bytes: int | None = None) -> int:
        """Run `op` and return the bytes in use meanwhile, with the stage's overhead by default."""
        if op.branch is not None:
            raise InvalidOperationError(f"{op} names a branch, and this chain has none")
        if op.stage >= len(self.profile):
            raise InvalidOperationError(
                f"{op} names stage {op.stage}, the last one is {len(self.profile) - 1}"
            )
        match op.kind:
            case OpKind.FORWARD_DROP | OpKind.FORWARD_KEEP_INPUT | OpKind.FORWARD_KEEP_ALL:
                during_bytes = self._forward(op)
            case OpKind.BACKWARD:
                during_bytes = self._backward(op)
            case OpKind.DISCARD_ACTIVATION | OpKind.DISCARD_SAVED:
                during_bytes = self._discard(op)
            case OpKind.TURN:
                raise InvalidOperationError(
                    f"{op} is an operation of joins, and this is a single chain"
                )
            case (
                OpKind.OFFLOAD_ACTIVATION
                | OpKind.OFFLOAD_SAVED
                | OpKind.PREFETCH_ACTIVATION
                | OpKind.PREFETCH_SAVED
            ):
                raise InvalidOperationError(f"{op} moves data over a link, and here there is none")
            case _:
                assert_never(op.kind)
        if self.discards is Discards.TAPE:
            self._require_tape(op)
        return during_bytes + (self._overhead(op) if overhead_bytes is None else overhead_bytes)

    def _overhead(self, op: Op) -> int:
        stage = self.profile.stages[op.stage]
        if op.kind.is_forward:
            return stage.forward_overhead_bytes
        return stage.backward_overhead_bytes if op.kind is OpKind.BACKWARD else 0

    def _forward(self, op: Op) -> int:
        stage = op.stage
        if op.kind is OpKind.FORWARD_DROP and stage not in self.activations:
            raise InvalidOperationError(
                f"{op} needs a{stage} itself to drop it, and it is not stored"
            )
        self._require_input(op)
        if op.kind is OpKind.FORWARD_KEEP_ALL:
            self.saved.add(stage)
        else:
            self.activations.add(stage + 1)
        during_bytes = self.stored_bytes()
        if op.kind is OpKind.FORWARD_DROP:
            self.activations.remove(stage)
        return during_bytes

    def _backward(self, op: Op) -> int:
        stage = op.stage
        if self.gradient != stage + 1:
            raise InvalidOperationError(
                f"{op} needs the gradient of a{stage + 1}, but that of a{self.gradient} is held"
            )
        if stage not in self.saved:
            raise InvalidOperationError(f"{op} needs what Fa{stage} saves, and it is not stored")
        self._require_input(op)
        passed_on = sum(
            self.profile.skips[k].gradient_bytes
            for k in self.skips_in[stage] & self.skips_in[stage + 1]
        )
        during_bytes = self.stored_bytes() + self.profile.gradient_bytes(stage) - passed_on
        self.gradient = stage
        self.saved.remove(stage)
        self.activations.discard(stage)
        return during_bytes

    def _discard(self, op: Op) -> int:
        if self.discards is Discards.TABLE1:
            raise InvalidOperationError(
                f"{op} is a discard, and under 'table1' only Fn and B remove data"
            )
        if op == Op(OpKind.DISCARD_ACTIVATION, 0):
            raise InvalidOperationError(
                "Da0 would drop the network's input, which nothing can recompute"
            )
        stored = self.saved if op.kind is OpKind.DISCARD_SAVED else self.activations
        if op.stage not in stored:
            raise InvalidOperationError(f"{op} drops what is not stored")
        during_bytes = self.stored_bytes()
        stored.remove(op.stage)
        return during_bytes

    def _require_input(self, op: Op) -> None:
        if op.stage == 0 and not self._has_input(0):
            raise InvalidOperationError(f"{op} needs the network's input a0, which is gone")
        if not self._has_input(op.stage):
            raise InvalidOperationError(
                f"{op} needs its input a{op.stage}, and neither it nor what Fa{op.stage - 1} "
                "saves is stored"
            )

    def _require_tape(self, op: Op) -> None:
        for stage in self.saved:
            if not self._has_input(stage):
                raise InvalidOperationError(
                    f"{op} removes the input of stage {stage}, whose saved data stays"
                )

    def _has_input(self, stage: int) -> bool:
        return stage in self.activations or stage - 1 in self.saved

    def _skips_in_activations(self) -> frozenset[int]:
        return frozenset[int]().union(*(self.skips_in[index] for index in self.activations))

    def _skip_bytes(self, indices: frozenset[int]) -> int:
        return sum(self.profile.skips[k].bytes for k in indices)


def _duration(profile: ChainProfile, op: Op) -> int:
    stage = profile.stages[op.stage]
    if op.kind.is_forward:
        return stage.forward_time
    return stage.backward_time if op.kind is OpKind.BACKWARD else 0
