"""A join with a plan: from the branches' inputs to the model's output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chainstay.errors import PlanMismatchError
from chainstay.profiles import JoinProfile
from chainstay.runtime.alternatives import Alternative
from chainstay.runtime.joining.execution import JoinExecution, JoinShape, plan_join
from chainstay.runtime.joining.extracted import ExtractedJoin, cut
from chainstay.runtime.joining.measuring import MeasuredJoin
from chainstay.runtime.joining.running import JoinRun, PlannedStage
from chainstay.runtime.mode import Mode
from chainstay.runtime.recompute import Versioned
from chainstay.runtime.states import State
from chainstay.schedule import Schedule
from chainstay.solution import Solution

__all__ = ["JoinExecutor", "PlannedJoin", "shape_of"]


def shape_of(measured: MeasuredJoin) -> JoinShape:
    """How many stages the parts have."""
    return JoinShape(measured.lengths, len(measured.chain.stages) - sum(measured.lengths))


class JoinExecutor:
    """Runs a join by a schedule; what comes out hangs on an ordinary autograd graph.

    Args:
        measured: What to run.
        schedule: Valid for it; see `plan_join`.

    Raises:
        InvalidScheduleError: This runtime cannot run the schedule.
    """

    def __init__(self, measured: MeasuredJoin, schedule: Schedule) -> None:
        self._measured = measured
        self.plan: JoinExecution = plan_join(schedule, shape_of(measured))
        self._stages = {
            place: PlannedStage(stage, position, traits)
            for position, (place, stage, traits) in enumerate(
                zip(self.plan.shape.stages(), measured.chain.stages, measured.traits, strict=True)
            )
        }

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
            widths=self._measured.widths,
            device=self._measured.chain.device,
            shared=Versioned.of(shared),
        )
        return run.forward(cut(given, self._measured.inputs))

    def _require_as_measured(self, given: State) -> None:
        chain = self._measured.chain
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
    """

    join: ExtractedJoin
    executor: JoinExecutor
    solution: Solution
    profile: JoinProfile
    origin: str
    overheads: tuple[int, ...] | None = None
    alternatives: tuple[Alternative, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        """What ``model(*args, **kwargs)`` gives."""
        given, shared = self.join.begin(args, kwargs)
        return self.join.finish(self.executor(given, shared), shared)

    def close(self) -> None:
        """As `Planned`: there is nothing."""
