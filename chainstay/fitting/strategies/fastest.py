"""The strategies to train a measured chain within a budget, the fastest of them, and its plan.

Which is faster is told by how much longer than plain training each takes. A join is measured
anew, and compared with its own plain training; it is taken where it is clearly faster, so that the
noise between two measurements does not decide.

==============  =====================================================
``keep all``    plain training; nothing is faster, so that is all if it fits
``recompute``   stages run again, see `chainstay.planning`
``join``        stages run again, and branches that meet are planned apart, see `joins`
``offload``     saved data goes to the host and comes back, see `offloaded`
``combined``    both, see `combined`
==============  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Final

from chainstay.dp import DP
from chainstay.errors import ChainstayError, InfeasibleBudgetError, UnknownMethodError
from chainstay.fitting.strategies.combined import solve_combined
from chainstay.fitting.strategies.joins import JoinAttempt
from chainstay.fitting.strategies.memory_options import MemoryOptions
from chainstay.fitting.strategies.offloaded import solve_offloaded
from chainstay.planning import solve_measured
from chainstay.planning.questions import plain_peak
from chainstay.problems.hybrid import HybridSolution
from chainstay.problems.offload import OffloadSolution
from chainstay.profiles import Link
from chainstay.runtime.execute.alternatives import Alternative
from chainstay.runtime.execute.block_executor import BlockSchedule, PlannedBlocks, crosses_segment
from chainstay.runtime.measures.blocks.block_costs import MeasuredBlocks
from chainstay.runtime.measures.measured import Measurement
from chainstay.runtime.stage.staged_graph import PlannedGraph, StagedChain
from chainstay.runtime.transfer import Engine, PlannedTransfers, program_of
from chainstay.solution import Method, Solution
from chainstay.solve.budgets import Budget
from chainstay.solve.offload import AutoOffload
from chainstay.timetable import Time
from chainstay.units import format_bytes

STRATEGIES: Final = ("keep all", "recompute", "join", "offload", "combined")
_OFFLOAD_BESIDE: Final = AutoOffload(time_limit_s=2.0)
"""For plans that only offload, where others may do more: exact solvers get less time."""

_CHAINS: Final = ("recompute", "offload", "combined")
_CLEARLY: Final = Fraction(105, 100)
"""By so much a join's plan has to be faster: two measurements of one model differ by percents."""


@dataclass(slots=True)
class Strategies:
    """The solutions that each strategy finds for one measured chain.

    Attributes:
        measured: The chain.
        budget: Bytes.
        method: The method, as for `chainstay.fit`.
        memory: The techniques that are allowed.
        attempt: An attempt to plan branches apart, if there are any.
        found: Solutions by strategy.
        refused: Refusals by strategy, where there is no solution.
        join: The plan of branches, if one was found.
    """

    measured: Measurement
    budget: int
    method: Method | str
    memory: MemoryOptions
    attempt: JoinAttempt | None = None
    found: dict[str, Solution] = field(default_factory=dict)
    refused: dict[str, ChainstayError] = field(default_factory=dict)
    join: PlannedGraph | None = None

    def try_all(self) -> None:
        """Fill `found` and `refused`.

        Raises:
            UnknownMethodError: There is no such method.
        """
        if plain_peak(self.measured) <= self.budget:
            self.found["keep all"] = self._recompute()
            return
        if self.memory.recompute:
            self._try("recompute", self._recompute)
        if self.memory.offload:
            link = self.memory.link_on(self.measured.chain.device)
            self._try("offload", lambda: self._offload(link))
            if self.memory.recompute:
                known = tuple(self.found.values())
                self._try(
                    "combined",
                    lambda: solve_combined(self.measured, self.budget, link=link, known=known),
                )
        is_slow = not self.found or min(map(self._slowdown, self.found)) > 1
        if self._has_branches and is_slow:
            self._try("join", self._join)

    @property
    def _has_branches(self) -> bool:
        """Whether branches can be planned apart; only the dynamic program does that."""
        is_solved = self.method in ("auto", "dp") or self.method == DP()
        return self.attempt is not None and is_solved and self.memory.recompute

    def _try(self, name: str, solve: Callable[[], Solution]) -> None:
        try:
            self.found[name] = solve()
        except UnknownMethodError:
            raise
        except ChainstayError as refusal:
            self.refused[name] = refusal

    def _recompute(self) -> Solution:
        return solve_measured(self.measured, self.budget, self.method)

    def _join(self) -> Solution:
        assert self.attempt is not None, "only tried where there are branches"
        self.join = self.attempt.plan(self.budget)
        return self.join.solution

    def _offload(self, link: Link) -> Solution:
        method = _OFFLOAD_BESIDE if self.memory.recompute else self.method
        return solve_offloaded(self.measured, self.budget, link=link, method=method)  # type: ignore[arg-type]  # any other method is refused there

    @property
    def best(self) -> str:
        """The fastest; of equals the one that does least.

        Raises:
            ChainstayError: There is none; an `InfeasibleBudgetError`, if there is one, of the
                strategy that needs least.
        """
        if self.found:
            return min((name for name in STRATEGIES if name in self.found), key=self._handicapped)
        refusals = list(self.refused.values())
        tight = [refusal for refusal in refusals if isinstance(refusal, InfeasibleBudgetError)]
        if tight:
            tightest = min(tight, key=lambda refusal: refusal.required)
            raise tightest.beside(plain_peak(self.measured))
        raise refusals[0]

    def plain_time(self, name: str) -> int:
        """Return the time of plain training in ns, by the measurement behind a strategy's plan."""
        if name == "join" and self.join is not None and self.join.plain_time is not None:
            return self.join.plain_time
        return self.measured.profile.least_time

    def _slowdown(self, name: str) -> Fraction:
        """Return the time of a step in times of plain training."""
        return Fraction(self.found[name].makespan) / max(self.plain_time(name), 1)

    def _handicapped(self, name: str) -> Fraction:
        """Return the slowdown; a join, measured apart, has to be faster beyond noise."""
        return self._slowdown(name) * (_CLEARLY if name == "join" else 1)

    def as_one_chain(self) -> str:
        """Return a text for people on how well the model does without its branches."""
        found = [self._slowdown(name) for name in _CHAINS if name in self.found]
        if found:
            return f"as one chain {float(min(found)) - 1:.1%} slower than plain"
        refusals = (self.refused.get(name) for name in _CHAINS)
        needed = [r.required for r in refusals if isinstance(r, InfeasibleBudgetError)]
        return (
            f"as one chain it needs {format_bytes(min(needed))}"
            if needed
            else "as one chain no plan was found"
        )

    def table(self, chosen: str) -> Iterator[Alternative]:
        """Yield all strategies that there are for this model, allowed or not, for people."""
        for name in STRATEGIES:
            if name == "join" and not self._has_branches:
                continue
            solution = self.found.get(name)
            host = solution.host_bytes if isinstance(solution, OffloadSolution) else 0
            peak = None if solution is None else solution.peak_bytes
            yield Alternative(
                name=name,
                makespan=None if solution is None else self._comparable_time(name, chosen),
                peak_bytes=plain_peak(self.measured) if name == "keep all" else peak,
                host_bytes=host,
                remark=self._remark(name, chosen),
                is_chosen=name == chosen,
                is_tried=name == "keep all" or name in self.found or name in self.refused,
            )

    def _comparable_time(self, name: str, chosen: str) -> Time:
        """Return the time of a step in ns, as if it had been measured along with `chosen`."""
        if "join" not in (name, chosen) or name == chosen:
            return self.found[name].makespan
        return int(self._slowdown(name) * self.plain_time(chosen))

    def _remark(self, name: str, chosen: str) -> str:
        if name == chosen:
            return "nothing is faster" if name == "keep all" else "the fastest that fits"
        if name not in self.found:
            return self._why_none(name, chosen)
        own = self._slowdown(name)
        if own <= self._slowdown(chosen):
            return "no faster, does more"
        return f"{float(own) - 1:.1%} slower than plain"

    def _why_none(self, name: str, chosen: str) -> str:
        refusal = self.refused.get(name)
        if isinstance(refusal, InfeasibleBudgetError):
            return f"does not fit: needs {format_bytes(refusal.required)}"
        if refusal is not None:
            return str(refusal).partition("\n")[0]
        if name == "keep all":
            return "does not fit"
        if chosen == "keep all" or name == "join":
            return "not needed"
        is_about_link = name == "offload" or self.memory.recompute
        return self.memory.obstacle if is_about_link else "recompute is False"


