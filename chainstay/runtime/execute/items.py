"""Items that may go to the host, and the actions that move them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from itertools import accumulate
from typing import Final, TypeAlias

from chainstay.profiles import ChainProfile, OffloadProfile, Stage
from chainstay.schedule import Item, Op, OpKind, Schedule


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
    last = len(profile) - 1
    standing = [(skip.first - 1, last, skip.bytes) for skip in profile.skips if skip.first]
    return _without_shared(profile, standing, ())


def bounding_chain(profile: ChainProfile) -> ChainProfile:
    """Return `movable_chain` for bounds: shared tensors count only where every schedule needs them.

    That is in the operations of stages that read it or pass it on. A gradient that a backward
    passes on is not there twice.
    """
    standing = [(skip.first - 1, skip.last, skip.bytes) for skip in profile.skips if skip.first]
    return _without_shared(profile, standing, _passed_on(profile))


def standing_bytes(profile: ChainProfile, schedule: Schedule) -> Iterator[int]:
    """Yield the bytes that cannot be moved, per operation, beside `movable_chain`'s items.

    That is the input, and a shared tensor as long as something stored has it, wherever the
    rest of that is. A gradient that a backward hands on unchanged is not there twice.
    """
    returns = {op.item: index for index, op in enumerate(schedule) if op.kind.is_prefetch}
    shared = [(skip.states, skip.bytes) for skip in profile.skips if skip.first]
    passed_on = _sums(profile, _passed_on(profile))
    held: set[Item] = set()
    for index, op in enumerate(schedule):
        works = op.kind.is_computation
        if (made := op.makes) is not None:
            held.add(made)
        states = {item.stage + 1 for item in held}
        size = sum(size for having, size in shared if not states.isdisjoint(having))
        if op.kind is OpKind.BACKWARD:
            size -= passed_on[op.stage]
        yield profile.input_bytes + size if works else 0
        held.difference_update(i for i in op.frees if returns.get(i, -1) < index)


_Part: TypeAlias = tuple[int, int, int]
"""Something that counts in the operations of some stages: the first, the last, and its bytes."""


def _passed_on(profile: ChainProfile) -> list[_Part]:
    """Return the gradients that backwards hand on as they are."""
    return [(skip.first, skip.last - 1, skip.gradient_bytes) for skip in profile.skips]


def _sums(profile: ChainProfile, parts: Iterable[_Part]) -> list[int]:
    """Return the bytes that count for each stage."""
    changes = [0] * (len(profile) + 1)
    for first, last, size in parts:
        changes[max(first, 0)] += size
        changes[last + 1] -= size
    return list(accumulate(changes))


def _without_shared(
    profile: ChainProfile, standing: Iterable[_Part], passed_on: Iterable[_Part]
) -> ChainProfile:
    """Items without what they share, which counts as `standing` in overheads."""
    skips = profile.skips
    stands, passes = _sums(profile, standing), _sums(profile, passed_on)
    in_output = _sums(profile, [(skip.first - 1, skip.last - 1, skip.bytes) for skip in skips])
    made = _sums(profile, [(s.first - 1, s.first - 1, s.bytes) for s in skips if s.first])

    stages = []
    for index, stage in enumerate(profile.stages):
        beside = profile.input_bytes + stands[index]
        passed = beside - passes[index]
        stages.append(_movable_stage(stage, made[index], in_output[index], beside, passed))
    return replace(profile, input_bytes=0, stages=tuple(stages), skips=())


@lru_cache(maxsize=4096)  # a search looks at hundreds of profiles, most stages of which are equal
def _movable_stage(stage: Stage, shared: int, in_output: int, beside: int, passed: int) -> Stage:
    """Return a stage without the bytes that it shares with others, in what it saves and its output.

    Instead, `beside` bytes stand beside its forward, and `passed` beside its backward.
    """
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
        output_bytes=stage.output_bytes - in_output,
        saved_bytes=stage.saved_bytes - shared,
        forward_overhead_bytes=stage.forward_overhead_bytes + beside,
        backward_overhead_bytes=max(0, stage.backward_overhead_bytes + passed),
        options=tuple(options),
    )


def movable_profile(profile: ChainProfile) -> OffloadProfile:
    """The same for plans that run nothing again."""
    return OffloadProfile.from_chain(movable_chain(profile))


def as_chain_schedule(schedule: Schedule) -> Schedule:
    """A program list for an `OffloadProfile` in the names of its chain.

    There the activation ``a^j`` is what stage j - 1 saves. The input is the caller's.
    """
    ops = []
    for op in schedule:
        if op.kind not in _OF_SAVED:
            ops.append(op)
        elif op.stage:
            ops.append(Op(_OF_SAVED[op.kind], op.stage - 1))
    return Schedule(tuple(ops))


_OF_SAVED: Final = {
    OpKind.OFFLOAD_ACTIVATION: OpKind.OFFLOAD_SAVED,
    OpKind.PREFETCH_ACTIVATION: OpKind.PREFETCH_SAVED,
}
