"""The simulator of each kind of problem, behind one function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chainstay.problems import AnyProblem, ChainProblem, JoinProblem, OffloadProblem
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.hybrid.certify import replay_hybrid
from chainstay.validation.join.simulate import simulate_join
from chainstay.validation.offload.certify import replay_offload
from chainstay.validation.simulate import Replay, simulate


def replay(
    problem: AnyProblem,
    claim: Any,
    *,
    overheads: Sequence[int] | None = None,
) -> Replay | TransferReplay:
    """Simulate the schedule of a claim under the rules of its problem.

    Args:
        problem: The problem.
        claim: A claim about it, or a solution of it: its schedule, its rules for discards where
            nothing moves, and its timetable where transfers are not integral.
        overheads: Bytes that each operation needs besides what is stored, where more is known
            than the profile says; of chains without transfers, and of joins in bytes.

    Raises:
        InvalidScheduleError: The schedule cannot be run.
    """
    match problem:
        case ChainProblem():
            rules = claim.discards
            return simulate(problem.profile, claim.schedule, discards=rules, overheads=overheads)
        case JoinProblem():
            keep = problem.keep or None
            return simulate_join(problem.profile, claim.schedule, keep=keep, overheads=overheads)
        case OffloadProblem():
            return replay_offload(problem, claim)
    return replay_hybrid(problem, claim)
