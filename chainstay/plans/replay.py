"""Simulate the schedule of a solution of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Protocol

from chainstay.errors import InvalidPlanError
from chainstay.problems.hybrid import HybridClaim, HybridProblem, HybridSolution
from chainstay.problems.offload import OffloadClaim, OffloadProblem, OffloadSolution
from chainstay.profiles import (
    AnyProfile,
    ChainProfile,
    HomogeneousJoin,
    JoinProfile,
    OffloadProfile,
)
from chainstay.solution import Solution
from chainstay.timetable import Time
from chainstay.validation.hybrid.certify import replay_hybrid
from chainstay.validation.join.simulate import simulate_join
from chainstay.validation.offload.certify import replay_offload
from chainstay.validation.simulate import simulate

__all__ = ["AnyProfile", "AnyReplay", "replay_solution", "require_sound"]


class AnyReplay(Protocol):
    """The part of a simulation's result that all simulators return."""

    @property
    def makespan(self) -> Time:
        """Time at which the last operation ends, in ns."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use at any time."""


def replay_solution(
    solution: Solution,
    profile: AnyProfile,
    *,
    overheads: Sequence[int] | None = None,
    keep: Sequence[bool] = (),
) -> AnyReplay:
    """Simulate the schedule of `solution` on `profile`.

    Args:
        solution: A solution of a chain, of a join, of offloading, or of both at once.
        profile: The costs that it is a solution of.
        overheads: Bytes that each operation needs besides what is stored, where more is known
            than the profile says; of chains without transfers, and of joins in bytes.
        keep: For each branch of a join, whether its input's gradient stays; empty for none.

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
            without = OffloadProblem(profile, solution.budget, solution.link, solution.transfers)
            return replay_offload(without, OffloadClaim(**_claimed(solution)))
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
    """Refuse a solution whose replay contradicts its own numbers.

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
    """Return the fields of the claim that the solution was made from."""
    return {field.name: getattr(solution, field.name) for field in fields(OffloadClaim)}
