"""Memory in use over time, by category.

Chains and joins are replayed operation by operation; under transfers memory changes while
operations run, so it is read from the simulators' own state. The sum of a level's categories is
what the simulator counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Final, NamedTuple

from chainstay.problems import HybridProblem, OffloadProblem
from chainstay.schedule import OpKind, Schedule
from chainstay.timetable import Time, Timetable, Transfers
from chainstay.validation.hybrid.simulate import HybridMachine
from chainstay.validation.offload.simulate import OffloadMachine
from chainstay.validation.offload.simulate_timetable import memory_over_time
from chainstay.validation.simulate import Replay, Snapshot

CATEGORIES: Final = (
    ("activation", "activations"),
    ("saved", "saved for backward"),
    ("gradient", "gradients"),
    ("temporary", "temporaries"),
)
"""Fields of a `MemoryLevel` but its time, with their names for people; stacked in this order."""


class MemoryLevel(NamedTuple):
    """Bytes in use at a time, by category.

    Two levels at one time are a step; between two times memory changes evenly.

    Attributes:
        time: Time in ns.
        activation: Bytes of plain activations; under whole-activation offloading, of all that
            stages save.
        saved: Bytes that stages saved for their backwards.
        gradient: Bytes of gradients of activations.
        temporary: Bytes that operations need only while they run.
    """

    time: Time
    activation: Time
    saved: Time
    gradient: Time
    temporary: Time

    @property
    def total(self) -> Time:
        """Bytes in use."""
        return self.activation + self.saved + self.gradient + self.temporary


def replay_levels(replay: Replay) -> tuple[MemoryLevel, ...]:
    """Return the levels of operations that run one after another."""
    levels: list[MemoryLevel] = []
    for before, snapshot in zip((None, *replay.timeline), replay.timeline, strict=False):
        sizes = _during(snapshot, before)
        levels += [MemoryLevel(time, *sizes) for time in (snapshot.start, snapshot.end)]
    return tuple(levels)


def _during(snapshot: Snapshot, before: Snapshot | None) -> tuple[int, int, int, int]:
    """Return the memory while an operation runs: nothing is gone yet, all of it is there.

    Overheads below 0 are saved data that are gone, see `Measurement.overheads_for`.
    """
    overhead, gone = max(snapshot.overhead_bytes, 0), min(snapshot.overhead_bytes, 0)
    kept = snapshot.during_bytes - snapshot.overhead_bytes
    is_backward = snapshot.op.kind in (OpKind.BACKWARD, OpKind.TURN)
    if is_backward and before is not None:
        activation, saved = before.activation_bytes, before.saved_bytes
        return activation, saved + gone, kept - activation - saved, overhead
    saved, gradient = snapshot.saved_bytes, snapshot.gradient_bytes
    if snapshot.op.kind is OpKind.FORWARD_DROP and before is not None:
        saved = before.saved_bytes
    return kept - saved - gradient, saved + gone, gradient, overhead


def slot_levels(replay: Replay) -> tuple[MemoryLevel, ...]:
    """Return the levels of a homogeneous join, counted after operations and their discards."""
    levels: list[MemoryLevel] = []
    for snapshot in replay.timeline:
        if snapshot.op.kind is OpKind.DISCARD_ACTIVATION and levels:
            after = levels.pop()
            levels[-1] = after = after._replace(activation=snapshot.activation_bytes)
        else:
            after = MemoryLevel(
                snapshot.start, snapshot.activation_bytes, 0, snapshot.gradient_bytes, 0
            )
            levels.append(after)
        levels.append(after._replace(time=snapshot.end))
    return tuple(levels)


def _steps(levels: Iterable[MemoryLevel]) -> Iterator[MemoryLevel]:
    """Yield levels seen one after another as steps: where they change, the old and the new one."""
    last: MemoryLevel | None = None
    for level in levels:
        if last is not None and last.time != level.time and last[1:] != level[1:]:
            yield last._replace(time=level.time)
        if last != level:
            yield level
        last = level


def offload_levels(
    problem: OffloadProblem, schedule: Schedule, timetable: Timetable
) -> tuple[MemoryLevel, ...]:
    """Return the levels of whole activations that move, or parts of them, as the simulator has it.

    Raises:
        InvalidScheduleError: As `simulate_offload` or `simulate_timetable`.
    """
    profile, link = problem.profile, problem.link
    if problem.transfers is not Transfers.INTEGRAL:
        return tuple(
            MemoryLevel(use.time, use.activation, 0, use.gradient, use.overhead)
            for use in memory_over_time(profile, timetable, link)
        )
    seen: list[MemoryLevel] = []
    OffloadMachine(
        profile, problem.budget, link, watch=lambda machine: seen.append(_offload_level(machine))
    ).run(schedule)
    return tuple(_steps(seen))


def _offload_level(machine: OffloadMachine) -> MemoryLevel:
    profile, op = machine.profile, machine.computing
    gradient = temporary = 0
    if op is not None:
        is_backward = op.kind is OpKind.BACKWARD
        overheads = profile.backward_overheads if is_backward else profile.forward_overheads
        temporary = overheads[op.stage]
        gradient = profile.gradients[op.stage + 1] * is_backward
    if machine.issued > len(profile):  # a backward has begun, and the last one's gradient is there
        gradient += profile.gradients[2 * len(profile) - machine.issued]
    time = Fraction(machine.now, machine.link.ticks)
    return MemoryLevel(time, machine.memory - gradient - temporary, 0, gradient, temporary)


def hybrid_levels(
    problem: HybridProblem, schedule: Schedule, overheads: Sequence[int] | None
) -> tuple[MemoryLevel, ...]:
    """Return the levels of a schedule with recomputation and transfers, as the simulator runs it.

    Raises:
        InvalidScheduleError: As `simulate_hybrid`.
    """
    profile, budget, seen = problem.profile, problem.budget, list[MemoryLevel]()
    HybridMachine(
        profile, budget, problem.link, watch=lambda machine: seen.append(_hybrid_level(machine))
    ).run(schedule, overheads)
    return tuple(_steps(seen))


def _hybrid_level(machine: HybridMachine) -> MemoryLevel:
    sizes = {"a": 0, "b": 0}
    for item in machine.stored:
        sizes[item[0]] += machine.size(item)
    computing, gradient = machine.computing, machine.profile.gradient_bytes(machine.gradient)
    if computing is not None and computing.kind is OpKind.BACKWARD:
        gradient += machine.profile.stages[computing.stage].gradient_bytes
    temporary = machine.memory - sizes["a"] - sizes["b"] - gradient
    time = Fraction(machine.now, machine.link.ticks)
    return MemoryLevel(time, sizes["a"], sizes["b"], gradient, temporary)
