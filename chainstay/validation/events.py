"""A device, its links and a host that issues operations: what both referees of transfers share.

The host issues one operation after the other and waits until the one at hand can start.
Offloads are queued; each link serves its own first in, first out, one transfer at a time (or
one per direction). An offload takes its bytes behind the link when it starts, and holds them
until the last prefetch of what it moved has ended. Everything starts as early as that allows.

What computations and prefetches need, make and free is for the machines to say.
"""

from __future__ import annotations

import copy
import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Final, Self

from chainstay.profiles import ChainProfile, Link, OffloadProfile
from chainstay.schedule import Op
from chainstay.timetable import Move, Time, Timetable, exact

__all__ = ["EventMachine", "RefusedError", "TransferReplay"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferReplay:
    """What a plan with transfers does.

    Attributes:
        makespan: When the last backward ends.
        peak_bytes: The most memory in use at any time.
        timetable: When everything happens.
        held_bytes: The most behind each link at any time, the host's first.
    """

    makespan: Time
    peak_bytes: int
    timetable: Timetable
    held_bytes: tuple[int, ...] = (0,)


class RefusedError(Exception):
    """Why an operation cannot run."""


_COMPUTES: Final = 0
"""Rank among events at one time; no two of equal rank run at once. Transfers come after."""


@dataclass(slots=True)
class EventMachine(ABC):
    """The state of a simulation.

    Attributes:
        now: In ticks of the link.
        events: What is under way: when it ends, its rank, and the operation.
        queues: Offloads issued and not yet started, by link.
        busy: Links, or directions of links, that are in use.
        held: Bytes behind each link.
    """

    profile: ChainProfile | OffloadProfile
    budget: int
    link: Link
    now: int = 0
    memory: int = 0
    peak: int = 0
    computing: Op | None = None
    events: list[tuple[int, int, Op]] = field(default_factory=list)
    queues: list[tuple[Op, ...]] = field(default_factory=list)
    busy: set[tuple[int, bool]] = field(default_factory=set)
    held: list[int] = field(default_factory=list)
    most_held: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    moves: list[tuple[Op, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        levels = len(self.link.levels)
        self.queues, self.held, self.most_held = [()] * levels, [0] * levels, [0] * levels

    def copy(self) -> Self:
        """Another machine in the same state."""
        twin = copy.copy(self)
        for each in fields(self):
            if isinstance(value := getattr(self, each.name), list | set | dict):
                setattr(twin, each.name, value.copy())
        return twin

    def finish(self) -> None:
        """Wait for everything issued.

        Raises:
            RefusedError: The schedule is not complete, or a transfer never starts.
        """
        if missing := self._missing_end():
            raise RefusedError(missing)
        while self.events:
            self._advance()
        for queue in self.queues:
            if queue:
                raise RefusedError(self._no_room_behind_the_link(queue[0]))

    def replay(self) -> TransferReplay:
        """What happened, after `finish`."""
        ticks = self.link.ticks
        moves = sorted(self.moves, key=lambda move: move[1:])
        return TransferReplay(
            makespan=exact(Fraction(self._end(), ticks)),
            peak_bytes=self.peak,
            timetable=Timetable(
                starts=tuple(exact(Fraction(start, ticks)) for start in self.starts),
                moves=tuple(
                    Move(op, exact(Fraction(start, ticks)), exact(Fraction(end, ticks)))
                    for op, start, end in moves
                ),
            ),
            held_bytes=tuple(self.most_held),
        )

    @abstractmethod
    def issue(self, op: Op) -> None:
        """Wait until `op` can start, and start it (an offload or discard: note it)."""

    @abstractmethod
    def moved_bytes(self, op: Op) -> int:
        """Of what a transfer moves."""

    @abstractmethod
    def level(self, op: Op) -> int:
        """The link that a transfer uses: 0 to the host, 1 beyond it."""

    @abstractmethod
    def _missing_end(self) -> str:
        """Why a schedule cannot end here; empty if it can."""

    @abstractmethod
    def _end(self) -> int:
        """When the last computation ends, in ticks."""

    @abstractmethod
    def _can_leave(self, op: Op) -> bool:
        """Whether the data of an offload are there."""

    @abstractmethod
    def _moved(self, op: Op) -> None:
        """A transfer has ended."""

    @abstractmethod
    def _computed(self, op: Op) -> None:
        """A computation has ended."""

    @abstractmethod
    def _free(self) -> None:
        """Let go what nothing needs any more."""

    def _wait(self, op: Op, need: int, is_ready: Callable[[], bool]) -> None:
        """Let time pass until `op` can start with `need` bytes more."""
        self._settle()
        while not (is_ready() and self.memory + need <= self.budget):
            if not self.events:
                raise RefusedError(self._deadlock(op, need))
            self._advance()

    def _deadlock(self, op: Op, need: int) -> str:
        for queue in self.queues:
            if queue and self._can_leave(queue[0]):
                return self._no_room_behind_the_link(queue[0])
        if (total := self.memory + need) > self.budget:
            return (
                f"{op} waits for ever: it needs {need} bytes beside the {self.memory} in use, "
                f"{total - self.budget} more than the budget of {self.budget}"
            )
        return f"{op} waits for ever: what it needs comes later in the schedule"

    def _no_room_behind_the_link(self, op: Op) -> str:
        level, size = self.level(op), self.moved_bytes(op)
        capacity = self.link.levels[level].capacity
        return (
            f"{op} waits for ever: it needs {size} bytes beside the {self.held[level]} that are "
            f"{'beyond' if level else 'on'} the host, where {capacity} are allowed"
        )

    def _advance(self) -> None:
        """Let time pass until the next event, and see what it changes."""
        self.now = self.events[0][0]
        self._settle()

    def _settle(self) -> None:
        """All that ends by now ends, and what the links can start starts."""
        while True:
            self._free()
            if self.events and self.events[0][0] <= self.now:
                _, _, op = heapq.heappop(self.events)
                if op.kind.is_transfer:
                    self.busy.discard(self._channel(op))
                    self._moved(op)
                else:
                    self._computed(op)
            elif (level := next(filter(self._can_start, range(len(self.queues))), -1)) >= 0:
                op, *rest = self.queues[level]
                self.queues[level] = tuple(rest)
                self.held[level] += self.moved_bytes(op)
                self.most_held[level] = max(self.most_held[level], self.held[level])
                self._start_move(op)
            else:
                return

    def _can_start(self, level: int) -> bool:
        """Whether the oldest offload of a link can start."""
        if not (queue := self.queues[level]):
            return False
        op, capacity = queue[0], self.link.levels[level].capacity
        has_room = capacity is None or self.held[level] + self.moved_bytes(op) <= capacity
        return has_room and self._channel(op) not in self.busy and self._can_leave(op)

    def _queue(self, op: Op) -> None:
        """An offload, to start when its link has served those before it."""
        self.queues[self.level(op)] += (op,)
        self._settle()

    def _is_link_free(self, op: Op) -> bool:
        """For a prefetch: offloads issued before it go first where they share the link."""
        level = self.level(op)
        is_shared = not self.link.levels[level].is_full_duplex
        return self._channel(op) not in self.busy and not (is_shared and self.queues[level])

    def _compute(self, op: Op, ticks: int) -> None:
        """Start a computation that takes so long."""
        self.computing = op
        self.starts.append(self.now)
        heapq.heappush(self.events, (self.now + ticks, _COMPUTES, op))

    def _start_move(self, op: Op) -> None:
        level = self.level(op)
        end = self.now + self.link.transfer_ticks(self.moved_bytes(op), level)
        self.busy.add(self._channel(op))
        self.moves.append((op, self.now, end))
        heapq.heappush(self.events, (end, 1 + 2 * level + op.kind.is_prefetch, op))

    def _channel(self, op: Op) -> tuple[int, bool]:
        level = self.level(op)
        return level, self.link.levels[level].is_full_duplex and op.kind.is_prefetch

    def _acquire(self, need: int) -> None:
        self.memory += need
        self.peak = max(self.peak, self.memory)
