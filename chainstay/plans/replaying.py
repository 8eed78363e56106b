"""A solution of any kind, replayed by the referee of its kind: what a plan really does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Protocol, TypeAlias

from chainstay.errors import InvalidPlanError
from chainstay.hybrid import HybridClaim, HybridProblem, HybridSolution
from chainstay.offloading import OffloadClaim, OffloadProblem, OffloadSolution
from chainstay.profiles import ChainProfile, HomogeneousJoin, JoinProfile, OffloadProfile
from chainstay.solution import Solution
from chainstay.timetable import Time
from chainstay.validation.certify_hybrid import replay_hybrid
from chainstay.validation.certify_offload import replay
from chainstay.validation.join import simulate_join
from chainstay.validation.simulate import simulate

__all__ = ["AnyReplay", "Costs", "replayed", "require_sound"]

Costs: TypeAlias = ChainProfile | JoinProfile | HomogeneousJoin | OffloadProfile
"""What a solution may be a solution of."""


class AnyReplay(Protocol):
    """What a referee says, as far as all of them do."""

    @property
    def makespan(self) -> Time:
        """When the last operation ends."""

    @property
    def peak_bytes(self) -> int:
        """The most memory in use at any time."""


def replayed(
    solution: Solution,
    profile: Costs,
    *,
    overheads: Sequence[int] | None = None,
    keep: Sequence[bool] = (),
) -> AnyReplay:
    """What the schedule of `solution` does on `profile`.

    Args:
        solution: Of a chain, of a join, of offloading, or of both at once.
        profile: What it is a solution of.
        overheads: Bytes that each operation needs besides what is stored, where more is known
            than the profile says; of chains without transfers, and of joins in bytes.
        keep: Of a join, for each branch whether its input's gradient stays; empty for none.

    Raises:
        InvalidPlanError: Solution and profile do not go together.
        InvalidScheduleError: The schedule cannot be run.
        InvalidProfileError: The profile, the link or the transfers do not go together.
    """
    match solution, profile:
        case HybridSolution(), ChainProfile():
            problem = HybridProblem(profile, solution.budget, solution.link, solution.transfers)
            return replay_hybrid(problem, HybridClaim(**_claimed(solution)))
        case OffloadSolution(), OffloadProfile() if not isinstance(solution, HybridSolution):
            asked = OffloadProblem(profile, solution.budget, solution.link, solution.transfers)
            return replay(asked, OffloadClaim(**_claimed(solution)))
        case Solution(), ChainProfile() if not isinstance(solution, OffloadSolution):
            discards, schedule = solution.discards, solution.schedule
            return simulate(profile, schedule, discards=discards, overheads=overheads)
        case Solution(), (JoinProfile() | HomogeneousJoin()):
            if not isinstance(solution, OffloadSolution):
                return simulate_join(
                    profile, solution.schedule, keep=keep or None, overheads=overheads
                )
    raise InvalidPlanError(
        f"a {type(solution).__name__} is no solution of a {type(profile).__name__}; save it with "
        "the profile that was solved"
    )


def require_sound(solution: Solution, replay: AnyReplay) -> None:
    """Refuse a solution that says of itself what its replay does not.

    Its peak may be above the simulated one: a runtime makes some tensors twice.

    Raises:
        InvalidPlanError: Another time, or more memory than it says.
    """
    if replay.makespan != solution.makespan:
        raise InvalidPlanError(
            f"the plan says that it takes {solution.makespan} ns; replayed, it takes "
            f"{replay.makespan}. The file was changed, or is damaged: plan again"
        )
    if replay.peak_bytes > solution.peak_bytes:
        raise InvalidPlanError(
            f"the plan says that it needs {solution.peak_bytes} bytes; replayed, it needs "
            f"{replay.peak_bytes}. The file was changed, or is damaged: plan again"
        )


def _claimed(solution: OffloadSolution) -> dict[str, Any]:
    """The fields of the claim that it was."""
    return {field.name: getattr(solution, field.name) for field in fields(OffloadClaim)}
