"""Schedules of other tools that offload, to be compared in the same simulator.

`OFFLOAD_BASELINES` maps a name to a function from a problem to the best plan that a user of
that tool would find by trying all its settings, or ``None`` where all run out of memory.
Read `activation_sets`, which sets the tools choose; `chainstay.problems.ordered_no_wait` makes
schedules of them. `tflms` is a rule of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from chainstay.baselines.offload.activation_sets import (
    autoswap_sets,
    first_sets,
    host_fitting_sets,
    vdnn_sets,
)
from chainstay.baselines.offload.tflms import tflms
from chainstay.problems.offload import OffloadProblem
from chainstay.problems.ordered_no_wait import OrderedNoWait
from chainstay.schedule import Schedule

__all__ = [
    "OFFLOAD_BASELINES",
    "OrderedNoWait",
    "autoswap_sets",
    "best_ordered",
    "first_sets",
    "host_fitting_sets",
    "tflms",
    "vdnn_sets",
]


def best_ordered(
    ordered: OrderedNoWait, sets: Iterable[frozenset[int]]
) -> tuple[int, frozenset[int]] | None:
    """Return the fastest of `sets` by ordered no-wait and its makespan in ticks, if any fits."""
    timed = ((ordered.makespan_ticks(chosen), chosen) for chosen in dict.fromkeys(sets))
    fitting = ((ticks, chosen) for ticks, chosen in timed if ticks is not None)
    return min(fitting, key=lambda pair: pair[0], default=None)


def _by_sets(
    sets: Callable[[OrderedNoWait], Iterable[frozenset[int]]],
) -> Callable[[OffloadProblem], Schedule | None]:
    def plan(problem: OffloadProblem) -> Schedule | None:
        ordered = OrderedNoWait.from_problem(problem)
        best = best_ordered(ordered, sets(ordered))
        found = None if best is None else ordered.plan(best[1])
        return None if found is None else found.schedule

    return plan


def _tflms(problem: OffloadProblem) -> Schedule | None:
    found = tflms(OrderedNoWait.from_problem(problem))
    return None if found is None else found.schedule


OFFLOAD_BASELINES: Final[Mapping[str, Callable[[OffloadProblem], Schedule | None]]] = (
    MappingProxyType(
        {"vdnn": _by_sets(vdnn_sets), "tflms": _tflms, "autoswap": _by_sets(autoswap_sets)}
    )
)
