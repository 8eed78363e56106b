"""The meaning of a schedule with whole transfers over one link: a simulation of events in time.

A schedule is the order in which the host issues computations, offloads and prefetches.
The host waits until the operation at hand can start: a computation, for the previous one,
its data and its memory; a prefetch, for the link, its offload and its memory; an offload is
queued without waiting. So memory is acquired in the order of the schedule, and so is the link.
Everything starts as early as that allows.

Proposition 1 of [BES20] fixes sets and orders of transfers only. Then prefetches, as early
as possible, may take the memory that computations before them need, and nothing goes on:
the order between prefetches and computations is part of the plan.

Sizes and times are whole numbers here: bytes, and ticks of the link.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import Link, OffloadProfile
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.validation.arguments import require_replayable
from chainstay.validation.event_machine import EventMachine, TransferReplay
from chainstay.validation.simulate import InvalidOperationError


def simulate_offload(
    profile: OffloadProfile, schedule: Schedule, *, budget: int, link: Link
) -> TransferReplay:
    """Run a schedule of computations and whole transfers on a device of `budget` bytes.

    Args:
        profile: Costs of n stages.
        schedule: Every ``Fa`` and ``B`` once, in their order, with ``Oa`` and ``Pa`` between.
        budget: Bytes on the device.
        link: The link to the host.

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
    require_replayable(profile, schedule, OffloadProfile)
    return OffloadMachine(profile, budget, link).run(schedule)


@dataclass(slots=True)
class OffloadMachine(EventMachine):
    """The state of a simulation of offloading without recomputation.

    Attributes:
        profile: Costs of the chain.
        issued: Number of computations issued so far.
        produced: Indices of the activations whose data have been computed.
        used: Indices of the activations whose forward reader has ended.
        offloads: Indices of the activations whose offload has been issued.
        left: Indices of the activations that are on the host.
        prefetches: Indices of the activations whose prefetch has been issued.
        arrived: Indices of the activations that are back.

    Raises:
        InvalidScheduleError: The network's input exceeds the budget.
    """

    profile: OffloadProfile
    issued: int = 0
    produced: set[int] = field(default_factory=lambda: {0})
    used: set[int] = field(default_factory=set)
    offloads: set[int] = field(default_factory=set)
    left: set[int] = field(default_factory=set)
    prefetches: set[int] = field(default_factory=set)
    arrived: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.memory = self.peak = self.profile.activations[0]
        if self.memory > self.budget:
            raise InvalidScheduleError(
                f"the network's input has {self.memory} bytes, the budget is {self.budget}"
            )

    def run(self, schedule: Schedule) -> TransferReplay:
        """Issue all operations, and return what happened; errors are `simulate_offload`'s."""
        return self._run(schedule, lambda _, op: self.issue(op))

    def issue(self, op: Op) -> None:
        """Wait until `op` can start, and start it; queue an offload instead."""
        if op.branch is not None:
            raise InvalidOperationError(f"{op} names a branch, and this chain has none")
        match op.kind:
            case OpKind.FORWARD_KEEP_ALL | OpKind.BACKWARD:
                self._issue(op)
            case OpKind.OFFLOAD_ACTIVATION:
                self._offload(op)
            case OpKind.PREFETCH_ACTIVATION:
                self._prefetch(op)
            case _:
                raise InvalidOperationError(
                    f"{op} is not an operation of offloading; write Fa, B, Oa or Pa and a stage"
                )

    def moved_bytes(self, op: Op) -> int:
        """Return the bytes that the transfer `op` moves."""
        return self.profile.activations[op.stage]

    def _missing_end(self) -> str:
        is_short = self.issued < 2 * len(self.profile)
        return f"the schedule ends before {self._expected()}" if is_short else ""

    def _expected(self) -> Op:
        """Return the computation that comes next."""
        stages = len(self.profile)
        if self.issued < stages:
            return Op(OpKind.FORWARD_KEEP_ALL, self.issued)
        return Op(OpKind.BACKWARD, 2 * stages - 1 - self.issued)

    def _issue(self, op: Op) -> None:
        if self.issued == 2 * len(self.profile):
            raise InvalidOperationError(f"{op} comes after the last backward")
        if op != self._expected():
            raise InvalidOperationError(
                f"{op} is out of order; {self._expected()} is the next computation"
            )
        profile, i = self.profile, op.stage
        time = profile.forward_times[i]
        need = profile.activations[i + 1] + profile.forward_overheads[i]
        reads = (i, i + 1) if op.kind is OpKind.BACKWARD else ()
        if op.kind is OpKind.BACKWARD:
            time = profile.backward_times[i]
            need = profile.gradients[i] + profile.backward_overheads[i]
            need += profile.gradients[i + 1] * (i == len(profile) - 1)
            for j in reads:
                if j in self.offloads and j not in self.prefetches:
                    raise InvalidOperationError(
                        f"{op} needs a{j}, which is on the host; issue Pa{j} before"
                    )
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
        self._compute(op, time * self.link.ticks)

    def _offload(self, op: Op) -> None:
        j, stages = op.stage, len(self.profile)
        if j >= stages:
            raise InvalidOperationError(
                f"{op} names a{j}; only a0 to a{stages - 1} can be offloaded"
            )
        if j in self.offloads:
            raise InvalidOperationError(f"{op} comes a second time")
        if self.issued < j:
            raise InvalidOperationError(f"{op} comes before Fa{j - 1}, which makes a{j}")
        if self.issued > 2 * stages - 1 - j:
            raise InvalidOperationError(f"{op} comes after B{j}, which a{j} has to be back for")
        self.offloads.add(j)
        self._queue(op)

    def _prefetch(self, op: Op) -> None:
        j = op.stage
        if j not in self.offloads:
            raise InvalidOperationError(f"{op} brings back a{j}, which was not offloaded")
        if j in self.prefetches:
            raise InvalidOperationError(f"{op} comes a second time")
        size = self.profile.activations[j]
        self._wait(
            op,
            size,
            lambda: j in self.left and j in self.used and self._is_link_free(op),
        )
        self._acquire(size)
        self.prefetches.add(j)
        self._start_move(op)

    def _can_leave(self, op: Op) -> bool:
        return op.stage in self.produced

    def _free(self) -> None:
        """Do nothing: memory is freed only where a computation or transfer ends."""

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
        if op.kind.is_prefetch:
            self.arrived.add(op.stage)
            self.held -= self.moved_bytes(op)
            return
        self.left.add(op.stage)
        if op.stage in self.used:
            self.memory -= self.profile.activations[op.stage]
