"""A program list as what the host does before each computation: transfers, and waits for memory.

The simulator of a program list lets every operation wait until it can start. A runtime does
not know when that will be, and need not: it counts bytes in the order of the list, and makes
a computation (or a prefetch) wait for the oldest offloads just where its memory would not fit
beside theirs. So what is held never exceeds the budget, however fast the link is, and nothing
waits that need not.

Two differences from the list, neither of which takes memory or time:

* What is issued while a computation runs is issued just before it where its data and memory
  are there already: a computing thread is busy then, and a stream's next event comes after.
* An activation whose memory nobody needs while it is away is not sent.

A tensor that several states share stays from its making to its stage's backward.

The loss is the user's: its forward and backward are one computation here, between the end of
the model's forward and the backward of its last stage. So is what the user holds: the input,
and the model's output with what the last stage saves, stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import accumulate
from typing import Final

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import ChainProfile, OffloadProfile
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.units import format_bytes

__all__ = ["Act", "Action", "TransferPlan", "movable_profile", "plan_transfers"]


class Act(Enum):
    """What the host does about the saved data of a stage.

    Attributes:
        SEND: Start sending it to the host.
        RELEASE: Wait until it has been sent, and let its device memory go.
        FETCH: Allocate device memory and start bringing it back.
    """

    SEND = "send"
    RELEASE = "release"
    FETCH = "fetch"


@dataclass(frozen=True, slots=True)
class Action:
    """One of the three, of what stage `stage` saved."""

    act: Act
    stage: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferPlan:
    """What to do about saved data, and when.

    Attributes:
        before_forward: Per stage, before its forward; one more for the end of the last one.
        before_backward: Per stage, before its backward.
        moved: Stages whose saved data goes to the host.
        host_bytes: The most in host memory at any time.
        peak_bytes: The most on the device, at most the budget. A simulation may tell of less:
            there, memory is free when a transfer ends, not just when somebody needs it.
    """

    before_forward: tuple[tuple[Action, ...], ...]
    before_backward: tuple[tuple[Action, ...], ...]
    moved: frozenset[int]
    host_bytes: int
    peak_bytes: int


def movable_profile(profile: ChainProfile) -> OffloadProfile:
    """What can be moved of a chain; the rest is needed beside it while it is there.

    That is the input, the caller's, and what several states share: `OffloadProfile.from_chain`
    refuses the latter, for its activations are apart.
    """
    apart = OffloadProfile.from_chain(replace(profile, skips=()))
    sizes, forward, backward = map(
        list, (apart.activations, apart.forward_overheads, apart.backward_overheads)
    )
    staying = [(0, sizes[0])]
    staying += [(skip.first, skip.bytes) for skip in profile.skips if skip.first]
    for first, size in staying:
        sizes[first] -= size
        for stage in range(max(first - 1, 0), len(apart)):
            forward[stage] += size
            backward[stage] += size
    return replace(
        apart,
        activations=tuple(sizes),
        forward_overheads=tuple(forward),
        backward_overheads=tuple(backward),
    )


def plan_transfers(schedule: Schedule, profile: OffloadProfile, budget: int) -> TransferPlan:
    """Cut a program list into what happens before each computation.

    Args:
        schedule: Every ``Fa`` and ``B`` once, in their order, with ``Oa`` and ``Pa`` between.
        profile: What the chain costs, the loss being its last stage.
        budget: Bytes on the device.

    Raises:
        InvalidScheduleError: An operation that is none of these, out of order, or without the
            memory that it needs.

    Complexity:
        O(len(schedule) + n m) for m activations that move.
    """
    walk = _Walk(profile, budget, list(_gaps(schedule, profile)))
    for position in range(len(walk.gaps)):
        walk.take(position)
    stages = len(profile) - 1
    actions = [tuple(each for each in some if each.stage in walk.let_go) for some in walk.actions]
    return TransferPlan(
        before_forward=tuple(actions[: stages + 1]),
        before_backward=tuple(reversed(actions[stages + 1 :])),
        moved=frozenset(walk.let_go),
        host_bytes=_most_on_host(actions, profile),
        peak_bytes=walk.peak,
    )


def _most_on_host(actions: Iterable[tuple[Action, ...]], profile: OffloadProfile) -> int:
    signs = {Act.SEND: 1, Act.RELEASE: 0, Act.FETCH: -1}
    changes = (
        signs[each.act] * profile.activations[each.stage + 1] for some in actions for each in some
    )
    return max(accumulate(changes), default=0)


_TRANSFERS: Final = (OpKind.OFFLOAD_ACTIVATION, OpKind.PREFETCH_ACTIVATION)


def _gaps(schedule: Schedule, profile: OffloadProfile) -> Iterator[list[Op]]:
    """The transfers in front of each computation; the loss's two are one computation."""
    stages = len(profile)
    expected = list(Schedule.keep_all(stages))
    position, gap = 0, list[Op]()
    for index, op in enumerate(schedule):
        reason = None
        if op.kind in _TRANSFERS and op.branch is None:
            if not 0 <= op.stage < stages:
                reason = f"{op} names a{op.stage}; a0 to a{stages - 1} can be moved"
            elif 0 < op.stage < stages - 1:  # the others are the caller's
                gap.append(op)
        elif position == len(expected) or op != expected[position]:
            following = expected[position] if position < len(expected) else "nothing"
            reason = f"{op} is out of order; the next computation is {following}"
        else:
            if position != stages:  # between the loss's two nobody can do anything
                yield gap
                gap = []
            position += 1
        if reason is not None:
            raise InvalidScheduleError(reason, index=index, ops=schedule.ops)
    if gap:
        raise InvalidScheduleError(f"{gap[0]} comes after the last computation")
    if position < len(expected):
        raise InvalidScheduleError(f"the schedule ends before {expected[position]}")


