"""The meaning of a schedule with recomputation and transfers: a simulation of events in time.

A schedule is the order in which the host issues operations. The host waits until the one at
hand can start: a computation, for the one before, its data and its memory; a prefetch, for the
link, the copy on the host and its memory. Offloads are queued and discards noted without
waiting. Everything starts as early as that allows.

Operations need and make what they do in `chainstay.validation.simulate`, and any item may be
dropped at any time:

* ``Oa``, ``Ob`` copy an item to the host. The copy on the device serves the computations
  issued until the item is prefetched or made again; it goes when the last of them has ended
  and the transfer, too.
* ``Da``, ``Db`` drop the copy on the device as soon as computations and transfers issued
  before are done with it.
* What the host has it keeps until the last prefetch has ended: an item may be dropped and
  prefetched many times, from where it is.

What ``Fa`` under an option saves is one item, of the option's bytes; ``B`` runs under the option
of the data that it reads. The host has what a stage saved under one option at most.

Memory of an item is taken when the computation that makes it, or its prefetch, starts.
Sizes and times are whole numbers here: bytes, and ticks of the link. This module shares no
code with any solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from chainstay.errors import InvalidProfileError, InvalidScheduleError
from chainstay.profiles import ChainProfile, Link, StageOption
from chainstay.profiles.chain import require_single_stage_options
from chainstay.schedule import Item, Op, OpKind, Schedule
from chainstay.validation.arguments import require_replayable
from chainstay.validation.event_machine import EventMachine, TransferReplay
from chainstay.validation.hybrid.data_items import (
    freed_items,
    last_transfers,
    last_uses,
    output_item,
    read_items,
)
from chainstay.validation.simulate import InvalidOperationError


def simulate_hybrid(
    profile: ChainProfile,
    schedule: Schedule,
    *,
    budget: int,
    link: Link,
    overheads: Sequence[int] | None = None,
) -> TransferReplay:
    """Run a schedule of computations, discards and transfers in `budget` bytes.

    Args:
        profile: A chain without skips.
        schedule: The operations, in the order in which the host issues them.
        budget: Bytes on the device.
        link: The link to the host.
        overheads: Bytes that each operation needs while it runs besides what is stored, in
            place of its stage's in the profile; those of transfers and discards are ignored.

    Returns:
        Makespan, peak and times; the timetable has a start for every computation of the
        schedule, in its order.

    Raises:
        InvalidProfileError: The chain has skips, or options other than those of single stages.
        InvalidScheduleError: An operation that cannot run, or that waits for memory or data
            which nothing issued before it will provide.
        ValueError: Not one of `overheads` per operation.

    Example:
        >>> from chainstay.profiles import Stage
        >>> stage = Stage(forward_time=2, backward_time=3, output_bytes=10, saved_bytes=30)
        >>> chain = ChainProfile(input_bytes=5, input_gradient_bytes=0, stages=(stage, stage))
        >>> schedule = Schedule.parse("Oa0 Fc0 Fa1 B1 Pa0 Fa0 B0")
        >>> simulate_hybrid(chain, schedule, budget=40, link=Link(bandwidth=5)).makespan
        13
    """
    require_replayable(profile, schedule, ChainProfile, overheads=overheads)
    return HybridMachine(profile, budget, link).run(schedule, overheads)


@dataclass(slots=True)
class HybridMachine(EventMachine):
    """The state of a simulation of recomputation with transfers.

    Attributes:
        profile: The chain.
        saved: By stage, the option of the saved data that are, or were last, in device memory.
        away: By stage, the option of the saved data that were sent to the host.
        gradient: Index of the gradient held, or held once the last backward issued has ended.
        overhead: Overhead bytes of the computation that is running.
        stored: Items in device memory, whole or on their way in or out.
        ready: Stored items whose data are complete.
        reading: Items that the running computation reads.
        sending: Items whose offload has been issued and has not ended.
        fetching: Items whose prefetch is running.
        released: Stored items that go as soon as nothing reads or sends them.
        sent: Items whose offload has been issued.
        host: Items of which the host has a complete copy.
        forgotten: Items whose copy on the host goes when no running transfer needs it.
        options: By stage, every way to keep it.

    Raises:
        InvalidProfileError: The chain has skips, or options other than those of single stages.
        InvalidScheduleError: The network's input and the first gradient exceed the budget.
    """

    profile: ChainProfile
    saved: dict[int, StageOption] = field(default_factory=dict)
    away: dict[int, StageOption] = field(default_factory=dict)
    gradient: int = -1
    overhead: int = 0
    stored: set[Item] = field(default_factory=lambda: {Item("a", 0)})
    ready: set[Item] = field(default_factory=lambda: {Item("a", 0)})
    reading: set[Item] = field(default_factory=set)
    sending: set[Item] = field(default_factory=set)
    fetching: set[Item] = field(default_factory=set)
    released: set[Item] = field(default_factory=set)
    sent: set[Item] = field(default_factory=set)
    host: set[Item] = field(default_factory=set)
    forgotten: set[Item] = field(default_factory=set)
    options: tuple[tuple[StageOption, ...], ...] = ()

    def __post_init__(self) -> None:
        profile = self.profile
        if profile.skips:
            raise InvalidProfileError(
                f"this chain has {len(profile.skips)} skips, which transfers do not support; "
                "extract the model with granularity='blocks' or a smaller number of stages"
            )
        require_single_stage_options(profile)
        self.options = self.options or tuple(stage.all_options for stage in profile.stages)
        self.gradient = len(profile)
        self.memory = self.peak = profile.input_bytes + profile.gradient_bytes(len(profile))
        if self.memory > self.budget:
            raise InvalidScheduleError(
                f"the network's input and the gradient of its output have {self.memory} bytes, "
                f"the budget is {self.budget}"
            )

    def size(self, item: Item) -> int:
        """Return the bytes of an item in device memory."""
        return self._bytes(item, self.saved)

    def _bytes(self, item: Item, saved: dict[int, StageOption]) -> int:
        kind, index = item
        return self.profile.activation_bytes(index) if kind == "a" else saved[index].saved_bytes

    @property
    def here(self) -> set[Item]:
        """Items that computations issued next can read, now or later."""
        return self.stored - self.released

    def run(self, schedule: Schedule, overheads: Sequence[int] | None) -> TransferReplay:
        """Issue all operations, and return what happened; errors are `simulate_hybrid`'s."""
        released, forgotten = last_uses(schedule), last_transfers(schedule)

        def issue(index: int, op: Op) -> None:
            self.issue(op, overheads[index] if overheads else None)
            for item in released.get(index, ()):
                self.release(item)
            if index in forgotten:
                self.forget(op.item)

        return self._run(schedule, issue)

    def issue(self, op: Op, overhead: int | None = None) -> None:
        """Wait until `op` can start, and start it; queue an offload and note a discard instead."""
        if op.branch is not None:
            raise InvalidOperationError(f"{op} names a branch, and this chain has none")
        if op.stage >= len(self.profile):
            raise InvalidOperationError(
                f"{op} names stage {op.stage}, the last one is {len(self.profile) - 1}"
            )
        match op.kind:
            case OpKind.OFFLOAD_ACTIVATION | OpKind.OFFLOAD_SAVED:
                self._offload(op)
            case OpKind.PREFETCH_ACTIVATION | OpKind.PREFETCH_SAVED:
                self._prefetch(op)
            case OpKind.DISCARD_ACTIVATION | OpKind.DISCARD_SAVED:
                self._discard(op)
            case OpKind.TURN:
                raise InvalidOperationError(
                    f"{op} is an operation of joins, and this is a single chain"
                )
            case _:
                self._issue(op, overhead)

    def release(self, item: Item) -> None:
        """Let `item` go as soon as nothing issued before reads or sends it."""
        self.released.add(item)
        self._settle()

    def forget(self, item: Item) -> None:
        """Let what is on the host go when the transfers issued before have ended."""
        self.forgotten.add(item)
        self._settle()

    def moved_bytes(self, op: Op) -> int:
        """Return the bytes that the transfer `op` moves."""
        return self._bytes(op.item, self.away)

    def _missing_end(self) -> str:
        if self.gradient == 0:
            return ""
        return f"the schedule ends before B{self.gradient - 1}; every stage needs its backward"

    def _issue(self, op: Op, given_overhead: int | None) -> None:
        here, option = self.here, self._option(op)
        if op.kind is OpKind.FORWARD_DROP and Item("a", op.stage) not in here:
            raise InvalidOperationError(
                f"{op} needs a{op.stage} itself to drop it, and it is not stored"
            )
        reads = read_items(op, here)
        for item in reads:
            if item not in here:
                raise InvalidOperationError(self._missing(op, item))
        if op.kind is OpKind.BACKWARD:
            if self.gradient != op.stage + 1:
                raise InvalidOperationError(
                    f"{op} needs the gradient of a{op.stage + 1}, but that of "
                    f"a{self.gradient} is held"
                )
            makes: tuple[Item, ...] = ()
            kept = self.profile.gradient_bytes(op.stage)
            option = self.saved[op.stage]
            time, own_overhead = option.first.backward_time, option.backward_overhead_bytes
        else:
            makes = (output_item(op),)
            if makes[0] in here:
                raise InvalidOperationError(f"{op} makes what is stored")
            is_kept = op.kind is OpKind.FORWARD_KEEP_ALL
            kept = option.saved_bytes if is_kept else self.size(makes[0])
            time, own_overhead = option.first.time, option.first.overhead_bytes
        overhead = own_overhead if given_overhead is None else given_overhead
        self._wait(
            op,
            kept + overhead,
            lambda: (
                self.computing is None
                and self.ready.issuperset(reads)
                and self.stored.isdisjoint(makes)
            ),
        )
        self._acquire(kept + overhead)
        self.overhead = overhead
        if op.kind is OpKind.FORWARD_KEEP_ALL:
            self.saved[op.stage] = option
        self.stored.update(makes)
        self.reading = set(reads)
        self.released.update(item for item in freed_items(op) if item in self.stored)
        if op.kind is OpKind.BACKWARD:
            self.gradient = op.stage
        self._compute(op, time * self.link.ticks)

    def _option(self, op: Op) -> StageOption:
        """Return the option of a forward; one that is not kept costs what option 0 does."""
        options = self.options[op.stage]
        if op.option >= len(options):
            raise InvalidOperationError(
                f"{op} names option {op.option}, and stage {op.stage} has {len(options)}, counted "
                "from 0"
            )
        return options[op.option]

    def _missing(self, op: Op, item: Item) -> str:
        kind, index = item
        if kind == "b" and index == op.stage:
            if item in self.host or item in self.sending or item in self.sent:
                return f"{op} needs what Fa{index} saved, which is on the host; issue Pb{index}"
            return f"{op} needs what Fa{index} saves, and it is not stored"
        if op.stage == 0:
            return f"{op} needs the network's input a0, which is gone; issue Pa0 before"
        return (
            f"{op} needs its input a{op.stage}, and neither it nor what Fa{op.stage - 1} saves "
            "is stored"
        )

    def _offload(self, op: Op) -> None:
        item = op.item
        if item in self.sent:
            raise InvalidOperationError(
                f"{op} comes a second time; the host keeps what it has, so drop it"
            )
        if item not in self.here:
            raise InvalidOperationError(f"{op} moves what is not stored")
        if item.kind == "b":
            self.away[op.stage] = self.saved[op.stage]
        self.sent.add(item)
        self.sending.add(item)
        self._queue(op)

    def _discard(self, op: Op) -> None:
        item = op.item
        if item not in self.here:
            raise InvalidOperationError(f"{op} drops what is not stored")
        if item == Item("a", 0) and item not in self.sent:
            raise InvalidOperationError(
                f"{op} would drop the network's input, which nothing can recompute"
            )
        self.release(item)

    def _prefetch(self, op: Op) -> None:
        item = op.item
        if item not in self.sent:
            raise InvalidOperationError(f"{op} brings back what was not offloaded")
        assert item not in self.forgotten, "the last prefetch is known"
        if item in self.here:
            raise InvalidOperationError(f"{op} brings back what is stored")
        size = self._bytes(item, self.away)
        self._wait(
            op,
            size,
            lambda: item in self.host and item not in self.stored and self._is_link_free(op),
        )
        self._acquire(size)
        if item.kind == "b":
            self.saved[op.stage] = self.away[op.stage]
        self.stored.add(item)
        self.fetching.add(item)
        self._start_move(op)

    def _can_leave(self, op: Op) -> bool:
        return op.item in self.ready

    def _free(self) -> None:
        gone = (self.released & self.ready) - self.reading - self.sending
        for item in gone:
            self.memory -= self.size(item)
        self.released -= gone
        self.stored -= gone
        self.ready -= gone
        for item in (self.forgotten & self.host) - self.fetching:
            self.held -= self._bytes(item, self.away)
            self.host.discard(item)

    def _computed(self, op: Op) -> None:
        self.computing, self.reading = None, set()
        self.memory -= self.overhead
        if op.kind is OpKind.BACKWARD:
            self.memory -= self.profile.gradient_bytes(op.stage + 1)
            return
        self.ready.add(output_item(op))

    def _moved(self, op: Op) -> None:
        item = op.item
        if op.kind.is_prefetch:
            self.ready.add(item)
            self.fetching.discard(item)
            return
        self.sending.discard(item)
        self.host.add(item)
