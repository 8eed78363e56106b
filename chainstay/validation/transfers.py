"""What a program list means: events in time, one link, whole transfers. The referee.

A program list is the order in which the host issues computations, offloads and prefetches.
The host waits until the operation at hand can start: a computation, for the previous one,
its data and its memory; a prefetch, for the link, its offload and its memory; an offload is
queued without waiting. So memory is acquired in the order of the list, and so is the link.
Everything starts as early as that allows.

Proposition 1 of [BES20] fixes sets and orders of transfers only. Then prefetches, as early
as possible, may take the memory that computations before them need, and nothing goes on:
the order between prefetches and computations is part of the plan.

Sizes and times are whole numbers here: bytes, and ticks of the link.
"""

from __future__ import annotations

import copy
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import Link, OffloadProfile
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.timetable import Move, Time, Timetable, exact

__all__ = ["Machine", "RefusedError", "TransferReplay", "simulate_offload"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReplay:
    """What a plan with transfers does.

    Attributes:
        makespan: When the last backward ends.
        peak_bytes: The most memory in use at any time.
        timetable: When everything happens.
    """

    makespan: Time
    peak_bytes: int
    timetable: Timetable


def simulate_offload(
    profile: OffloadProfile, schedule: Schedule, *, budget: int, link: Link
) -> TransferReplay:
    """Run a program list on a device of `budget` bytes.

    Args:
        profile: Costs of n stages.
        schedule: Every ``Fa`` and ``B`` once, in their order, with ``Oa`` and ``Pa`` between.
        budget: Bytes.
        link: To the host.

    Raises:
        InvalidScheduleError: An operation that cannot run, or that waits for memory or data
            which nothing issued before it will provide.

    Example:
        >>> profile = OffloadProfile(activations=(2, 3, 4), gradients=(0, 0, 0),
        ...     forward_overheads=(0, 1), backward_overheads=(0, 0),
        ...     forward_times=(1, 2), backward_times=(2, 3))
        >>> schedule = Schedule.parse("Oa0 Fa0 Fa1 B1 Pa0 B0")
        >>> simulate_offload(profile, schedule, budget=8, link=Link(bandwidth=2)).makespan
        9
    """
    index = None
    try:
        machine = Machine(profile, budget, link)
        for index, op in enumerate(schedule):  # noqa: B007  # of the operation that is refused
            machine.issue(op)
        index = None
        machine.finish()
    except RefusedError as refusal:
        raise InvalidScheduleError(str(refusal), index=index, ops=schedule.ops) from None
    return machine.replay()


class RefusedError(Exception):
    """Why an operation cannot run."""


_RANKS: Final = {
    OpKind.FORWARD_KEEP_ALL: 0,
    OpKind.BACKWARD: 0,
    OpKind.OFFLOAD_ACTIVATION: 1,
    OpKind.PREFETCH_ACTIVATION: 2,
}
"""Among events at one time; no two operations of equal rank run at once."""


@dataclass(slots=True)
class Machine:
    """A device, its link and a host that issues operations: the state of a simulation."""

    profile: OffloadProfile
    budget: int
    link: Link
    now: int = 0
    memory: int = 0
    peak: int = 0
    events: list[tuple[int, int, Op]] = field(default_factory=list)
    computing: Op | None = None
    issued: int = 0
    queue: deque[Op] = field(default_factory=deque)
    busy: set[str] = field(default_factory=set)
    produced: set[int] = field(default_factory=lambda: {0})
    used: set[int] = field(default_factory=set)
    offloads: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    prefetches: set[int] = field(default_factory=set)
    arrived: set[int] = field(default_factory=set)
    starts: list[int] = field(default_factory=list)
    moves: list[tuple[Op, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.memory = self.peak = self.profile.activations[0]
        if self.memory > self.budget:
            raise RefusedError(
                f"the network's input has {self.memory} bytes, the budget is {self.budget}"
            )

    def copy(self) -> Machine:
        """Another machine in the same state."""
        twin = copy.copy(self)
        for name in _CONTAINERS:
            setattr(twin, name, copy.copy(getattr(self, name)))
        return twin

    def issue(self, op: Op) -> None:
        """Wait until `op` can start, and start it (an offload: queue it)."""
        if op.branch is not None:
            raise RefusedError(f"{op} names a branch, and this chain has none")
        match op.kind:
            case OpKind.FORWARD_KEEP_ALL | OpKind.BACKWARD:
                self._compute(op)
            case OpKind.OFFLOAD_ACTIVATION:
                self._offload(op)
            case OpKind.PREFETCH_ACTIVATION:
                self._prefetch(op)
            case _:
                raise RefusedError(
                    f"{op} is not an operation of offloading; write Fa, B, Oa or Pa and a stage"
                )

    def finish(self) -> None:
        """Wait for everything issued."""
        if self.issued < 2 * len(self.profile):
            raise RefusedError(f"the schedule ends before {self._expected()}")
        while self.events:
            self._advance()

    def replay(self) -> TransferReplay:
        """What happened, after `finish`."""
        ticks = self.link.ticks
        moves = sorted(self.moves, key=lambda move: move[1:])
        return TransferReplay(
            makespan=exact(Fraction(self.starts[-1] + self._duration(Op(OpKind.BACKWARD)), ticks)),
            peak_bytes=self.peak,
            timetable=Timetable(
                starts=tuple(exact(Fraction(start, ticks)) for start in self.starts),
                moves=tuple(
                    Move(op, exact(Fraction(start, ticks)), exact(Fraction(end, ticks)))
                    for op, start, end in moves
                ),
            ),
        )

    def _expected(self) -> Op:
        """The computation that comes next."""
        stages = len(self.profile)
        if self.issued < stages:
            return Op(OpKind.FORWARD_KEEP_ALL, self.issued)
        return Op(OpKind.BACKWARD, 2 * stages - 1 - self.issued)

    def _compute(self, op: Op) -> None:
        if self.issued == 2 * len(self.profile):
            raise RefusedError(f"{op} comes after the last backward")
        if op != self._expected():
            raise RefusedError(f"{op} is out of order; {self._expected()} is the next computation")
        profile, i = self.profile, op.stage
        need = profile.activations[i + 1] + profile.forward_overheads[i]
        reads = (i, i + 1) if op.kind is OpKind.BACKWARD else ()
        if op.kind is OpKind.BACKWARD:
            need = profile.gradients[i] + profile.backward_overheads[i]
            need += profile.gradients[i + 1] * (i == len(profile) - 1)
            for j in reads:
                if j in self.offloads and j not in self.prefetches:
                    raise RefusedError(f"{op} needs a{j}, which is on the host; issue Pa{j} before")
        self._wait(
            op,
            need,
            lambda: (
                self.computing is None
                and all(j in self.arrived or j not in self.offloads for j in reads)
            ),
        )
        self._acquire(need)
        self.issued += 1
        self.computing = op
        self.starts.append(self.now)
        heapq.heappush(self.events, (self.now + self._duration(op), _RANKS[op.kind], op))

    def _offload(self, op: Op) -> None:
        j, stages = op.stage, len(self.profile)
        if j >= stages:
            raise RefusedError(f"{op} names a{j}; only a0 to a{stages - 1} can be offloaded")
        if j in self.offloads:
            raise RefusedError(f"{op} comes a second time")
        if self.issued < j:
            raise RefusedError(f"{op} comes before Fa{j - 1}, which makes a{j}")
        if self.issued > 2 * stages - 1 - j:
            raise RefusedError(f"{op} comes after B{j}, which a{j} has to be back for")
        self.offloads.add(j)
        self.queue.append(op)
        self._settle()

    def _prefetch(self, op: Op) -> None:
        j = op.stage
        if j not in self.offloads:
            raise RefusedError(f"{op} brings back a{j}, which was not offloaded")
        if j in self.prefetches:
            raise RefusedError(f"{op} comes a second time")
        size = self.profile.activations[j]
        self._wait(
            op,
            size,
            lambda: (
                j in self.left
                and j in self.used
                and self._channel(op) not in self.busy
                and (self.link.is_full_duplex or not self.queue)
            ),
        )
        self._acquire(size)
        self.prefetches.add(j)
        self._start_move(op)

    def _wait(self, op: Op, need: int, is_ready: Callable[[], bool]) -> None:
        """Let time pass until `op` can start with `need` bytes more."""
        self._settle()
        while not (is_ready() and self.memory + need <= self.budget):
            if not self.events:
                raise RefusedError(self._deadlock(op, need))
            self._advance()

    def _deadlock(self, op: Op, need: int) -> str:
        if (total := self.memory + need) > self.budget:
            return (
                f"{op} waits for ever: it needs {need} bytes beside the {self.memory} in use, "
                f"{total - self.budget} more than the budget of {self.budget}"
            )
        return f"{op} waits for ever: what it needs comes later in the schedule"

    def _advance(self) -> None:
        """Let time pass until the next event, and see what it changes."""
        self.now = self.events[0][0]
        self._settle()

    def _settle(self) -> None:
        """All that ends by now ends, and what the link can start starts."""
        while True:
            if self.events and self.events[0][0] <= self.now:
                _, _, op = heapq.heappop(self.events)
                self._moved(op) if op.kind.is_transfer else self._computed(op)
            elif (
                self.queue
                and self._channel(self.queue[0]) not in self.busy
                and self.queue[0].stage in self.produced
            ):
                self._start_move(self.queue.popleft())
            else:
                return

    def _computed(self, op: Op) -> None:
        profile, i = self.profile, op.stage
        self.computing = None
        if op.kind is OpKind.BACKWARD:
            self.memory -= profile.backward_overheads[i]
            self.memory -= profile.activations[i + 1] + profile.gradients[i + 1]
            self.memory -= profile.activations[0] * (i == 0)
            return
        self.memory -= profile.forward_overheads[i]
        self.produced.add(i + 1)
        self.used.add(i)
        if i in self.left:
            self.memory -= profile.activations[i]

    def _moved(self, op: Op) -> None:
        self.busy.discard(self._channel(op))
        if op.kind is OpKind.PREFETCH_ACTIVATION:
            self.arrived.add(op.stage)
            return
        self.left.add(op.stage)
        if op.stage in self.used:
            self.memory -= self.profile.activations[op.stage]

    def _start_move(self, op: Op) -> None:
        end = self.now + self.link.transfer_ticks(self.profile.activations[op.stage])
        self.busy.add(self._channel(op))
        self.moves.append((op, self.now, end))
        heapq.heappush(self.events, (end, _RANKS[op.kind], op))

    def _channel(self, op: Op) -> str:
        return str(op.kind) if self.link.is_full_duplex else "both"

    def _acquire(self, need: int) -> None:
        self.memory += need
        self.peak = max(self.peak, self.memory)

    def _duration(self, op: Op) -> int:
        is_backward = op.kind is OpKind.BACKWARD
        times = self.profile.backward_times if is_backward else self.profile.forward_times
        return times[op.stage] * self.link.ticks


_CONTAINERS: Final = (
    "events",
    "queue",
    "busy",
    "produced",
    "used",
    "offloads",
    "left",
    "prefetches",
    "arrived",
    "starts",
    "moves",
)
