"""A device, its link and a host that issues operations: the base of both simulators of transfers.

The host issues one operation after the other and waits until the one at hand can start.
Offloads are queued; the link serves them first in, first out, one transfer at a time (or one
per direction). An offload takes its bytes on the host when it starts, and holds them until the
last prefetch of the item has ended. Everything starts as early as that allows.

Subclasses say what computations and prefetches need, make and free.
"""

from __future__ import annotations

import copy
import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, Final, Self

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import ChainProfile, Link, OffloadProfile
from chainstay.schedule import Op, Schedule
from chainstay.timetable import Move, Time, Timetable, exact
from chainstay.validation.simulate import InvalidOperationError


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReplay:
    """The result of simulating a schedule with transfers.

    Attributes:
        makespan: Time at which the last backward ends, in ns.
        peak_bytes: The most bytes in use on the device at any time.
        timetable: Start of every computation, and start and end of every transfer, in ns.
        host_bytes: The most bytes on the host at any time.
    """

    makespan: Time
    peak_bytes: int
    timetable: Timetable
    host_bytes: int = 0


_COMPUTES: Final = 0
"""Rank among events at one time; no two of equal rank run at once. Transfers come after."""


@dataclass(slots=True)
class EventMachine(ABC):
    """The state of a simulation of a device, its link and the host that issues operations.

    Attributes:
        profile: Costs of the chain.
        budget: Bytes on the device.
        link: The link to the host.
        now: Current time, in ticks of the link.
        memory: Bytes in use on the device.
        peak: The most bytes in use on the device so far.
        computing: The computation that is running.
        ends: End of the last computation issued, in ticks.
        events: A heap of running operations: end in ticks, rank at equal ends, operation.
        queue: Offloads issued and not yet started.
        busy: The directions of the link that are in use; ``False`` is the way to the host, and
            both ways if it is half-duplex.
        held: Bytes on the host.
        most_held: The most bytes on the host so far.
        starts: Starts of the computations issued so far, in ticks.
        moves: Transfers started so far: operation, start and end in ticks.
        watch: Function that is called with the machine whenever time has passed, or `run` has
            issued an operation.
    """

    profile: ChainProfile | OffloadProfile
    budget: int
    link: Link
    now: int = 0
    memory: int = 0
    peak: int = 0
    computing: Op | None = None
    ends: int = 0
    events: list[tuple[int, int, Op]] = field(default_factory=list)
    queue: tuple[Op, ...] = ()
    busy: set[bool] = field(default_factory=set)
    held: int = 0
    most_held: int = 0
    starts: list[int] = field(default_factory=list)
    moves: list[tuple[Op, int, int]] = field(default_factory=list)
    watch: Callable[[Any], None] = lambda _: None

    def copy(self) -> Self:
        """Return another machine in the same state."""
        twin = copy.copy(self)
        for state in fields(self):
            if isinstance(value := getattr(self, state.name), list | set | dict):
                setattr(twin, state.name, value.copy())
        return twin

    def _run(self, schedule: Schedule, issue: Callable[[int, Op], None]) -> TransferReplay:
        """Issue all operations, wait until they have ended, and return what happened.

        Args:
            schedule: The operations.
            issue: Issues an operation, given its index and itself.

        Raises:
            InvalidScheduleError: An operation cannot run, or waits for memory or data which
                nothing issued before it will provide.
        """
        index = None
        try:
            for index, op in enumerate(schedule):
                issue(index, op)
                self.watch(self)
            index = None
            self.finish()
        except InvalidOperationError as refusal:
            raise InvalidScheduleError(str(refusal), index=index, ops=schedule.ops) from None
        return self._replay()

    def finish(self) -> None:
        """Wait until everything issued has ended.

        Raises:
            InvalidOperationError: The schedule is not complete, or a transfer never starts.
        """
        if missing := self._missing_end():
            raise InvalidOperationError(missing)
        while self.events:
            self._advance()
        if self.queue:
            raise InvalidOperationError(self._no_room_on_the_host(self.queue[0]))

    def _replay(self) -> TransferReplay:
        ticks = self.link.ticks
        moves = sorted(self.moves, key=lambda move: move[1:])
        return TransferReplay(
            makespan=exact(Fraction(self.ends, ticks)),
            peak_bytes=self.peak,
            timetable=Timetable(
                starts=tuple(exact(Fraction(start, ticks)) for start in self.starts),
                moves=tuple(
                    Move(op, exact(Fraction(start, ticks)), exact(Fraction(end, ticks)))
                    for op, start, end in moves
                ),
            ),
            host_bytes=self.most_held,
        )

    @abstractmethod
    def issue(self, op: Op) -> None:
        """Wait until `op` can start, and start it; queue an offload and note a discard instead."""

    @abstractmethod
    def moved_bytes(self, op: Op) -> int:
        """Return the bytes that the transfer `op` moves."""

    @abstractmethod
    def _missing_end(self) -> str:
        """Return why a schedule cannot end here, or an empty text if it can."""

    @abstractmethod
    def _can_leave(self, op: Op) -> bool:
        """Return whether the data of the offload `op` has been computed."""

    @abstractmethod
    def _moved(self, op: Op) -> None:
        """Update the state after a transfer has ended."""

    @abstractmethod
    def _computed(self, op: Op) -> None:
        """Update the state after a computation has ended."""

    @abstractmethod
    def _free(self) -> None:
        """Free the memory of items that nothing needs any more."""

    def _wait(self, op: Op, need: int, is_ready: Callable[[], bool]) -> None:
        """Let time pass until `op` can start with `need` bytes more."""
        self._settle()
        while not (is_ready() and self.memory + need <= self.budget):
            if not self.events:
                raise InvalidOperationError(self._deadlock(op, need))
            self._advance()

    def _deadlock(self, op: Op, need: int) -> str:
        if self.queue and self._can_leave(self.queue[0]):
            return self._no_room_on_the_host(self.queue[0])
        if (total := self.memory + need) > self.budget:
            return (
                f"{op} waits for ever: it needs {need} bytes beside the {self.memory} in use, "
                f"{total - self.budget} more than the budget of {self.budget}"
            )
        return f"{op} waits for ever: what it needs comes later in the schedule"

    def _no_room_on_the_host(self, op: Op) -> str:
        return (
            f"{op} waits for ever: it needs {self.moved_bytes(op)} bytes beside the {self.held} "
            f"that are on the host, where {self.link.capacity} are allowed"
        )

    def _advance(self) -> None:
        """Let time pass until the next event, and see what it changes."""
        self.now = self.events[0][0]
        self._settle()
        self.watch(self)

    def _settle(self) -> None:
        """End everything that ends by now, and start the offloads that the link can serve."""
        while True:
            self._free()
            if self.events and self.events[0][0] <= self.now:
                _, _, op = heapq.heappop(self.events)
                if op.kind.is_transfer:
                    self.busy.discard(self._channel(op))
                    self._moved(op)
                else:
                    self._computed(op)
            elif self._can_offload():
                op, *rest = self.queue
                self.queue = tuple(rest)
                self.held += self.moved_bytes(op)
                self.most_held = max(self.most_held, self.held)
                self._start_move(op)
            else:
                return

    def _can_offload(self) -> bool:
        """Return whether the oldest queued offload can start."""
        if not self.queue:
            return False
        op = self.queue[0]
        has_room = self.held + self.moved_bytes(op) <= self.link.room
        return has_room and self._channel(op) not in self.busy and self._can_leave(op)

    def _queue(self, op: Op) -> None:
        """Queue an offload; it starts when the link has served those before it."""
        self.queue += (op,)
        self._settle()

    def _is_link_free(self, op: Op) -> bool:
        """Return whether the link is free for the prefetch `op`; queued offloads go first."""
        is_shared = not self.link.is_full_duplex
        return self._channel(op) not in self.busy and not (is_shared and self.queue)

    def _compute(self, op: Op, ticks: int) -> None:
        """Start the computation `op`, which takes `ticks`."""
        self.computing = op
        self.starts.append(self.now)
        self.ends = self.now + ticks
        heapq.heappush(self.events, (self.ends, _COMPUTES, op))

    def _start_move(self, op: Op) -> None:
        end = self.now + self.link.transfer_ticks(self.moved_bytes(op))
        self.busy.add(self._channel(op))
        self.moves.append((op, self.now, end))
        heapq.heappush(self.events, (end, 1 + op.kind.is_prefetch, op))

    def _channel(self, op: Op) -> bool:
        return self.link.is_full_duplex and op.kind.is_prefetch

    def _acquire(self, need: int) -> None:
        self.memory += need
        self.peak = max(self.peak, self.memory)
