"""The timeline of a plan: what runs on each lane from when to when, and the memory in use.

One form for chains, joins, offloading and both together, which pages and traces draw. All of
it is replayed by the simulators of `chainstay.validation`; no number is taken from the solution.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from chainstay.errors import InvalidSolutionError
from chainstay.problems import AnyProblem, HybridProblem, OffloadProblem, problem_of
from chainstay.profiles import AnyProfile, HomogeneousJoin, JoinProfile
from chainstay.report.memory_profile import (
    MemoryLevel,
    hybrid_levels,
    offload_levels,
    replay_levels,
    slot_levels,
)
from chainstay.schedule import Op, OpKind
from chainstay.solution import Solution
from chainstay.timetable import Time, Timetable, Transfers, computations
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.replay import replay

_TimedOp: TypeAlias = tuple[Op, Time, Time]
"""An operation, its start and its end in ns."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One row of the chart: a processor or link that does one thing at a time.

    Attributes:
        name: Name for people.
        stages: Number of stages that it computes; 0 for a direction of the link.
    """

    name: str
    stages: int = 0

    @property
    def is_link(self) -> bool:
        """True if data move here, and nothing is computed."""
        return not self.stages


class Activity(NamedTuple):
    """One operation in time.

    Attributes:
        op: The operation.
        lane: Number of its lane.
        start: Time at which it starts, in the profile's unit (ns).
        end: Time at which it ends, in the same unit.
        is_again: True for a forward of a stage that has run before.
    """

    op: Op
    lane: int
    start: Time
    end: Time
    is_again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A plan in time.

    Attributes:
        problem: The problem that it is a plan for.
        lanes: Computation first (one a branch, and the tail of a join), then the link.
        activities: All operations, ascending in time. Discards take none and are left out.
        levels: Memory in use over time.
        makespan: Time at which all is done.
        peak_bytes: The most memory ever in use; in slots for a `HomogeneousJoin`.
    """

    problem: AnyProblem
    lanes: tuple[Lane, ...]
    activities: tuple[Activity, ...]
    levels: tuple[MemoryLevel, ...]
    makespan: Time
    peak_bytes: int


def build_timeline(
    solution: Solution,
    profile: AnyProfile,
    *,
    keep: Sequence[bool] | None = None,
    overheads: Sequence[int] | None = None,
) -> Timeline | None:
    """Replay `solution` on `profile` and return its timeline.

    Args:
        solution: A plan.
        profile: The costs that it is a plan of. A `ChainProfile` stands for its `OffloadProfile`
            where the solution is one of offloading alone.
        keep: The flags that were given to `solve_join`, for a join.
        overheads: Bytes that each operation of a measured join, or of a chain that is recomputed,
            needs beside what is stored, where more is known than the profile says.

    Returns:
        The timeline; None for recomputing with fractional transfers, whose plans have a makespan
        in theory and no times.

    Raises:
        InvalidSolutionError: The solution says another makespan or a lower peak than the
            simulator, or is of another kind: it is not of this profile.
        InvalidScheduleError: Its schedule cannot run on this profile.
    """
    problem = problem_of(solution, profile, keep=keep, error=InvalidSolutionError)
    replayed = replay(problem, solution, overheads=overheads)
    makespan, peak_bytes = replayed.makespan, replayed.peak_bytes
    # The peak may be above the simulated one: a runtime makes some tensors twice.
    if makespan != solution.makespan or peak_bytes > solution.peak_bytes:
        raise InvalidSolutionError(
            f"the solution says {solution.makespan} ns and {solution.peak_bytes} bytes, its replay "
            f"on this profile gives {makespan} ns and {peak_bytes} bytes; pass the profile that "
            "was solved, of a join its keep=, and of a measured chain its overheads="
        )
    lanes: tuple[Lane, ...]
    if isinstance(replayed, TransferReplay):
        if isinstance(problem, HybridProblem) and problem.transfers is not Transfers.INTEGRAL:
            return None
        lanes = (Lane("compute", problem.stages), Lane("to host"), Lane("from host"))
        timed, levels = _with_transfers(problem, solution, replayed.timetable, overheads)
    else:
        lanes = tuple(_lanes(problem.profile))
        levels = slot_levels(replayed) if problem.unit == "slots" else replay_levels(replayed)
        timed = [(snapshot.op, snapshot.start, snapshot.end) for snapshot in replayed.timeline]
    return Timeline(
        problem=problem,
        lanes=lanes,
        activities=tuple(_activities(timed, lanes)),
        levels=levels,
        makespan=makespan,
        peak_bytes=peak_bytes,
    )


def timeline_with_times(
    solution: Solution,
    profile: AnyProfile,
    *,
    keep: Sequence[bool] | None = None,
    overheads: Sequence[int] | None = None,
) -> Timeline:
    """Return `build_timeline` of a plan that has times.

    Raises:
        InvalidSolutionError: It has none, or one of the reasons of `build_timeline`.
        InvalidScheduleError: As `build_timeline`.
    """
    timeline = build_timeline(solution, profile, keep=keep, overheads=overheads)
    if timeline is None:
        raise InvalidSolutionError(
            "transfers is 'fractional', and such a plan with recomputation has a makespan and no "
            "times; solve with transfers='integral'"
        )
    return timeline


def _lanes(profile: AnyProfile) -> Iterator[Lane]:
    """Yield what computes: one lane, or one a branch and the tail's, or the turn's without one."""
    match profile:
        case HomogeneousJoin():
            lengths, tail = profile.lengths, profile.tail_length
        case JoinProfile():
            lengths = tuple(map(len, profile.branches))
            tail = len(profile.tail or ())
        case _:
            yield Lane("compute", len(profile))
            return
    yield from (Lane(f"branch {j}", max(length, 1)) for j, length in enumerate(lengths))
    yield Lane("tail" if tail else "turn", max(tail, 1))


def _activities(timed: Iterable[_TimedOp], lanes: Sequence[Lane]) -> Iterator[Activity]:
    last = sum(not lane.is_link for lane in lanes) - 1
    done: set[tuple[int | None, int]] = set()
    for op, start, end in timed:
        if op.kind.is_discard:
            continue
        lane = last if op.branch is None else op.branch
        if op.kind.is_transfer:
            lane = last + 1 + op.kind.is_prefetch
        is_again = op.kind.is_forward and (op.branch, op.stage) in done
        yield Activity(op, lane, start, end, is_again)
        if op.kind.is_forward:
            done.add((op.branch, op.stage))


def _with_transfers(
    problem: AnyProblem,
    solution: Solution,
    timetable: Timetable,
    overheads: Sequence[int] | None,
) -> tuple[list[_TimedOp], tuple[MemoryLevel, ...]]:
    """Return all computations and transfers by their starts, and the memory in use."""
    match problem:
        case HybridProblem(profile=chain):
            stages = [(stage.forward_time, stage.backward_time) for stage in chain.stages]
            ops = [op for op in solution.schedule if op.kind.is_computation]
            levels = hybrid_levels(problem, solution.schedule, overheads)
        case OffloadProblem(profile=profile):
            stages = list(zip(profile.forward_times, profile.backward_times, strict=True))
            ops = list(computations(len(profile)))
            levels = offload_levels(problem, solution.schedule, timetable)
    timed: list[_TimedOp] = [
        (op, start, start + stages[op.stage][op.kind is OpKind.BACKWARD])
        for op, start in zip(ops, timetable.starts, strict=True)
    ]
    timed += [(move.op, move.start, move.end) for move in timetable.moves]
    return sorted(timed, key=lambda entry: entry[1]), levels
