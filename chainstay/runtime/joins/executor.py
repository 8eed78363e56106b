"""A join with a plan: from the branches' inputs to the model's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from chainstay.profiles import JoinProfile
from chainstay.runtime.execute.alternatives import Alternative
from chainstay.runtime.execute.handles import require_no_hooks
from chainstay.runtime.joins.execution import JoinExecution, JoinShape, plan_join
from chainstay.runtime.joins.graph_join import GraphJoin, cut
from chainstay.runtime.joins.join_run import JoinRun, PlannedStage
from chainstay.runtime.joins.staged_join import StagedJoin
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.states import State
from chainstay.schedule import Schedule
from chainstay.solution import Solution

__all__ = ["JoinExecutor", "PlannedJoin", "shape_of"]


def shape_of(join: StagedJoin) -> JoinShape:
    """Return the number of stages in each part."""
    return JoinShape(join.lengths, len(join.chain.stages) - sum(join.lengths))


class JoinExecutor:
    """Runs a join by a schedule; what comes out hangs on an ordinary autograd graph.

    Args:
        join: What to run.
        schedule: Valid for it; see `plan_join`.

    Raises:
        InvalidScheduleError: This runtime cannot run the schedule.
    """

    def __init__(self, join: StagedJoin, schedule: Schedule) -> None:
        self._join = join
        self.plan: JoinExecution = plan_join(schedule, shape_of(join))
        self._stages = {
            place: PlannedStage(stage, position, traits)
            for position, (place, stage, traits) in enumerate(
                zip(self.plan.shape.stages(), join.chain.stages, join.traits, strict=True)
            )
        }

    @property
    def stages(self) -> tuple[ChainStage, ...]:
        """The stages that the schedule speaks about, branch by branch, the loss excluded."""
        return self._join.chain.stages

    def __call__(self, given: State, shared: Sequence[Any]) -> State:
        """The last state.

        Args:
            given: The first states of all branches, in one.
            shared: What all stages may read.
        """
        require_no_hooks()
        chain = self._join.chain
        run = JoinRun(
            stages=self._stages,
            plan=self.plan,
            widths=self._join.widths,
            device=chain.device,
            shared=shared,
            names=chain.names,
        )
        return run.forward(cut(given, self._join.inputs))

    @property
    def device(self) -> torch.device:
        """The device that the stages run on."""
        return self._join.chain.device

    @property
    def transport(self) -> None:
        """No transport: joins move nothing; see `Executor`."""
        return None


@dataclass(frozen=True, slots=True)
class PlannedJoin:
    """A model's forward by a plan for its branches and their tail; see `Planned`.

    Attributes:
        join: The model.
        executor: Runs it.
        solution: The plan, and how good it is.
        profile: What the join costs.
        origin: See `Planned`.
        overheads: See `Planned`.
        alternatives: See `Planned`.
        plain_time: See `Planned`.
        plain_peak: See `Planned`.
    """

    join: GraphJoin
    executor: JoinExecutor
    solution: Solution
    profile: JoinProfile
    origin: str
    overheads: tuple[int, ...] | None = None
    alternatives: tuple[Alternative, ...] = ()
    plain_time: int | None = None
    plain_peak: int | None = None

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:  # noqa: ANN401  # tensors and numbers
        """Return the outputs of the graph."""
        given, shared = self.join.begin(inputs)
        return self.join.finish(self.executor(given, shared), shared)

    @property
    def keep(self) -> tuple[bool, ...]:
        """Whether a branch has an input with a gradient, which stays."""
        return tuple(branch.input_gradient_bytes > 0 for branch in self.profile.branches)

    def close(self) -> None:
        """Close nothing: joins hold no engine; see `Planned`."""
