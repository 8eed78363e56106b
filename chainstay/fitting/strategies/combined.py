"""Plans of measured chains that recompute and offload: the fastest found that really fits.

What operations need besides what is stored depends on the schedule, as `chainstay.planning`
says. The solver wants one profile for all, and only its computations and what it moves are
taken from its plans. Whole transfers are made of them under the overheads of each operation,
as this schedule has them, and the real budget: where a plan does not fit, more is moved.

The solver knows no kinds of runs, and takes longer here, so it is asked three times: with overheads
that no schedule exceeds, with those of plain training, and with those of the best plan by then;
each time for whole stages, and for stages with their options. Plans that only recompute or only
offload are plans, too: what is known of them is where the search begins. The bound is by overheads
that every schedule has at least.

A plan is judged twice, by code that shares nothing: the simulator tells its time, and the
runtime's own count of bytes that it can run.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from chainstay.dp.hybrid import SlotPlan, hybrid_bound
from chainstay.errors import ChainstayError, HostBudgetError, InvalidScheduleError, SolverLimitError
from chainstay.problems.hybrid import HybridProblem, HybridSolution
from chainstay.problems.offload import OffloadSolution
from chainstay.profiles import ChainProfile, Link
from chainstay.runtime.execute.items import bounding_chain, standing_bytes
from chainstay.runtime.execute.remade import remade_bytes
from chainstay.runtime.measures.measured import Measurement
from chainstay.runtime.transfer import program_of, transfers_of
from chainstay.schedule import Discards, OpKind, Schedule
from chainstay.solution import Family, Solution
from chainstay.solve.hybrid import Pofo
from chainstay.solve.whole_transfers import WholeTransferSearch
from chainstay.timetable import TimedSchedule, Transfers
from chainstay.units import format_bytes
from chainstay.validation.event_machine import TransferReplay
from chainstay.validation.hybrid.fractional_transfers import without_transfers
from chainstay.validation.hybrid.simulate import simulate_hybrid
from chainstay.validation.simulate import simulate

_SLOTS: Final = 2400
"""Slots times stages: what a solve takes grows with both."""
_TRIES: Final = 6000
"""Program lists looked at, times stages, likewise."""


def solve_combined(
    measured: Measurement, budget: int, *, link: Link, known: Iterable[Solution] = ()
) -> HybridSolution:
    """Return the fastest plan found of a measured chain that recomputes, offloads, or does both.

    Args:
        measured: The chain's costs. Tensors that several states share stay on the device.
        budget: Bytes on the device.
        link: The link to the host, whose `capacity` counts.
        known: Plans that recompute only or offload only, of this chain for this budget.

    Returns:
        The program list, no slower than any of `known` that keeps no several stages together. Its
        makespan and times are its own, with the overheads of its operations, the bound is on all
        program lists of these stages and their own options within the budget.

    Raises:
        HostBudgetError: Nothing found fits in the host's memory; with ``error.required``,
            something does.
        SolverLimitError: Nothing was found that fits.

    Complexity:
        Three searches for plans, and three more where stages have options, see
        `chainstay.solve_hybrid`, with fewer slots for longer chains.
    """
    start = time.perf_counter()
    search = _HybridSearch(measured, budget, link)
    search.run(known)
    if search.best is None:
        raise _refusal(search)
    return replace(search.solution(), solve_seconds=time.perf_counter() - start)


@dataclass(slots=True)
class _HybridSearch:
    """The state of a search for plans that recompute and transfer."""

    measured: Measurement
    budget: int
    link: Link
    best: TimedSchedule | None = None
    method: str = ""
    offered: set[SlotPlan] = field(default_factory=set)

    def run(self, known: Iterable[Solution]) -> None:
        """Take over what is known, then look at plans under the three kinds of overheads."""
        for solution in known:
            self._take_over(solution)
        self._ask(self.measured.movable_profile)
        self._ask(self._own(Schedule.keep_all(len(self.measured.account.stages))))
        if self.best is not None:
            self._ask(self._own(self.best.schedule))

    def _ask(self, profile: ChainProfile) -> None:
        """Look at the solver's plans for `profile`, without its options and with them."""
        stages = (replace(stage, options=()) for stage in profile.stages)
        whole = replace(profile, stages=tuple(stages))
        self._look_at_plans(whole)
        if whole != profile:
            self._look_at_plans(profile)

    def solution(self) -> HybridSolution:
        """Return the solution of the best plan."""
        assert self.best is not None, "asked only if there is one"
        schedule = self.best.schedule
        replay = self._replayed(schedule)
        profile = self.measured.flat_profile_for(schedule)
        plan = transfers_of(schedule, profile, self.budget, self.measured.overheads_for(schedule))
        excess = remade_bytes(self.measured.profile, without_transfers(schedule))
        bound = hybrid_bound(self.least, self.budget, self.link)
        return HybridSolution(
            schedule=schedule,
            makespan=replay.makespan,
            peak_bytes=max(replay.peak_bytes, plan.peak_bytes) + excess,
            budget=self.budget,
            lower_bound=bound,
            unrestricted_bound=bound,
            family=Family.ALL,
            discards=Discards.FREE,
            method=self.method,
            solve_seconds=0.0,
            link=self.link,
            transfers=Transfers.INTEGRAL,
            timetable=replay.timetable,
            host_bytes=replay.host_bytes,
        )

    @property
    def least(self) -> ChainProfile:
        """The profile that bounds every schedule: each forward in its cheaper form."""
        account = self.measured.account
        stages = (
            cost.stage(
                forward=min(cost.recording_bytes, cost.dropping_bytes),
                backward=max(cost.backward_bytes, 0),
            )
            for cost in account.stages
        )
        cheapest = replace(account.profile(), stages=tuple(stages))
        return bounding_chain(account.with_flat_options(cheapest))

    def _take_over(self, solution: Solution) -> None:
        """Keep `solution` as the best plan, if it is one that can run and nothing is faster."""
        schedule = solution.schedule
        if isinstance(solution, OffloadSolution):
            schedule = program_of(solution)
        counts = [len(stage.options) for stage in self.measured.movable_profile.stages]
        if any(op.option > counts[op.stage] for op in schedule):
            return  # it keeps several stages together, which transfers do not know
        try:
            makespan = self._replayed(schedule).makespan
        except InvalidScheduleError:
            return
        if self._can_run(schedule):
            self._keep(TimedSchedule(makespan, schedule), solution.method)

    def _look_at_plans(self, profile: ChainProfile) -> None:
        """Look at the solver's plans for `profile`, as they really are."""
        stages = len(profile)
        tries = max(60, min(300, _TRIES // stages))
        pofo = Pofo(slots=max(30, min(100, _SLOTS // stages)), finds_bound=False)
        plans, _ = pofo.plans(HybridProblem(profile, self.budget, self.link))
        found: list[tuple[TimedSchedule, WholeTransferSearch]] = []
        for plan in plans:
            if plan not in self.offered:
                self.offered.add(plan)
                search = self._search_from(plan, tries)
                first = None if search is None else search.first(plan.moved)
                if search is not None and first is not None:
                    found.append((first, search))
        if found:  # the local search takes most of the time, so only the fastest gets one
            first, search = min(found, key=lambda pair: pair[0].makespan)
            self._keep(search.improved(first), str(pofo))

    def _search_from(self, plan: SlotPlan, tries: int) -> WholeTransferSearch | None:
        """Return the search for program lists of these computations, if one can be the best."""
        profile = self._movable(Schedule(plan.ops))
        computing = simulate(profile, Schedule(plan.ops)).makespan
        if self.best is not None and computing >= self.best.makespan:
            return None
        problem = HybridProblem(profile, self.budget, self.link)
        overheads = self._overheads(Schedule(plan.ops))
        return WholeTransferSearch(
            problem, plan.ops, tries, overheads, self._can_run, profile_of=self._movable
        )

    def _keep(self, program: TimedSchedule, method: str) -> None:
        if self.best is None or program.makespan < self.best.makespan:
            self.best, self.method = program, method

    def _replayed(self, schedule: Schedule) -> TransferReplay:
        """Return the referee's replay of `schedule`, which counts the time that the moves take."""
        return simulate_hybrid(
            self._movable(schedule),
            schedule,
            budget=self.budget,
            link=self.link,
            overheads=self._overheads(schedule),
        )

    def _can_run(self, schedule: Schedule) -> bool:
        """Whether the runtime can, within both memories."""
        computations = without_transfers(schedule)
        excess = remade_bytes(self.measured.profile, computations)
        if excess and len(computations) < len(schedule):
            return False  # who waits for transfers does not know of it
        try:
            plan = transfers_of(
                schedule,
                self.measured.flat_profile_for(schedule),
                self.budget - excess,
                self.measured.overheads_for(schedule),
            )
        except InvalidScheduleError:
            return False
        return self.link.capacity is None or plan.host_bytes <= self.link.capacity

    def _movable(self, schedule: Schedule) -> ChainProfile:
        """Return the items that can be moved, and how long stages take in `schedule`."""
        return bounding_chain(self.measured.flat_profile_for(schedule))

    def _overheads(self, schedule: Schedule) -> list[int]:
        """Return the bytes that each operation needs besides, with what cannot be moved."""
        own = self.measured.overheads_for(schedule)
        standing = standing_bytes(self.measured.profile, schedule)
        return [sum(both) for both in zip(own, standing, strict=True)]

    def _own(self, schedule: Schedule) -> ChainProfile:
        """Return the chain's costs under `schedule`, with the dearest operation of each stage.

        Those of its options are what they would be if `schedule` kept the stages under them.
        """
        profile = self._movable(schedule)
        most = max(len(stage.options) for stage in profile.stages)
        own = [self._dearest(_kept_under(schedule, number, profile)) for number in range(most + 1)]
        stages = []
        for index, stage in enumerate(profile.stages):
            forward, backward = own[0][index]
            options = (
                replace(
                    option,
                    first=replace(option.first, overhead_bytes=own[number][index][0]),
                    backward_overhead_bytes=own[number][index][1],
                )
                for number, option in enumerate(stage.options, 1)
            )
            stages.append(
                replace(
                    stage,
                    forward_overhead_bytes=forward,
                    backward_overhead_bytes=backward,
                    options=tuple(options),
                )
            )
        return replace(profile, stages=tuple(stages))

    def _dearest(self, schedule: Schedule) -> list[tuple[int, int]]:
        """Return the bytes that forwards and the backward of each stage need besides at most."""
        largest: defaultdict[tuple[int, bool], int] = defaultdict(int)
        for op, overhead in zip(schedule, self._overheads(schedule), strict=True):
            key = op.stage, op.kind.is_forward
            largest[key] = max(largest[key], overhead)
        stages = range(len(self.measured.account.stages))
        return [(largest[stage, True], largest[stage, False]) for stage in stages]


def _kept_under(schedule: Schedule, number: int, profile: ChainProfile) -> Schedule:
    """Return `schedule` with every stage kept under an option, or its last one."""
    kept = (min(number, len(profile.stages[op.stage].options)) for op in schedule)
    return Schedule(
        tuple(
            replace(op, option=option) if op.kind is OpKind.FORWARD_KEEP_ALL else op
            for op, option in zip(schedule, kept, strict=True)
        )
    )


def _refusal(search: _HybridSearch) -> ChainstayError:
    """Return the error that says why nothing was found."""
    required = HybridProblem(search.least, search.budget, search.link).required_bytes
    if search.budget < required:
        return SolverLimitError(
            f"no plan that recomputes and offloads fits; every one needs {format_bytes(required)} "
            "or more, so raise the budget to at least that"
        )
    capacity = search.link.capacity
    if capacity is not None:
        link = replace(search.link, capacity=None)
        unlimited = _HybridSearch(search.measured, search.budget, link)
        unlimited.run(())
        if unlimited.best is not None:
            needed = unlimited.solution().host_bytes
            return HostBudgetError(budget=capacity, required=needed, is_least=True)
    return SolverLimitError(
        "no plan that recomputes and offloads was found that fits when it is run, which does not "
        "prove that there is none; raise the budget a little"
    )
