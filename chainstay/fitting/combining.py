"""Plans of measured chains that recompute and offload: the fastest found that really fits.

What operations need besides what is stored depends on the schedule, as `chainstay.planning`
says. Each question takes longer here, so there are few: under the pessimistic profile, whose
plans fit; under the optimistic one, and again with what that was too optimistic about; and
under the own profile of the best plan so far.

A plan is judged twice, by code that shares nothing: the simulator tells its time, and the
runtime's own count of bytes, with overheads of each operation, that it can run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from chainstay.dp.hybrid import hybrid_bound
from chainstay.errors import (
    ChainstayError,
    HostBudgetError,
    InfeasibleBudgetError,
    InvalidScheduleError,
    SolverLimitError,
)
from chainstay.hybrid import HybridSolution
from chainstay.profiles import ChainProfile, Link
from chainstay.runtime.items import movable_chain
from chainstay.runtime.measurement import Measurement
from chainstay.runtime.remaking import remade_bytes
from chainstay.runtime.transfers import transfers_of
from chainstay.schedule import Schedule
from chainstay.solution import Family
from chainstay.solve.hybrid import Pofo, solve_hybrid
from chainstay.validation.hybrid import simulate_hybrid

__all__ = ["solve_combined"]

_CORRECTIONS: Final = 2
"""Questions under the optimistic profile."""
_SLOTS: Final = 2400
"""Slots times stages: what a solve takes grows with both."""
_TRIES: Final = 6000
"""Program lists looked at, times stages, likewise."""


def solve_combined(measured: Measurement, budget: int, *, link: Link) -> HybridSolution:
    """The fastest plan found of a measured chain that recomputes, offloads, or does both.

    Args:
        measured: What the chain costs. What several states share stays on the device.
        budget: Bytes on the device.
        link: To the host, whose `capacity` counts.

    Returns:
        The program list. Its makespan and times are those under the profile for it alone, the
        bound is on all program lists of this chain within the budget.

    Raises:
        InfeasibleBudgetError: Nothing fits; ``error.required`` is the least budget of all
            program lists, if that is known.
        HostBudgetError: Nothing found fits in the host's memory.
        SolverLimitError: Nothing was found that fits.

    Complexity:
        Up to four solves, see `chainstay.solve_hybrid`, with fewer slots for longer chains.
    """
    search = _Search(measured, budget, link)
    pessimistic = search.ask(measured.movable_profile)
    optimistic = movable_chain(measured.account.optimistic())
    profile = optimistic
    for _ in range(_CORRECTIONS):
        if profile == measured.movable_profile:
            break
        found = search.ask(profile)
        if found is None or search.best is found:
            break
        profile = _dearer(profile, search.own(found.schedule))
    if search.best is not None and search.best is not pessimistic:
        search.ask(search.own(search.best.schedule))
    if search.best is None:
        raise search.refusal or SolverLimitError(
            "no plan was found that fits when it is run; raise the budget a little"
        )
    bound = hybrid_bound(optimistic, budget, link)
    return replace(
        search.best,
        lower_bound=bound,
        unrestricted_bound=bound,
        family=Family.ALL,
        fractional_bound=0,
        fractional_makespan=None,
    )


@dataclass(slots=True)
class _Search:
    """What was found so far.

    Attributes:
        measured: The chain.
        budget: Bytes.
        link: To the host.
        best: The fastest plan that fits.
        refusal: Why a question had no answer, the last one that had none.
    """

    measured: Measurement
    budget: int
    link: Link
    best: HybridSolution | None = None
    refusal: ChainstayError | None = None

    def ask(self, profile: ChainProfile) -> HybridSolution | None:
        """The solver's plan for `profile`, as it really is if it fits."""
        method = Pofo(
            slots=max(30, min(100, _SLOTS // len(profile))),
            tries=max(60, min(300, _TRIES // len(profile))),
        )
        try:
            solution = solve_hybrid(profile, self.budget, link=self.link, method=method)
        except (InfeasibleBudgetError, SolverLimitError, HostBudgetError) as refusal:
            self.refusal = refusal
            return None
        judged = self._judged(solution)
        if judged is None:
            return solution
        if self.best is None or judged.makespan < self.best.makespan:
            self.best = judged
        return judged

    def own(self, schedule: Schedule) -> ChainProfile:
        """What the chain costs under `schedule`."""
        return movable_chain(self.measured.profile_for(schedule))

    def _judged(self, solution: HybridSolution) -> HybridSolution | None:
        """`solution` as the referee and the runtime see it; ``None`` if it does not fit."""
        schedule = solution.schedule
        computations = Schedule(tuple(op for op in schedule if not op.kind.is_transfer))
        if remade_bytes(self.measured.profile, computations):
            return None
        try:
            replay = simulate_hybrid(
                self.own(schedule), schedule, budget=self.budget, link=self.link
            )
            plan = transfers_of(
                schedule, self.measured.profile, self.budget, self.measured.overheads_for(schedule)
            )
        except InvalidScheduleError:
            return None
        if self.link.capacity is not None and plan.host_bytes > self.link.capacity:
            return None
        return replace(
            solution,
            makespan=replay.makespan,
            peak_bytes=max(replay.peak_bytes, plan.peak_bytes),
            timetable=replay.timetable,
            held_bytes=replay.held_bytes,
            lower_bound=0,
            unrestricted_bound=0,
        )


def _dearer(one: ChainProfile, other: ChainProfile) -> ChainProfile:
    """Of each overhead the larger one."""
    stages = []
    for mine, theirs in zip(one.stages, other.stages, strict=True):
        forward = max(mine.forward_overhead_bytes, theirs.forward_overhead_bytes)
        backward = max(mine.backward_overhead_bytes, theirs.backward_overhead_bytes)
        stages.append(
            replace(mine, forward_overhead_bytes=forward, backward_overhead_bytes=backward)
        )
    return replace(one, stages=tuple(stages))
