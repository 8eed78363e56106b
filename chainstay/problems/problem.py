"""A problem to be solved: the costs of a network, and a budget. One base for four kinds.

`ChainProblem`, `JoinProblem`, `OffloadProblem` and `HybridProblem` say what all that is written
for any of them needs to know: solvers' fronts, `chainstay verify`, plan files, reports, commands.
A problem does not simulate: no solver may reach the simulator through it. That is done by
`chainstay.validation.replay`, which has the simulator of each kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self

from chainstay.profiles import AnyProfile, ChainProfile
from chainstay.solution import Solution
from chainstay.units import format_bytes


@dataclass(frozen=True, slots=True)
class Problem:
    """A network and a budget.

    Attributes:
        profile: Costs of the network.
        budget: Bytes (slots of a `HomogeneousJoin`).
        kind: ``"chain"``, ``"join"``, ``"offload"`` or ``"hybrid"``.
        network: ``"chain"`` or ``"join"``.
        techniques: The techniques that its schedules may use, for people.
        recomputes: Whether a stage's forward may run again.
        moves: Whether data may move to a host and back.
    """

    profile: AnyProfile
    budget: int
    kind: ClassVar[str]
    network: ClassVar[str] = "chain"
    techniques: ClassVar[str] = "recomputing"
    recomputes: ClassVar[bool] = True
    moves: ClassVar[bool] = False

    @property
    def stages(self) -> int:
        """The number of stages, of all branches and the tail of a join."""
        return len(self.profile)

    @property
    def unit(self) -> str:
        """The unit of memory: ``"bytes"`` or ``"slots"``."""
        return "bytes"

    @property
    def chains(self) -> tuple[tuple[int | None, ChainProfile], ...]:
        """The chains of the network that have stages with sizes, each with its branch."""
        return ((None, self.profile),) if isinstance(self.profile, ChainProfile) else ()

    def format_size(self, size: int) -> str:
        """Return an amount of memory for people."""
        return format_bytes(size)

    def describe(self, solution: Solution) -> str:
        """Return one sentence for people on a solution of this problem."""
        return solution.describe()

    def stage_name(self, branch: int | None, stage: int) -> str:
        """Return the name of a stage; empty where it has none."""
        stages = dict(self.chains)[branch].stages if branch in dict(self.chains) else ()
        return stages[stage].name if stage < len(stages) else ""

    def to_fields(self) -> dict[str, object]:
        """Return the problem as JSON fields, for a counter-example."""
        return {"problem": self.kind, "budget": self.budget, "profile": self.profile.to_json()}

    def simpler(self) -> Iterator[Self]:
        """Yield problems a little simpler than this one, roughly the simplest first."""
        raise NotImplementedError