def plan_of(cut: StagedChain, strategies: Strategies) -> PlannedGraph:
    """Return the plan of the fastest strategy of those that were tried.

    Raises:
        ChainstayError: None fits; as `Strategies.best`.
    """
    chosen = strategies.best
    alternatives = tuple(strategies.table(chosen))
    if chosen == "join":
        assert strategies.join is not None, "it was found"
        origin = f"{strategies.join.origin.rstrip()} ({strategies.as_one_chain()})\n"
        peak = plain_peak(strategies.measured)
        return replace(strategies.join, origin=origin, alternatives=alternatives, plain_peak=peak)
    measured, solution = strategies.measured, strategies.found[chosen]
    engine = strategies.memory.engine_for(solution, measured.chain.device)
    return replace(planned_graph(cut, measured, solution, engine), alternatives=alternatives)


def planned_graph(
    staged: StagedChain, costs: Measurement, solution: Solution, engine: Engine | None = None
) -> PlannedGraph:
    """Return a graph by the schedule of `solution`.

    Raises:
        PlanMismatchError: The schedule is for another number of stages, or cannot be run.
        HostBudgetError: What is away at once needs more than the engine's host memory.
    """
    transfers = None
    if isinstance(solution, OffloadSolution):
        assert engine is not None, "transfers need one"
        schedule = program_of(solution)
        recomputes = isinstance(solution, HybridSolution)
        profile = (costs.flat_profile_for if recomputes else costs.profile_for)(schedule)
        overheads = costs.overheads_for(schedule)
        transfers = PlannedTransfers.of(solution, profile, overheads, engine)
    else:
        profile, overheads = costs.costs_of(solution.schedule)
    return replace(
        staged.planned(solution, profile, transfers),
        overheads=overheads,
        plain_time=costs.profile.least_time,
        plain_peak=plain_peak(costs),
    )


def solve_blocks(measured: MeasuredBlocks, budget: Budget, method: Method | str) -> Solution:
    """Return the fastest schedule of blocks that was found; see `solve_measured`."""
    return solve_measured(
        measured,
        budget,
        method,
        can_run=lambda schedule: not crosses_segment(measured.blocks, schedule),
    )


def planned_blocks(measured: MeasuredBlocks, solution: Solution) -> PlannedBlocks:
    """Return the blocks of a model by the schedule of `solution`."""
    schedule = solution.schedule
    return PlannedBlocks(
        schedule=BlockSchedule.from_schedule(measured.blocks, measured.chain, schedule),
        solution=solution,
        profile=measured.profile_for(schedule),
        overheads=measured.overheads_for(schedule),
        plain_time=measured.profile.least_time,
        plain_peak=plain_peak(measured),
    )
