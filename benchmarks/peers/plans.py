"""chainstay's side of the comparison: plans by `chainstay.fit` for the peaks of others."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.peers.measurements import Course, Memory
from benchmarks.peers.results import Contestant
from benchmarks.training import mebibytes, twin
from benchmarks.trainings import Training
from chainstay import InfeasibleBudgetError, fit

__all__ = ["Plan", "Planner"]

EXCESSES: Final = (0.05, 0.02, 0.0)
"""By which a budget may exceed a peak: plans whose own measured peak is above that are dropped."""


@dataclass(frozen=True)
class Plan:
    """A fitted model; it runs and is measured like the way of a peer."""

    schedule: str
    contestant: Contestant
    memory: Memory
    makespan: float


@dataclass(slots=True)
class Planner:
    """Plans of one model; all share what was measured once.

    Attributes:
        training: The model, and what to train it on.
        course: Measures memory.
        cache: Directory for what chainstay measures.
        stages: Into which it cuts the model; 0 before the first plan.
        found: By schedule.
    """

    training: Training
    course: Course
    cache: Path
    stages: int = 0
    found: dict[str, Plan] = field(default_factory=dict)

    def plan_below(self, peak: int) -> Plan | int:
        """The fastest plan by its own account whose measured peak is no more than `peak`.

        Returns:
            Or the least budget, in bytes, that chainstay would take.
        """
        for excess in EXCESSES:
            try:
                plan = self._fitted(int(peak * (1 + excess)))
            except InfeasibleBudgetError as refusal:
                self._fitted(refusal.required)  # it may need less than it expects
                return self._fastest(peak) or refusal.required
            if plan.memory.peak <= peak:
                break
        found = self._fastest(peak)
        assert found is not None, "a plan needs more than its budget"
        return found

    def _fastest(self, peak: int) -> Plan | None:
        fitting = [plan for plan in self.found.values() if plan.memory.peak <= peak]
        return min(fitting, key=lambda plan: plan.makespan, default=None)

    def _fitted(self, budget: int) -> Plan:
        model: Any = fit(
            twin(self.training.model),
            self.training.args,
            self.training.kwargs,
            budget=budget,
            loss=self.training.loss,
            progress=False,
            cache=self.cache,
        )
        solution = model.chainstay.solution
        self.stages = len(model.chainstay.plans[0].profile)
        schedule = str(solution.schedule)
        known = self.found.get(schedule)
        if known is None or budget < known.contestant.budget:
            contestant = Contestant(
                peer="chainstay", setting=mebibytes(budget), forward=model, budget=budget
            )
            memory = self.course.memory(model)
            self.found[schedule] = Plan(schedule, contestant, memory, float(solution.makespan))
        return self.found[schedule]