@dataclass(slots=True)
class _Walk:
    """The computations one by one, in bytes.

    Attributes:
        profile: Costs.
        budget: Bytes.
        gaps: The transfers in front of each computation that are still to be issued.
        actions: What to do in front of each.
        memory: In use.
        peak: The most so far.
        leaving: Stages whose saved data has been sent and still is on the device, oldest first.
        sent: Stages whose saved data has been sent.
        fetched: Those of them whose saved data is back, or on its way.
        let_go: Those whose memory somebody needed meanwhile.
    """

    profile: OffloadProfile
    budget: int
    gaps: list[list[Op]]
    actions: list[list[Action]] = field(default_factory=list)
    memory: int = 0
    peak: int = 0
    leaving: list[int] = field(default_factory=list)
    sent: set[int] = field(default_factory=set)
    fetched: set[int] = field(default_factory=set)
    let_go: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.actions = [[] for _ in self.gaps]
        self.memory = self.profile.activations[0]

    def take(self, position: int) -> None:
        """Everything up to the end of the computation at `position`."""
        for op in self.gaps[position]:
            self._issue(op, position)
        computation, (need, growth) = self._name(position), self._costs(position)
        for stage in self._reads(position):
            if stage in self.sent - self.fetched:
                raise InvalidScheduleError(
                    f"{computation} needs a{stage + 1}, which is on the host; issue "
                    f"Pa{stage + 1} before"
                )
        if position == len(self.profile) - 1:
            self._draw_forward(position, need, (OpKind.OFFLOAD_ACTIVATION,))
        self._make_room(need, position, computation)
        if position + 1 < len(self.gaps):
            self._draw_forward(position, need, _TRANSFERS)
        self.peak = max(self.peak, self.memory + need)
        self.memory += growth

    def _draw_forward(self, position: int, need: int, kinds: Collection[OpKind]) -> None:
        """Issue what comes during the computation before it, where all is there for it.

        They keep their order; only between the loss's two computations, where the second may
        wait for their memory, offloads go first.
        """
        waiting: list[Op] = []
        for op in self.gaps[position + 1]:
            is_in_turn = not waiting or len(kinds) == 1
            if is_in_turn and op.kind in kinds and self._is_ready(op, position, need):
                self._issue(op, position)
            else:
                waiting.append(op)
        self.gaps[position + 1] = waiting

    def _is_ready(self, op: Op, position: int, need: int) -> bool:
        stage = op.stage - 1
        if op.kind is OpKind.OFFLOAD_ACTIVATION:
            return stage < position
        if stage in self.leaving:
            return True
        return (
            stage in self.let_go
            and self.memory + need + self.profile.activations[op.stage] <= self.budget
        )

    def _issue(self, op: Op, position: int) -> None:
        stage, size = op.stage - 1, self.profile.activations[op.stage]
        if op.kind is OpKind.OFFLOAD_ACTIVATION:
            if stage in self.sent:
                raise InvalidScheduleError(f"{op} comes a second time")
            if stage >= position or position > 2 * len(self.profile) - 3 - stage:
                raise InvalidScheduleError(f"{op} must come between Fa{stage} and B{stage + 1}")
            self.sent.add(stage)
            self.leaving.append(stage)
            self._do(Act.SEND, stage, position)
            return
        if stage not in self.sent:
            raise InvalidScheduleError(f"{op} brings back a{op.stage}, which was not offloaded")
        if stage in self.fetched:
            raise InvalidScheduleError(f"{op} comes a second time")
        if stage in self.leaving:
            self.leaving.remove(stage)
        else:
            self._make_room(size, position, str(op))
            self.memory += size
        self.fetched.add(stage)
        self._do(Act.FETCH, stage, position)

    def _make_room(self, need: int, position: int, what: str) -> None:
        """Wait for the oldest transfers to the host until `need` bytes more fit."""
        while (total := self.memory + need) > self.budget:
            released = next((stage for stage in self.leaving if stage + 1 < position), None)
            if released is None:
                raise InvalidScheduleError(
                    f"{what} needs {format_bytes(need)} beside {format_bytes(self.memory)} that "
                    f"nothing issued before it will free, {total - self.budget} bytes more than "
                    f"the budget of {format_bytes(self.budget)}; the input and the output are the "
                    "caller's and stay: solve for measured.offload_profile"
                )
            self.leaving.remove(released)
            self.let_go.add(released)
            self.memory -= self.profile.activations[released + 1]
            self._do(Act.RELEASE, released, position)

    def _do(self, act: Act, stage: int, position: int) -> None:
        self.actions[position].append(Action(act, stage))

    def _costs(self, position: int) -> tuple[int, int]:
        """Bytes that a computation needs, and those that are in use more after it."""
        profile, last = self.profile, len(self.profile) - 1
        x, y = profile.activations, profile.gradients
        if position < last:
            return x[position + 1] + profile.forward_overheads[position], x[position + 1]
        if position == last:
            backward = y[last] + y[last + 1] + profile.backward_overheads[last]
            need = x[last + 1] + max(profile.forward_overheads[last], backward)
            return need, y[last]
        i = 2 * last - position
        return y[i] + profile.backward_overheads[i], y[i] - x[i + 1] - y[i + 1]

    def _reads(self, position: int) -> tuple[int, ...]:
        """Stages whose saved data a backward reads."""
        last = len(self.profile) - 1
        if position <= last:
            return ()
        i = 2 * last - position
        return (i - 1, i) if i else (i,)

    def _name(self, position: int) -> str:
        last = len(self.profile) - 1
        if position == last:
            return "the loss"
        return f"Fa{position}" if position < last else f"B{2 * last - position}"
