"""Models whose branches meet, cut into stages, measured or not, and ready to run by a schedule.

As `cut_models` for chains: `measured_join` is what a plan is made from, `cut_join` gives the
same stages for a plan that is known already.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from chainstay.errors import PlanMismatchError
from chainstay.fitting.caches import caches_off
from chainstay.join_planning import can_run
from chainstay.profiles import JoinProfile
from chainstay.runtime.chain import Chain
from chainstay.runtime.extraction.cutting import Granularity
from chainstay.runtime.joining.executor import JoinExecutor, PlannedJoin, shape_of
from chainstay.runtime.joining.extracted import ExtractedJoin
from chainstay.runtime.joining.extracting import extract_join
from chainstay.runtime.joining.measuring import MeasuredJoin, measure_join
from chainstay.runtime.joining.staging import StagedJoin, staged_unmeasured
from chainstay.runtime.own_hooks import own_hooks_aside
from chainstay.runtime.parameter_hooks import parameter_hooks_aside
from chainstay.solution import Solution

__all__ = ["CutJoin", "cut_join", "measured_join"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CutJoin:
    """A model as branches and a tail of stages.

    Attributes:
        join: From a call to the branches' first states, and from the last one to the output.
        stages: What it takes to run it.
    """

    join: ExtractedJoin
    stages: StagedJoin

    @property
    def chain(self) -> Chain:
        """All stages, branch by branch and then the tail, the loss excluded."""
        return self.stages.chain

    def planned(
        self,
        solution: Solution,
        profile: JoinProfile,
        *,
        overheads: tuple[int, ...] | None = None,
    ) -> PlannedJoin:
        """The model's forward by the schedule of `solution`.

        Args:
            solution: For these branches, and a tail with the loss behind it.
            profile: What they cost.
            overheads: Of each operation.

        Raises:
            PlanMismatchError: The schedule is for branches of other lengths, or would sum
                gradients in another order than plain training.
            InvalidScheduleError: This runtime cannot run the schedule.
        """
        shape = shape_of(self.stages)
        planned = (*map(len, profile.branches), len(profile.closing) - 1)
        if planned != (*shape.lengths, shape.tail):
            raise PlanMismatchError(
                f"the plan is for branches and a tail of {_listed(planned)} stages, and the model "
                f"has {_listed((*shape.lengths, shape.tail))}; plan again"
            )
        executor = JoinExecutor(self.stages, solution.schedule)
        if not can_run(self.stages, solution.schedule):
            raise PlanMismatchError(
                "the plan's branches go back in turns in which gradients would be summed in "
                "another order than in plain training; plan again"
            )
        lengths = " and ".join(map(str, shape.lengths))
        return PlannedJoin(
            join=self.join,
            executor=executor,
            solution=solution,
            profile=profile,
            origin=f"branches of {lengths} stages that meet, planned apart\n",
            overheads=overheads,
        )


def measured_join(  # noqa: PLR0913  # all but the call have defaults
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    granularity: Granularity = "fine",
    repeats: int = 5,
    progress: bool = True,
    cache: str | os.PathLike[str] | None = None,
) -> tuple[CutJoin, MeasuredJoin]:
    """Cut a model into branches and a tail, and measure them; arguments as for `chainstay.fit`.

    Raises:
        UnsupportedModelError: It is no join, or cannot be measured; the text says why.
    """
    with own_hooks_aside(model), caches_off(model):
        join = extract_join(model, args, kwargs, granularity=granularity)
    with parameter_hooks_aside(model.modules()):
        measured = measure_join(
            join, args, kwargs, loss=loss, repeats=repeats, progress=progress, cache=cache
        )
    return CutJoin(join=join, stages=measured), measured


def cut_join(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    granularity: Granularity = "fine",
    has_loss: bool = True,
) -> CutJoin:
    """Cut a model into the stages that `measured_join` finds, without measuring them.

    Args:
        model: As for `chainstay.fit`.
        args: Of a call.
        kwargs: Of a call.
        granularity: Of its export.
        has_loss: Whether a loss was measured; it decides about the last cut.

    Raises:
        UnsupportedModelError: It is no join.
    """
    with own_hooks_aside(model), caches_off(model):
        join = extract_join(model, args, kwargs, granularity=granularity)
    with parameter_hooks_aside(model.modules()):
        stages = staged_unmeasured(join, args, kwargs, has_loss=has_loss)
    return CutJoin(join=join, stages=stages)


def _listed(lengths: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, lengths[:-1]))} and {lengths[-1]}"
