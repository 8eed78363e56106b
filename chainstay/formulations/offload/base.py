"""The base of both Pyomo models of offloading: forwards and backwards in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass

from chainstay.formulations.pyomo_types import Model
from chainstay.problems.offload import OffloadProblem

__all__ = ["OffloadModel"]


@dataclass(frozen=True, slots=True)
class OffloadModel:
    """A model of forwards 0 .. n-1 and backwards n-1 .. 0.

    Attributes:
        model: The Pyomo model. Yours to write out or hand to any solver.
        problem: The problem that it states.
        unit: Ticks of the link in a unit of the model's times.
    """

    model: Model
    problem: OffloadProblem
    unit: int

    @property
    def stages(self) -> int:
        """The number of stages, the paper's L + 1."""
        return len(self.problem.profile)

    @property
    def times(self) -> list[int]:
        """The times of the computations, in units."""
        profile, ticks = self.problem.profile, self.problem.link.ticks
        both = (*profile.forward_times, *reversed(profile.backward_times))
        return [u * ticks // self.unit for u in both]

    @property
    def movable(self) -> list[int]:
        """The activations that it can make sense to move."""
        return [j for j in range(self.stages - 1) if self.problem.profile.activations[j]]
