"""The ways to train a measured chain within a budget, and the fastest of them.

==============  =====================================================
``keep all``    plain training; nothing is faster, so that is all if it fits
``recompute``   stages run again, see `chainstay.planning`
``offload``     saved data goes to the host and comes back
``combined``    both, see `combining`
==============  =====================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from chainstay.errors import ChainstayError, InfeasibleBudgetError, UnknownMethodError
from chainstay.fitting.combining import solve_combined
from chainstay.fitting.means import Means
from chainstay.offloading import OffloadSolution
from chainstay.planning import solve_measured
from chainstay.profiles import Link
from chainstay.runtime.alternatives import Alternative
from chainstay.runtime.calls import Ends, PlannedCall
from chainstay.runtime.executor import Executor
from chainstay.runtime.measurement import Measurement
from chainstay.runtime.transfers import Transport, engine_for, program_of, transfers_of
from chainstay.schedule import Schedule
from chainstay.solution import Method, Solution
from chainstay.solve.offload import solve_offload
from chainstay.units import format_bytes
from chainstay.validation.simulate import simulate

__all__ = ["WAYS", "Ways", "fastest_way", "plain_peak"]

WAYS: Final = ("keep all", "recompute", "offload", "combined")


def plain_peak(measured: Measurement) -> int:
    """Bytes that plain training needs."""
    plain = Schedule.keep_all(len(measured.profile))
    overheads = measured.overheads_for(plain)
    return simulate(measured.profile, plain, overheads=overheads).peak_bytes


@dataclass(slots=True)
class Ways:
    """What each way makes of one measured chain.

    Attributes:
        measured: The chain.
        budget: Bytes.
        method: As for `chainstay.fit`.
        means: What is allowed.
        found: Solutions by way.
        refused: Why there is none, likewise.
    """

    measured: Measurement
    budget: int
    method: Method | str
    means: Means
    found: dict[str, Solution] = field(default_factory=dict)
    refused: dict[str, ChainstayError] = field(default_factory=dict)

    def try_all(self) -> None:
        """Fill `found` and `refused`.

        Raises:
            UnknownMethodError: There is no such method.
        """
        if plain_peak(self.measured) <= self.budget:
            self.found["keep all"] = self._recompute()
            return
        if self.means.recompute:
            self._try("recompute", self._recompute)
        if self.means.offload:
            link = self.means.link_on(self.measured.chain.device)
            self._try("offload", lambda: self._offload(link))
            if self.means.recompute:
                self._try("combined", lambda: solve_combined(self.measured, self.budget, link=link))

    def _try(self, name: str, solve: Callable[[], Solution]) -> None:
        try:
            self.found[name] = solve()
        except UnknownMethodError:
            raise
        except ChainstayError as refusal:
            self.refused[name] = refusal

    def _recompute(self) -> Solution:
        return solve_measured(self.measured, self.budget, self.method)

    def _offload(self, link: Link) -> Solution:
        solution = solve_offload(
            self.measured.offload_profile,
            self.budget,
            link=link,
            method="auto" if self.means.recompute else self.method,  # type: ignore[arg-type]
        )
        plan = transfers_of(
            program_of(solution),
            self.measured.profile,
            self.budget,
            self.measured.overheads_for(program_of(solution)),
        )
        return replace(solution, peak_bytes=plan.peak_bytes)

    @property
    def best(self) -> str:
        """The fastest; of equals the one that does least.

        Raises:
            ChainstayError: There is none; an `InfeasibleBudgetError`, if there is one, of the
                way that needs least.
        """
        if self.found:
            return min(WAYS, key=lambda name: (name not in self.found, self._time(name)))
        refusals = list(self.refused.values())
        tight = [each for each in refusals if isinstance(each, InfeasibleBudgetError)]
        if tight:
            raise min(tight, key=lambda each: each.required)
        raise refusals[0]

    def _time(self, name: str) -> object:
        return self.found[name].makespan if name in self.found else 0

    def table(self, chosen: str) -> Iterator[Alternative]:
        """All ways, for people."""
        for name in WAYS:
            solution = self.found.get(name)
            host = solution.host_bytes if isinstance(solution, OffloadSolution) else 0
            peak = None if solution is None else solution.peak_bytes
            yield Alternative(
                name=name,
                makespan=None if solution is None else solution.makespan,
                peak_bytes=plain_peak(self.measured) if name == "keep all" else peak,
                host_bytes=host,
                remark=self._remark(name, chosen),
                is_chosen=name == chosen,
            )

    def _remark(self, name: str, chosen: str) -> str:
        if name == chosen:
            return "nothing is faster" if name == "keep all" else "the fastest that fits"
        if name not in self.found:
            return self._why_none(name, chosen)
        best, own = self.found[chosen].makespan, self.found[name].makespan
        return f"{float(own / best) - 1:.1%} slower" if own > best else "no faster, does more"

    def _why_none(self, name: str, chosen: str) -> str:
        refusal = self.refused.get(name)
        if isinstance(refusal, InfeasibleBudgetError):
            return f"does not fit: needs {format_bytes(refusal.required)}"
        if refusal is not None:
            return str(refusal).partition("\n")[0]
        if name == "keep all":
            return "does not fit"
        if chosen == "keep all":
            return "not needed"
        is_about_link = name == "offload" or self.means.recompute
        return self.means.obstacle if is_about_link else "recompute is False"


def fastest_way(
    ends: Ends, measured: Measurement, budget: int, method: Method | str, means: Means
) -> PlannedCall:
    """The plan of the fastest way.

    Raises:
        ChainstayError: No way fits; as `Ways.best`.
    """
    ways = Ways(measured, budget, method, means)
    ways.try_all()
    chosen = ways.best
    solution = ways.found[chosen]
    transport, schedule = None, solution.schedule
    if isinstance(solution, OffloadSolution):
        schedule = program_of(solution)
        device = measured.chain.device
        engine = engine_for(device, link=solution.link, host_budget=means.host_budget)
        overheads = measured.overheads_for(schedule)
        transport = Transport.of(solution, measured.profile, overheads, engine)
    return PlannedCall(
        ends,
        Executor(measured.chain, measured.traits, schedule, transport),
        solution,
        measured.profile_for(schedule),
        overheads=measured.overheads_for(schedule),
        alternatives=tuple(ways.table(chosen)),
    )
