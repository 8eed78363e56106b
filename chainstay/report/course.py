"""The course of a plan: who is busy from when to when, and what is in memory meanwhile.

One form for chains, joins, offloading and both together, which pages and traces draw. All of
it is replayed by the referees of `chainstay.validation`; nothing that a solution says of
itself is believed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, TypeVar

from chainstay.errors import InvalidSolutionError
from chainstay.hybrid import HybridClaim, HybridProblem, HybridSolution
from chainstay.offloading import OffloadClaim, OffloadProblem, OffloadSolution
from chainstay.profiles import (
    ChainProfile,
    HomogeneousJoin,
    Join,
    JoinProfile,
    Link,
    OffloadProfile,
)
from chainstay.report.levels import (
    Level,
    hybrid_levels,
    offload_levels,
    replay_levels,
    slot_levels,
)
from chainstay.schedule import Op, OpKind
from chainstay.solution import Solution
from chainstay.timetable import Time, Transfers, computations
from chainstay.validation.certify_hybrid import replay_hybrid
from chainstay.validation.certify_offload import replay
from chainstay.validation.events import TransferReplay
from chainstay.validation.join import simulate_join
from chainstay.validation.simulate import Replay, simulate

__all__ = ["Activity", "Course", "Lane", "Reported", "course_of"]

Reported: TypeAlias = ChainProfile | JoinProfile | HomogeneousJoin | OffloadProfile
"""What a reported plan is about."""

_SPILLS: Final = {
    OpKind.SPILL_ACTIVATION: OpKind.PREFETCH_ACTIVATION,
    OpKind.SPILL_SAVED: OpKind.PREFETCH_SAVED,
}
"""What goes beyond the host, and what brings it back."""
_DISCARDS: Final = (OpKind.DISCARD_ACTIVATION, OpKind.DISCARD_SAVED)


@dataclass(frozen=True, slots=True)
class Lane:
    """Something that does one thing at a time.

    Attributes:
        name: For people.
        stages: How many stages it computes; 0 for a direction of the link.
    """

    name: str
    stages: int = 0

    @property
    def is_link(self) -> bool:
        """Whether data move here, and nothing is computed."""
        return not self.stages


class Activity(NamedTuple):
    """One operation in time.

    Attributes:
        op: The operation.
        lane: Number of its lane.
        start: In the profile's time unit, ns.
        end: Likewise.
        is_again: Whether it is a forward of a stage that has run before.
    """

    op: Op
    lane: int
    start: Time
    end: Time
    is_again: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A plan in time.

    Attributes:
        lanes: Computation first (one a branch, and the tail of a join), then the link.
        activities: Ascending in time. Discards take none and are left out.
        levels: What is in memory, over time.
        makespan: When all is done.
        peak_bytes: The most memory ever in use; in slots for a `HomogeneousJoin`.
    """

    lanes: tuple[Lane, ...]
    activities: tuple[Activity, ...]
    levels: tuple[Level, ...]
    makespan: Time
    peak_bytes: int


def course_of(
    solution: Solution,
    profile: Reported,
    *,
    keep: Sequence[bool] | None = None,
    overheads: Sequence[int] | None = None,
) -> Course | None:
    """Replay `solution` on `profile`.

    Args:
        solution: A plan.
        profile: What it is a plan of. A `ChainProfile` stands for its `OffloadProfile` where
            the solution is one of offloading alone.
        keep: Of a join, as given to `solve_join`.
        overheads: Of a measured join, or chain without transfers: bytes that each operation
            needs beside what is stored, where more is known than the profile says.

    Returns:
        The course; None for recomputing with fractional transfers, whose plans have a makespan
        in theory and no times.

    Raises:
        InvalidSolutionError: The solution says another makespan or a lower peak than the
            referee, or is of another kind: it is not of this profile.
        InvalidScheduleError: Its schedule cannot run on this profile.
    """
    if isinstance(solution, HybridSolution) and isinstance(profile, ChainProfile):
        course = _of_hybrid(solution, profile)
    elif isinstance(solution, OffloadSolution):
        course = _of_offload(solution, _offload_profile(solution, profile))
    elif isinstance(profile, JoinProfile | HomogeneousJoin):
        replayed = simulate_join(profile, solution.schedule, keep=keep, overheads=overheads)
        course = _of_join(profile, replayed, overheads)
    elif isinstance(profile, ChainProfile):
        replayed = simulate(
            profile, solution.schedule, discards=solution.discards, overheads=overheads
        )
        needs = overheads or _needs(replayed, _overheads(profile))
        lanes = (Lane("compute", len(profile)),)
        course = _of_replay(replayed, lanes, replay_levels(replayed, needs))
    else:
        raise _mismatch(solution, profile)
    if course is not None:
        _require(solution, course.makespan, course.peak_bytes)
    return course


