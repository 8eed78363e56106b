"""The simulator of each kind of problem, behind one function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from chainstay.errors import InvalidScheduleError
from chainstay.problems import AnyProblem, ChainProblem, HybridProblem, JoinProblem, OffloadProblem
from chainstay.timetable import Transfers
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.hybrid.fractional_transfers import fractional_replay
from chainstay.validation.hybrid.simulate import simulate_hybrid
from chainstay.validation.join.simulate import simulate_join
from chainstay.validation.offload.simulate import simulate_offload
from chainstay.validation.offload.simulate_timetable import simulate_timetable
from chainstay.validation.simulate import Replay, simulate


def replay(
    problem: AnyProblem, claim: Any, *, overheads: Sequence[int] | None = None
) -> Replay | TransferReplay:
    """Simulate the schedule of a claim under the rules of its problem.

    Args:
        problem: The problem.
        claim: A claim about it, or a solution of it: its schedule, its rules for discards where
            nothing moves, and its timetable where transfers are not integral.
        overheads: Bytes that each operation needs besides what is stored, where more is known
            than the profile says; of chains that are recomputed, and of joins in bytes.

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
    return replay_transfers(problem, claim, overheads=overheads)


def replay_transfers(
    problem: OffloadProblem | HybridProblem, claim: Any, *, overheads: Sequence[int] | None = None
) -> TransferReplay:
    """Simulate the schedule or the timetable of a claim under the problem's transfers.

    Offloading alone, and fractional transfers, have the `overheads` of their profile.

    Raises:
        InvalidScheduleError: The schedule cannot be run; or transfers of offloading are not
            integral, and there is no timetable or it is not that of the schedule.
    """
    budget, link = problem.budget, problem.link
    if isinstance(problem, HybridProblem):
        if problem.transfers is Transfers.INTEGRAL:
            return simulate_hybrid(
                problem.profile, claim.schedule, budget=budget, link=link, overheads=overheads
            )
        return fractional_replay(problem.profile, claim.schedule, budget=budget, link=link)
    if problem.transfers is Transfers.INTEGRAL:
        return simulate_offload(problem.profile, claim.schedule, budget=budget, link=link)
    if claim.timetable is None:
        raise InvalidScheduleError(f"{problem.transfers} transfers need a timetable")
    found = simulate_timetable(
        problem.profile, claim.timetable, link=link, transfers=problem.transfers
    )
    if claim.timetable.program() != claim.schedule:
        raise InvalidScheduleError("the timetable is not that of the schedule")
    return found
