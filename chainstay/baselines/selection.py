"""Which of several schedules to take: the fastest that fits, in the judgement of a referee."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from chainstay.errors import InfeasibleBudgetError
from chainstay.schedule import OpKind, Schedule

__all__ = ["Judgement", "fastest_within"]


class Judgement(Protocol):
    """What a judge says of a schedule: `chainstay.simulate` returns one."""

    @property
    def makespan(self) -> int:
        """Total time, in ns."""

    @property
    def peak_bytes(self) -> int:
        """The most memory in use at any time."""


def fastest_within(
    candidates: Iterable[Schedule], judge: Callable[[Schedule], Judgement], budget: int
) -> Schedule:
    """The fastest of `candidates` that fits in `budget`; of equals, the first.

    Args:
        candidates: At least one schedule of one chain.
        judge: Tells makespan and peak, such as ``partial(simulate, profile)``.
        budget: Bytes.

    Raises:
        InfeasibleBudgetError: None fits; ``error.required`` is the least peak among them.
    """
    judged = [(judge(schedule), schedule) for schedule in candidates]
    fitting = [(judgement, s) for judgement, s in judged if judgement.peak_bytes <= budget]
    if not fitting:
        judgement, schedule = min(judged, key=lambda pair: pair[0].peak_bytes)
        raise InfeasibleBudgetError(
            budget=budget,
            required=judgement.peak_bytes,
            stages=sum(op.kind is OpKind.BACKWARD for op in schedule),
            family="baseline",
        )
    return min(fitting, key=lambda pair: pair[0].makespan)[1]