def _require(solution: Solution, makespan: Time, peak_bytes: int) -> None:
    # The peak may be above the referee's: a runtime makes some tensors twice.
    if makespan == solution.makespan and peak_bytes <= solution.peak_bytes:
        return
    raise InvalidSolutionError(
        f"the solution says {solution.makespan} ns and {solution.peak_bytes} bytes, its replay on "
        f"this profile gives {makespan} ns and {peak_bytes} bytes; pass the profile that was "
        "solved, of a join its keep=, and of a measured chain its overheads="
    )


def _mismatch(solution: Solution, profile: object) -> InvalidSolutionError:
    return InvalidSolutionError(
        f"a {type(solution).__name__} is no plan of a {type(profile).__name__}; pass the profile "
        "that was solved"
    )


def _key(op: Op) -> tuple[int | None, int, bool]:
    return op.branch, op.stage, op.kind is OpKind.BACKWARD


def _overheads(
    chain: ChainProfile, branch: int | None = None
) -> dict[tuple[int | None, int, bool], int]:
    """Bytes in use only during an operation, by branch, stage and whether it is a backward."""
    forward = {(branch, i, False): s.forward_overhead_bytes for i, s in enumerate(chain.stages)}
    backward = {(branch, i, True): s.backward_overhead_bytes for i, s in enumerate(chain.stages)}
    return forward | backward


def _needs(replayed: Replay, overheads: dict[tuple[int | None, int, bool], int]) -> tuple[int, ...]:
    """Of each operation, by its stage."""
    return tuple(overheads.get(_key(snapshot.op), 0) for snapshot in replayed.timeline)


def _of_join(profile: Join, replayed: Replay, needs: Sequence[int] | None) -> Course:
    if isinstance(profile, HomogeneousJoin):
        lengths, tail = list(profile.lengths), profile.tail_length
        has_tail = tail > 0
        levels = slot_levels(replayed)
    else:
        lengths, tail = [len(branch) for branch in profile.branches], len(profile.closing)
        has_tail = profile.tail is not None
        overheads = _overheads(profile.closing)
        for j, branch in enumerate(profile.branches):
            overheads |= _overheads(branch, j)
        levels = replay_levels(replayed, needs or _needs(replayed, overheads))
    lanes = [Lane(f"branch {j}", max(length, 1)) for j, length in enumerate(lengths)]
    lanes.append(Lane("tail" if has_tail else "turn", max(tail, 1)))
    return _of_replay(replayed, tuple(lanes), levels)


def _of_replay(replayed: Replay, lanes: tuple[Lane, ...], levels: tuple[Level, ...]) -> Course:
    timed = ((snapshot.op, snapshot.start, snapshot.end) for snapshot in replayed.timeline)
    return Course(
        lanes=lanes,
        activities=tuple(_activities(timed, lanes)),
        levels=levels,
        makespan=replayed.makespan,
        peak_bytes=replayed.peak_bytes,
    )


