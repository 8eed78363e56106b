"""What both Pyomo models of offloading say of the course of computations."""

from __future__ import annotations

from dataclasses import dataclass

from chainstay.formulations.algebra import Model
from chainstay.offloading import OffloadProblem

__all__ = ["Course"]


@dataclass(frozen=True, slots=True)
class Course:
    """A model of forwards 0 .. n-1 and backwards n-1 .. 0.

    Attributes:
        model: Of Pyomo. Yours to write out or hand to any solver.
        problem: What it states.
        unit: Ticks of the link in a unit of the model's times.
    """

    model: Model
    problem: OffloadProblem
    unit: int

    @property
    def stages(self) -> int:
        """The paper's L + 1."""
        return len(self.problem.profile)

    @property
    def times(self) -> list[int]:
        """Of the computations, in units."""
        profile, ticks = self.problem.profile, self.problem.link.ticks
        both = (*profile.forward_times, *reversed(profile.backward_times))
        return [u * ticks // self.unit for u in both]

    @property
    def movable(self) -> list[int]:
        """Activations that it can make sense to move."""
        return [j for j in range(self.stages - 1) if self.problem.profile.activations[j]]
