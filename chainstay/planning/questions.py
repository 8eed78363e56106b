"""Questions to a method about a measured chain, and the judgement of its answers as they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from chainstay.dp import DP
from chainstay.errors import InfeasibleBudgetError
from chainstay.formulations import CPSAT, MIP
from chainstay.profiles import ChainProfile
from chainstay.runtime.execute.remade import remade_bytes
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.measured import Measurement
from chainstay.runtime.measures.stage_cost import StageCost
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.solution import Method, Solution
from chainstay.solve import AutoChain, solve_chain
from chainstay.units import format_bytes
from chainstay.validation.simulate import Replay, simulate


class Judged(NamedTuple):
    """A schedule as it runs.

    Attributes:
        replay: The simulation with an overhead for each operation.
        excess: Bytes that the runtime needs beyond it, for what it makes again while it is held.
    """

    replay: Replay
    excess: int

    @property
    def needs(self) -> int:
        """All bytes that it needs."""
        return self.replay.peak_bytes + self.excess


def plain_peak(measured: Measurement) -> int:
    """Return the bytes that plain training needs."""
    schedule = Schedule.keep_all(len(measured.account.stages))
    profile, overheads = measured.costs_of(schedule)
    return simulate(profile, schedule, overheads=overheads).peak_bytes


def profile_for(
    method: Method, account: Account, latest: Schedule | None = None, *, is_sound: bool = False
) -> ChainProfile:
    """Return what a method is asked about: the costs that it knows and the runtime can do.

    Args:
        method: The method.
        account: The chain's costs.
        latest: A schedule whose operations need no more than that; by default, every schedule's
            need that at least, or for a user's own method, those of plain training do.
        is_sound: Whether no schedule's operations need more, instead.
    """
    if not isinstance(method, DP | MIP | CPSAT | AutoChain):
        own = latest or Schedule.keep_all(len(account.stages))
        return account.profile() if is_sound else account.profile_for(own)
    if method.discards == Discards.FREE:
        account = account.without_options()
    if isinstance(method, DP) and method.persistence == "weak":
        # It takes no skips. Those without bytes are shared gradients, which then count in full.
        account = replace(account, skips=tuple(skip for skip in account.skips if skip.bytes))
    apart = counts_environments(method)
    if latest is not None and not is_sound:
        return account.by_kind_in(latest, apart=apart)
    return account.by_kind(is_sound=is_sound, apart=apart)


def counts_environments(method: Method) -> bool:
    """Return whether a method counts the environments that are there at each moment."""
    if not isinstance(method, DP | MIP | CPSAT) or method.discards != Discards.TABLE1:
        return False
    return not isinstance(method, DP) or method.persistence == "strong"


def is_rounded(method: Method) -> bool:
    """Return whether a method may leave some of the budget for what it knows too little about."""
    return not isinstance(method, DP | MIP | CPSAT | AutoChain) or (
        isinstance(method, DP) and method.slots is not None
    )


def judge(measured: Measurement, solution: Solution) -> Judged:
    """Simulate a schedule with each operation's own overhead and each stage's own times."""
    profile, overheads = measured.costs_of(solution.schedule)
    replay = simulate(profile, solution.schedule, discards=solution.discards, overheads=overheads)
    return Judged(replay, remade_bytes(profile, solution.schedule))


def renews_inputs_of_parts(schedule: Schedule) -> bool:
    """Return whether a stage that is kept in part gets another input before its backward."""
    in_part: set[int] = set()
    for op in schedule:
        if op.kind.is_forward and op.stage + 1 in in_part:
            return True
        if op.kind is OpKind.FORWARD_KEEP_ALL and op.option:
            in_part.add(op.stage)
        elif op.kind is OpKind.BACKWARD:
            in_part.discard(op.stage)
    return False


def least_solution(
    profile: ChainProfile, method: Method, known: Solution | None
) -> Solution | None:
    """Return a method's solution within its least budget, if that is below what `known` needs."""
    try:
        return solve_chain(profile, 1, method)
    except InfeasibleBudgetError as error:
        if known is not None and error.required >= known.peak_bytes:
            return None
        return solve_chain(profile, error.required, method)


def what_needs_most(measured: Measurement, smallest: Solution) -> str:
    """Return a clause on what needs most in the plan that needs least."""
    replay = judge(measured, smallest).replay
    pairs = zip(replay.timeline, measured.overheads_for(smallest.schedule), strict=True)
    highest, overhead = max(pairs, key=lambda pair: pair[0].during_bytes)
    costs = _run_as_one(measured.account, smallest.schedule, highest.op)
    first, last, number = costs[0].name, costs[-1].name, highest.op.stage
    stages = f"stage {number} ({first})"
    if len(costs) > 1:
        stages = f"stages {number} to {number + len(costs) - 1} ({first} to {last})"
    if highest.op.kind.is_forward:
        step, at = "forward", max(costs, key=lambda cost: cost.recording_bytes).forward_operator
    else:
        step, at = "backward", max(costs, key=lambda cost: cost.backward_bytes).backward_operator
    # Below 0 where something that counts as stored is gone by then: all is what others store.
    own, stored = format_bytes(overhead), format_bytes(highest.during_bytes - overhead)
    sizes = f", {own} for itself beside {stored} stored" * (overhead > 0)
    return f"the {step} of {stages} needs most{sizes}{at and f', at {at}'}"


def _run_as_one(account: Account, schedule: Schedule, op: Op) -> Sequence[StageCost]:
    """Return the costs of the stages that an operation of a schedule runs as one."""
    stages, keeping = account.stages[op.stage :], OpKind.FORWARD_KEEP_ALL
    if op.kind in (keeping, OpKind.BACKWARD):
        kept = (other for other in schedule if other.kind is keeping and other.stage == op.stage)
        if option := max(other.option for other in kept):
            return stages[: stages[0].options[option - 1].stages]
    return stages[:1]