def _activities(
    timed: Iterable[tuple[Op, Time, Time]], lanes: Sequence[Lane]
) -> Iterator[Activity]:
    last = sum(not lane.is_link for lane in lanes) - 1
    done: set[tuple[int | None, int]] = set()
    spilled: set[tuple[OpKind, int]] = set()
    for op, start, end in timed:
        if op.kind in _DISCARDS:
            continue
        lane = last if op.branch is None else op.branch
        if op.kind in _SPILLS:
            spilled.add((_SPILLS[op.kind], op.stage))
        if op.kind.is_transfer:
            is_beyond = op.kind in _SPILLS or (op.kind, op.stage) in spilled
            lane = last + 1 + op.kind.is_prefetch + 2 * is_beyond
        is_again = op.kind.is_forward and (op.branch, op.stage) in done
        yield Activity(op, lane, start, end, is_again)
        if op.kind.is_forward:
            done.add((op.branch, op.stage))


def _offload_profile(solution: Solution, profile: Reported) -> OffloadProfile:
    if isinstance(profile, ChainProfile):
        return OffloadProfile.from_chain(profile)
    if isinstance(profile, OffloadProfile):
        return profile
    raise _mismatch(solution, profile)


def _of_offload(solution: OffloadSolution, profile: OffloadProfile) -> Course:
    problem = OffloadProblem(profile, solution.budget, solution.link, solution.transfers)
    replayed = replay(problem, _claim(solution, OffloadClaim))
    times = (*profile.forward_times, *reversed(profile.backward_times))
    return _with_link(
        zip(computations(len(profile)), times, strict=True),
        replayed,
        stages=len(profile),
        link=solution.link,
        levels=offload_levels(profile, replayed.timetable, solution.link, solution.transfers),
    )


def _of_hybrid(solution: HybridSolution, profile: ChainProfile) -> Course | None:
    problem = HybridProblem(profile, solution.budget, solution.link, solution.transfers)
    replayed = replay_hybrid(problem, _claim(solution, HybridClaim))
    if solution.transfers is not Transfers.INTEGRAL:
        _require(solution, replayed.makespan, replayed.peak_bytes)
        return None
    stages = profile.stages
    timed = [
        (
            op,
            stages[op.stage].forward_time if op.kind.is_forward else stages[op.stage].backward_time,
        )
        for op in solution.schedule
        if op.kind.is_forward or op.kind is OpKind.BACKWARD
    ]
    return _with_link(
        timed,
        replayed,
        stages=len(profile),
        link=solution.link,
        levels=hybrid_levels(
            profile, solution.schedule, budget=solution.budget, link=solution.link
        ),
    )


_Claim = TypeVar("_Claim", bound=OffloadClaim)


def _claim(solution: OffloadSolution, kind: type[_Claim]) -> _Claim:
    is_integral = solution.transfers is Transfers.INTEGRAL
    return kind(
        schedule=solution.schedule,
        makespan=solution.makespan,
        lower_bound=solution.lower_bound,
        family=solution.family,
        timetable=None if is_integral else solution.timetable,
    )


def _with_link(
    timed: Iterable[tuple[Op, int]],
    replayed: TransferReplay,
    *,
    stages: int,
    link: Link,
    levels: tuple[Level, ...],
) -> Course:
    """A course with transfers, of computations in order and their times."""
    names = ["to host", "from host", "to disk", "from disk"]
    lanes = (Lane("compute", stages), *map(Lane, names[: 2 * len(link.levels)]))
    timetable = replayed.timetable
    pairs = zip(timed, timetable.starts, strict=True)
    entries: list[tuple[Op, Time, Time]] = [
        (op, start, start + time) for (op, time), start in pairs
    ]
    entries += [(move.op, move.start, move.end) for move in timetable.moves]
    entries.sort(key=lambda entry: entry[1])
    return Course(
        lanes=lanes,
        activities=tuple(_activities(entries, lanes)),
        levels=levels,
        makespan=replayed.makespan,
        peak_bytes=replayed.peak_bytes,
    )
