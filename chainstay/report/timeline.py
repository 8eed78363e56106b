"""The timeline of a plan: what runs on each lane from when to when, and the memory in use.

One form for chains, joins, offloading and both together, which pages and traces draw. All of
it is replayed by the simulators of `chainstay.validation`; no number is taken from the solution.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from chainstay.errors import InvalidSolutionError
from chainstay.problems.hybrid import HybridClaim, HybridProblem, HybridSolution
from chainstay.problems.offload import OffloadClaim, OffloadProblem, OffloadSolution
from chainstay.profiles import (
    AnyProfile,
    ChainProfile,
    HomogeneousJoin,
    Join,
    JoinProfile,
    Link,
    OffloadProfile,
)
from chainstay.report.memory_profile import (
    MemoryLevel,
    hybrid_levels,
    offload_levels,
    replay_levels,
    slot_levels,
)
from chainstay.schedule import Op, OpKind
from chainstay.solution import Solution
from chainstay.timetable import Time, Transfers, computations
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.hybrid.certify import replay_hybrid
from chainstay.validation.join.simulate import simulate_join
from chainstay.validation.offload.certify import replay_offload
from chainstay.validation.simulate import Replay, simulate

__all__ = ["Activity", "Lane", "Timeline", "build_timeline"]

_SPILLS: Final = {
    OpKind.SPILL_ACTIVATION: OpKind.PREFETCH_ACTIVATION,
    OpKind.SPILL_SAVED: OpKind.PREFETCH_SAVED,
}
"""Operations that move data beyond the host, each with the one that brings it back."""
_DISCARDS: Final = (OpKind.DISCARD_ACTIVATION, OpKind.DISCARD_SAVED)


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
        lanes: Computation first (one a branch, and the tail of a join), then the link.
        activities: All operations, ascending in time. Discards take none and are left out.
        levels: Memory in use over time.
        makespan: Time at which all is done.
        peak_bytes: The most memory ever in use; in slots for a `HomogeneousJoin`.
    """

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
        overheads: Bytes that each operation of a measured join, or chain without transfers, needs
            beside what is stored, where more is known than the profile says.

    Returns:
        The timeline; None for recomputing with fractional transfers, whose plans have a makespan
        in theory and no times.

    Raises:
        InvalidSolutionError: The solution says another makespan or a lower peak than the
            simulator, or is of another kind: it is not of this profile.
        InvalidScheduleError: Its schedule cannot run on this profile.
    """
    if isinstance(solution, HybridSolution) and isinstance(profile, ChainProfile):
        timeline = _hybrid_timeline(solution, profile)
    elif isinstance(solution, OffloadSolution):
        timeline = _offload_timeline(solution, _offload_profile(solution, profile))
    elif isinstance(profile, JoinProfile | HomogeneousJoin):
        replayed = simulate_join(profile, solution.schedule, keep=keep, overheads=overheads)
        timeline = _join_timeline(profile, replayed, overheads)
    elif isinstance(profile, ChainProfile):
        replayed = simulate(
            profile, solution.schedule, discards=solution.discards, overheads=overheads
        )
        needs = overheads or _needs(replayed, _overheads(profile))
        lanes = (Lane("compute", len(profile)),)
        timeline = _replayed_timeline(replayed, lanes, replay_levels(replayed, needs))
    else:
        raise _mismatch(solution, profile)
    if timeline is not None:
        _require(solution, timeline.makespan, timeline.peak_bytes)
    return timeline


def _require(solution: Solution, makespan: Time, peak_bytes: int) -> None:
    # The peak may be above the simulated one: a runtime makes some tensors twice.
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
    """Return the overhead bytes of operations, by branch, stage and whether it is a backward."""
    forward = {(branch, i, False): s.forward_overhead_bytes for i, s in enumerate(chain.stages)}
    backward = {(branch, i, True): s.backward_overhead_bytes for i, s in enumerate(chain.stages)}
    return forward | backward


def _needs(replayed: Replay, overheads: dict[tuple[int | None, int, bool], int]) -> tuple[int, ...]:
    """Return the overhead of each operation, by its stage."""
    return tuple(overheads.get(_key(snapshot.op), 0) for snapshot in replayed.timeline)


def _join_timeline(profile: Join, replayed: Replay, needs: Sequence[int] | None) -> Timeline:
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
    return _replayed_timeline(replayed, tuple(lanes), levels)


def _replayed_timeline(
    replayed: Replay, lanes: tuple[Lane, ...], levels: tuple[MemoryLevel, ...]
) -> Timeline:
    timed = ((snapshot.op, snapshot.start, snapshot.end) for snapshot in replayed.timeline)
    return Timeline(
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


def _offload_profile(solution: Solution, profile: AnyProfile) -> OffloadProfile:
    if isinstance(profile, ChainProfile):
        return OffloadProfile.from_chain(profile)
    if isinstance(profile, OffloadProfile):
        return profile
    raise _mismatch(solution, profile)


def _offload_timeline(solution: OffloadSolution, profile: OffloadProfile) -> Timeline:
    problem = OffloadProblem(profile, solution.budget, solution.link, solution.transfers)
    replayed = replay_offload(problem, _claim(solution, OffloadClaim))
    times = (*profile.forward_times, *reversed(profile.backward_times))
    return _with_link(
        zip(computations(len(profile)), times, strict=True),
        replayed,
        stages=len(profile),
        link=solution.link,
        levels=offload_levels(profile, replayed.timetable, solution.link, solution.transfers),
    )


def _hybrid_timeline(solution: HybridSolution, profile: ChainProfile) -> Timeline | None:
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
    levels: tuple[MemoryLevel, ...],
) -> Timeline:
    """Return a timeline with transfers, from computations in order and their times."""
    names = ["to host", "from host", "to disk", "from disk"]
    lanes = (Lane("compute", stages), *map(Lane, names[: 2 * len(link.levels)]))
    timetable = replayed.timetable
    pairs = zip(timed, timetable.starts, strict=True)
    entries: list[tuple[Op, Time, Time]] = [
        (op, start, start + time) for (op, time), start in pairs
    ]
    entries += [(move.op, move.start, move.end) for move in timetable.moves]
    entries.sort(key=lambda entry: entry[1])
    return Timeline(
        lanes=lanes,
        activities=tuple(_activities(entries, lanes)),
        levels=levels,
        makespan=replayed.makespan,
        peak_bytes=replayed.peak_bytes,
    )
