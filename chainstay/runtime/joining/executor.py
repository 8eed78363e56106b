"""A join with a plan: from the branches' inputs to the model's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chainstay.errors import PlanMismatchError
from chainstay.profiles import JoinProfile
from chainstay.runtime.alternatives import Alternative
from chainstay.runtime.joining.execution import JoinExecution, JoinShape, plan_join
from chainstay.runtime.joining.extracted import ExtractedJoin, cut
from chainstay.runtime.joining.running import JoinRun, PlannedStage
from chainstay.runtime.joining.staging import StagedJoin
from chainstay.runtime.mode import Mode
from chainstay.runtime.recompute import Versioned
from chainstay.runtime.stages import ChainStage
from chainstay.runtime.states import State
from chainstay.schedule import Schedule
from chainstay.solution import Solution

__all__ = ["JoinExecutor", "PlannedJoin", "shape_of"]


def shape_of(join: StagedJoin) -> JoinShape:
    """How many stages the parts have."""
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
        """What the schedule speaks about, branch by branch, the loss excluded."""
        return self._join.chain.stages

    def __call__(self, given: State, shared: State) -> State:
        """The last state.

        Raises:
            PlanMismatchError: Input or mode are not like those that the plan was measured
                with, so that its memory is not known.
        """
        self._require_as_measured(given)
        run = JoinRun(
            stages=self._stages,
            plan=self.plan,
            widths=self._join.widths,
            device=self._join.chain.device,
            shared=Versioned.of(shared),
        )
        return run.forward(cut(given, self._join.inputs))

    def _require_as_measured(self, given: State) -> None:
        chain = self._join.chain
        if any(tensor.is_inference() for tensor in given):
            raise PlanMismatchError(
                "an input was made under torch.inference_mode(), so that autograd cannot "
                "save it; pass a clone of it made outside"
            )
        mode = Mode.now(chain.modules, chain.device)
        if mode != chain.mode:
            raise PlanMismatchError(
                f"the plan was measured with {chain.mode.difference(mode, chain.modules)}; measure "
                "and plan again in this mode, or run under torch.no_grad()"
            )


@dataclass(frozen=True, slots=True)
class PlannedJoin:
    """A model's forward by a plan for its branches and their tail; see `Planned`.

    Attributes:
        join: The model.
        executor: Runs it.
        solution: The plan, and how good it is.
        profile: What the join costs.
        origin: As `Planned`.
        overheads: As `Planned`.
        alternatives: As `Planned`.
        plain_time: As `Planned`.
    """

    join: ExtractedJoin
    executor: JoinExecutor
    solution: Solution
    profile: JoinProfile
    origin: str
    overheads: tuple[int, ...] | None = None
    alternatives: tuple[Alternative, ...] = ()
    plain_time: int | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        """What ``model(*args, **kwargs)`` gives."""
        given, shared = self.join.begin(args, kwargs)
        return self.join.finish(self.executor(given, shared), shared)

    @property
    def keep(self) -> tuple[bool, ...]:
        """Whether a branch has an input with a gradient, which stays."""
        return tuple(branch.input_gradient_bytes > 0 for branch in self.profile.branches)

    def close(self) -> None:
        """As `Planned`: there is nothing."""
