"""Items that may go to the host, and the actions that move them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from chainstay.profiles import ChainProfile, OffloadProfile, Stage
from chainstay.schedule import Item, Op, OpKind, Schedule

__all__ = [
    "Act",
    "Action",
    "Item",
    "TransferPlan",
    "as_chain_schedule",
    "bounding_chain",
    "movable_chain",
    "movable_profile",
    "standing_bytes",
]


class Act(Enum):
    """The actions of the host on an item.

    Attributes:
        SEND: Start sending it to the host.
        RELEASE: Wait until it has been sent, and let its device memory go.
        FETCH: Allocate device memory and start bringing it back; the host's copy goes.
        COPY: The same, and the host keeps its copy.
    """

    SEND = "send"
    RELEASE = "release"
    FETCH = "fetch"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class Action:
    """One action on one item."""

    act: Act
    item: Item

    def __str__(self) -> str:
        return f"{self.act.value} {self.item}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan:
    """The actions on stored items, and when each is due.

    Attributes:
        actions: The actions in front of each computation of the schedule, forwards and backwards.
        moved: Items that go to the host.
        host_bytes: The most in host memory at any time.
        peak_bytes: The most on the device, at most the budget. A simulation may tell of less:
            there, memory is free when a transfer ends, not just when somebody needs it.
    """

    actions: tuple[tuple[Action, ...], ...]
    moved: frozenset[Item]
    host_bytes: int
    peak_bytes: int


def movable_chain(profile: ChainProfile) -> ChainProfile:
    """Return the part of a chain that can be moved; the rest counts as overhead beside it.

    That is the input, the caller's, and what several states share. A shared tensor counts in
    every operation of the stages from its maker on: it is there at most as long as persistent
    schedules need those.
    """
    skips = profile.skips
    return _without_shared(
        profile,
        lambda index: sum(skip.bytes for skip in skips if 0 < skip.first <= index + 1),
        lambda _: 0,
    )


def bounding_chain(profile: ChainProfile) -> ChainProfile:
    """Return `movable_chain` for bounds: shared tensors count only where every schedule needs them.

    That is in the operations of stages that read it or pass it on. A gradient that a backward
    passes on is not there twice.
    """

    def standing(index: int) -> int:
        near = {index, index + 1}
        return sum(s.bytes for s in profile.skips if s.first and not near.isdisjoint(s.states))

    return _without_shared(profile, standing, lambda index: _passed_on(profile, index))


def standing_bytes(profile: ChainProfile, schedule: Schedule) -> Iterator[int]:
    """Yield the bytes that cannot be moved, per operation, beside `movable_chain`'s items.

    That is the input, and a shared tensor as long as something stored has it, wherever the
    rest of that is. A gradient that a backward hands on unchanged is not there twice.
    """
    last = {op: index for index, op in enumerate(schedule) if op.kind.is_prefetch}
    returns = {op.item: index for op, index in last.items()}
    held: set[Item] = set()
    for index, op in enumerate(schedule):
        works = op.kind.is_forward or op.kind is OpKind.BACKWARD
        if (made := op.makes) is not None:
            held.add(made)
        states = {item.stage + 1 for item in held}
        size = sum(s.bytes for s in profile.skips if s.first and not states.isdisjoint(s.states))
        if op.kind is OpKind.BACKWARD:
            size -= _passed_on(profile, op.stage)
        yield profile.input_bytes + size if works else 0
        held.difference_update(i for i in op.frees if returns.get(i, -1) < index)


def _passed_on(profile: ChainProfile, stage: int) -> int:
    """Bytes of gradients that a backward hands on as they are."""
    states = {stage, stage + 1}
    return sum(skip.gradient_bytes for skip in profile.skips if states.issubset(skip.states))


def _without_shared(
    profile: ChainProfile, standing: Callable[[int], int], passed_on: Callable[[int], int]
) -> ChainProfile:
    """Items without what they share, which is in overheads: for a stage, so many bytes."""

    def movable(index: int) -> Stage:
        stage, state = profile.stages[index], index + 1
        beside = profile.input_bytes + standing(index)
        passed = beside - passed_on(index)
        shared = sum(skip.bytes for skip in profile.skips if skip.first == state)
        options = (
            replace(
                option,
                saved_bytes=option.saved_bytes - shared,
                backward_overhead_bytes=max(0, option.backward_overhead_bytes + passed),
                first=replace(option.first, overhead_bytes=option.first.overhead_bytes + beside),
            )
            for option in stage.options
        )
        return replace(
            stage,
            output_bytes=stage.output_bytes
            - sum(skip.bytes for skip in profile.skips if state in skip.states),
            saved_bytes=stage.saved_bytes - shared,
            forward_overhead_bytes=stage.forward_overhead_bytes + beside,
            backward_overhead_bytes=max(0, stage.backward_overhead_bytes + passed),
            options=tuple(options),
        )

    stages = tuple(map(movable, range(len(profile))))
    return replace(profile, input_bytes=0, stages=stages, skips=())


def movable_profile(profile: ChainProfile) -> OffloadProfile:
    """The same for plans that run nothing again."""
    return OffloadProfile.from_chain(movable_chain(profile))


def as_chain_schedule(schedule: Schedule) -> Schedule:
    """A program list for an `OffloadProfile` in the names of its chain.

    There the activation ``a^j`` is what stage j - 1 saves. The input is the caller's.
    """
    return Schedule(tuple(_renamed(schedule)))


def _renamed(schedule: Schedule) -> Iterator[Op]:
    for op in schedule:
        match op.kind:
            case OpKind.OFFLOAD_ACTIVATION if op.stage:
                yield Op(OpKind.OFFLOAD_SAVED, op.stage - 1)
            case OpKind.PREFETCH_ACTIVATION if op.stage:
                yield Op(OpKind.PREFETCH_SAVED, op.stage - 1)
            case OpKind.OFFLOAD_ACTIVATION | OpKind.PREFETCH_ACTIVATION:
                pass
            case _:
                yield op
