"""Select the fastest of several schedules that fits in a budget."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from chainstay.errors import InfeasibleBudgetError
from chainstay.problems.arguments import require_whole
from chainstay.schedule import OpKind, Schedule


class ScheduleCosts(Protocol):
    """Makespan and peak of a schedule: what `chainstay.simulate` returns, for one."""

    @property
    def makespan(self) -> int:
        """Total time, in ns."""

    @property
    def peak_bytes(self) -> int:
        """The most bytes in use at any time."""


def fastest_within(
    candidates: Iterable[Schedule], judge: Callable[[Schedule], ScheduleCosts], budget: int
) -> Schedule:
    """Return the fastest of `candidates` that fits in `budget`; of equals, the first.

    Args:
        candidates: At least one schedule of one chain.
        judge: Function from a schedule to its makespan and peak: ``partial(simulate, profile)``.
        budget: Bytes.

    Raises:
        InfeasibleBudgetError: None fits; ``error.required`` is the least peak among them.
    """
    require_whole(budget)
    simulated = [(judge(schedule), schedule) for schedule in candidates]
    fitting = [(costs, s) for costs, s in simulated if costs.peak_bytes <= budget]
    if not fitting:
        costs, schedule = min(simulated, key=lambda pair: pair[0].peak_bytes)
        raise InfeasibleBudgetError(
            budget=budget,
            required=costs.peak_bytes,
            stages=sum(op.kind is OpKind.BACKWARD for op in schedule),
            family="baseline",
        )
    return min(fitting, key=lambda pair: pair[0].makespan)[1]
