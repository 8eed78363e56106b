"""A plan that was made, and what people are told of it."""

from __future__ import annotations

from dataclasses import dataclass

from chainstay.plans import Fingerprint
from chainstay.plans.kept_in_part import KeptInPart, kept_in_part, table_of_parts
from chainstay.runtime.execute.alternatives import table_of
from chainstay.runtime.execute.planned import Planned
from chainstay.units import format_bytes


@dataclass(frozen=True, slots=True)
class NotedPlan:
    """A plan that was made.

    Attributes:
        planned: The model's forward by the plan.
        fingerprint: The call that it is for; ``None`` where only a graph was known.
    """

    planned: Planned
    fingerprint: Fingerprint | None

    @property
    def kept_in_part(self) -> tuple[KeptInPart, ...]:
        """The stages that the plan keeps in part, in order."""
        return kept_in_part(self.planned.profile, self.planned.solution.schedule)

    def describe(self, name: str, others: str) -> str:
        """Return the plan in words and as a table."""
        planned = self.planned
        solution, profile = planned.solution, planned.profile
        least = planned.plain_time or profile.least_time
        slower = float(solution.makespan) / least - 1 if least else 0.0
        tables = (
            table_of_parts(self.kept_in_part, len(profile), least),
            table_of(planned.alternatives) if planned.alternatives else "",
        )
        return (
            f"{name} in {len(profile)} stages, the loss included: "
            f"{solution.describe()}\n{planned.origin}"
            f"predicted {slower:.1%} slower than plain training at a peak of "
            f"{format_bytes(solution.peak_bytes)}{others}\n"
            f"{''.join(table + chr(10) for table in tables if table)}"
            f"{solution.schedule}"
        )
