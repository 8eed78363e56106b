"""Models whose branches meet: what it takes to plan them apart, beside the model as one chain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from chainstay.errors import NotAJoinError, PlanMismatchError
from chainstay.fitting.planner import GraphCall, PlannerSettings
from chainstay.planning.join import can_run, solve_measured_join
from chainstay.profiles import JoinProfile
from chainstay.runtime.joins.executor import JoinExecutor
from chainstay.runtime.joins.graph_join import GraphJoin
from chainstay.runtime.joins.measured_join import MeasuredJoin, measure_join
from chainstay.runtime.joins.staged_join import StagedJoin, parts_of
from chainstay.runtime.measures.measured import measuring
from chainstay.runtime.measures.progress import progress_bar
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.staged_graph import PlannedGraph
from chainstay.solution import Solution

_MOST_BRANCHES: Final = 4
"""Branches that are planned apart: tables have an axis for each, and a model's have many stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAttempt:
    """The needs of planning a model's branches apart; see `chainstay.fit`.

    Attributes:
        call: A call of the graph.
        settings: The arguments of `chainstay.fit`.
        loss: Makes the loss's stage for a join, if there is a loss.
    """

    call: GraphCall
    settings: PlannerSettings
    loss: Callable[[GraphJoin], ChainStage | None]
    _known: list[MeasuredJoin] = field(default_factory=list)

    def measured(self) -> MeasuredJoin:
        """Return the graph as branches, and what they cost; it is measured once.

        Raises:
            NotAJoinError: The model is no join after all; the text says why.
        """
        if not self._known:
            call, settings = self.call, self.settings
            join = call.as_join(settings.granularity)
            if (count := len(join.lengths)) > _MOST_BRANCHES:
                raise NotAJoinError(f"planning {count} branches apart would take minutes")
            with progress_bar(wanted=settings.progress) as bar, measuring(call.device):
                parts = parts_of(join, call.inputs, self.loss(join), call.device, progress=bar)
                measured = measure_join(
                    join,
                    parts,
                    repeats=settings.repeats,
                    cache=settings.cache,
                    wants_options=settings.stage_options,
                )
            self._known.append(measured)
        return self._known[0]

    def plan(self, budget: int) -> PlannedGraph:
        """Return the plan within `budget` bytes.

        Raises:
            NotAJoinError: The model is no join after all; the text says why.
            InvalidProfileError: Its branches are too many, or too long.
            InfeasibleBudgetError: Nothing was found that fits.
        """
        measured = self.measured()
        solution, profile = solve_measured_join(measured, budget), measured.account.by_kind()
        overheads = tuple(measured.account.overheads(solution.schedule))
        planned = planned_join(measured, solution, profile)
        return replace(planned, overheads=overheads, plain_time=profile.least_time)


def planned_join(stages: StagedJoin, solution: Solution, profile: JoinProfile) -> PlannedGraph:
    """Return a join by the schedule of `solution`, its branches apart.

    The tail of the solution and of the profile has the loss behind it.

    Raises:
        PlanMismatchError: The schedule is for branches of other lengths, or would sum
            gradients in another order than plain training.
        InvalidScheduleError: This runtime cannot run the schedule.
    """
    shape = stages.shape
    planned = (*map(len, profile.branches), len(profile.closing) - 1)
    if planned != (*shape.lengths, shape.tail):
        raise PlanMismatchError(
            f"the plan is for branches and a tail of {_listed(planned)} stages, and the model "
            f"has {_listed((*shape.lengths, shape.tail))}; plan again"
        )
    executor = JoinExecutor(stages, solution.schedule)
    if not can_run(stages, solution.schedule):
        raise PlanMismatchError(
            "the plan's branches go back in turns in which gradients would be summed in "
            "another order than in plain training; plan again"
        )
    lengths = " and ".join(map(str, shape.lengths))
    return PlannedGraph(
        staged=stages,
        executor=executor,
        solution=solution,
        profile=profile,
        origin=f"branches of {lengths} stages that meet, planned apart\n",
    )


def _listed(lengths: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, lengths[:-1]))} and {lengths[-1]}"
