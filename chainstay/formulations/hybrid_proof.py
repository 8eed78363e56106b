"""What models of growing extents find and prove together about a hybrid problem."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from chainstay.errors import SolverLimitError
from chainstay.formulations.cpsat.method import CPSAT
from chainstay.formulations.extent import Extent
from chainstay.formulations.mip import MIP
from chainstay.hybrid import HybridClaim, HybridProblem
from chainstay.schedule import Schedule
from chainstay.solution import Family
from chainstay.timetable import Time, Timetable
from chainstay.units import format_bytes

__all__ = ["Known", "Proof", "grown_claim"]

_LEAST_SECONDS: Final = 0.05
"""Left of the time limit, for which another model is not stated."""
_TWICE: Final = Extent(passes=2, prefetches=2)


class Known(NamedTuple):
    """A program list to start from, its times and makespan."""

    schedule: Schedule
    timetable: Timetable
    makespan: Time


@dataclass(slots=True)
class Proof:
    """The best schedule so far and bounds.

    Attributes:
        problem: What is solved.
        schedule: The fastest one known, if any, and its `makespan`.
        bound: No schedule at all is faster.
        bound_twice: None of `Family.TWICE` is.
    """

    problem: HybridProblem
    schedule: Schedule | None
    makespan: Time | None
    bound: Time
    bound_twice: Time = 0

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to find."""
        return self.makespan is not None and self.bound >= self.makespan

    def found(self, schedule: Schedule, makespan: Time) -> None:
        """One more schedule."""
        if self.makespan is None or makespan < self.makespan:
            self.schedule, self.makespan = schedule, makespan

    def bounded(self, extent: Extent, bound: Time | None) -> None:
        """No schedule in a model is faster than `bound`; with ``None``, there is none in it."""
        for within in (None, _TWICE):
            outside = extent.outside(self.problem, within)
            known = outside if bound is None else min(bound, outside)
            if within is None:
                self.bound = max(self.bound, known)
            else:
                self.bound_twice = max(self.bound_twice, known)

    def claim(self) -> HybridClaim | None:
        """All of it, ``None`` without a schedule."""
        if self.schedule is None or self.makespan is None:
            return None
        bound = min(self.bound, self.makespan)
        twice = min(self.bound_twice, self.makespan)
        family, lower = (Family.TWICE, twice) if twice > bound else (Family.ALL, bound)
        return HybridClaim(
            schedule=self.schedule,
            makespan=self.makespan,
            lower_bound=lower,
            family=family,
            unrestricted_bound=bound,
        )


def grown_claim(
    problem: HybridProblem,
    settings: MIP | CPSAT,
    solve: Callable[[Proof, Extent, float], bool],
    *,
    known: Known | None,
    least: Time,
) -> HybridClaim:
    """Models of growing extents, until nothing is left to find or time runs out.

    Args:
        problem: What to solve.
        settings: Whose time is for all models together.
        solve: Solves a model in so many seconds and tells what is known; whether it came to an
            end.
        known: An answer to start from.
        least: A makespan that no answer is below.

    Raises:
        SolverLimitError: Nothing was found in time, or within the largest extent.
    """
    proof = Proof(problem, None, None, least)
    if known is not None:
        proof.found(known.schedule, known.makespan)
    deadline = time.monotonic() + settings.time_limit_s
    extent: Extent | None = Extent()
    while extent is not None and not proof.is_complete:
        left = deadline - time.monotonic()
        if left < _LEAST_SECONDS or not solve(proof, extent, left):
            break
        extent = extent.grown(problem, proof.makespan)
    if (found := proof.claim()) is None:
        raise SolverLimitError(
            f"{settings} found no schedule of this {len(problem.profile)}-stage chain in "
            f"{format_bytes(problem.budget)} in time; raise time_limit_s, or use method='auto'",
            best_bound=math.ceil(proof.bound),
        )
    return found
