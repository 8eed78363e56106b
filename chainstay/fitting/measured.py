"""A model that is measured before a plan is chosen: plans of any budget are made from that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from chainstay.fitting.fingerprints import fingerprint_of
from chainstay.fitting.fitted import Fitted
from chainstay.fitting.planner import AnyPlanned, GraphCall, PlannerSettings
from chainstay.fitting.solved_plans import SolvedPlans
from chainstay.fitting.strategies.fastest import planned_blocks, planned_graph, solve_blocks
from chainstay.fitting.strategies.joins import JoinAttempt
from chainstay.planning import solve_measured
from chainstay.plans import Fingerprint
from chainstay.runtime.capture.blocks.entrances import close_entrances
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.execute.block_executor import PlannedBlocks
from chainstay.runtime.execute.planned import Planned
from chainstay.runtime.measures.blocks.around_blocks import Around
from chainstay.runtime.measures.blocks.block_costs import MeasuredBlocks
from chainstay.runtime.measures.measured import Measurement
from chainstay.runtime.stage.staged_graph import PlannedGraph, StagedChain
from chainstay.runtime.transfer import Engine
from chainstay.solution import Method, Solution
from chainstay.solve.budgets import Budget


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredModel:
    """A model as stages, and what they cost on one call.

    Attributes:
        call: The call; its model is left as it was.
        costs: The costs of its stages.
        staged: Its graph as stages; ``None`` where it goes by blocks.
        attempt: An attempt to plan the branches of its graph apart, if it has any.
        fitted: Runs it.
    """

    call: Call
    costs: Measurement
    staged: StagedChain | None
    attempt: JoinAttempt | None
    fitted: Fitted

    @property
    def origin(self) -> str:
        """A word to people on where the stages come from, if that needs saying."""
        return self.fitted.latest.planned.origin

    def solve(self, budget: Budget, method: Method | str = "auto") -> Solution:
        """Return the fastest schedule without transfers that was found."""
        if isinstance(self.costs, MeasuredBlocks):
            return solve_blocks(self.costs, budget, method)
        return solve_measured(self.costs, budget, method)

    def planned(
        self, solution: Solution, engine: Engine | None = None
    ) -> PlannedGraph | PlannedBlocks:
        """Return the stages by the schedule of `solution`."""
        if isinstance(self.costs, MeasuredBlocks):
            return replace(planned_blocks(self.costs, solution), origin=self.origin)
        assert self.staged is not None, "what has no blocks has a graph"
        return planned_graph(self.staged, self.costs, solution, engine)

    def fingerprint(self, planned: Planned) -> Fingerprint:
        """Return the fingerprint that a plan for this model gets."""
        device = self.costs.chain.device
        return fingerprint_of(self.call, device, planned.chain.stages)

    @contextmanager
    def running(self, planned: AnyPlanned) -> Iterator[None]:
        """Inside, calls of the model like the measured one go by a plan of these stages."""
        self.fitted.use(planned)
        self.fitted.install(self.call.model)
        try:
            yield
        finally:
            self.fitted.uninstall(self.call.model)

    def forward(self, planned: AnyPlanned) -> Callable[..., Any]:
        """Return the model as a function by a plan of these stages; several may take turns."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            with self.running(planned):
                return self.call.model(*args, **kwargs)

        return forward


def measure_model(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    settings: PlannerSettings,
    once_traced: Callable[[], None] = lambda: None,
) -> MeasuredModel:
    """Cut a model into stages, and measure them.

    Args:
        model: The model, as for `chainstay.fit`; it is left as it was.
        args: Positional arguments of a call.
        kwargs: Keyword arguments.
        settings: The arguments of `chainstay.fit`; options of stages are measured only where
            plain training does not fit in the budget.
        once_traced: Called before measuring begins, which shows a bar of its own.

    Raises:
        UnsupportedModelError: It cannot be cut into stages; the text says why, as a graph and by
            blocks.
    """
    maker = _PlainPlans(SolvedPlans(settings), once_traced)
    fitted = Fitted(model, replace(settings, progress=False), maker)
    fitted.plan_for(model, args, dict(kwargs))
    close_entrances(model)
    assert maker.costs is not None, "it was measured just now"
    return MeasuredModel(
        call=Call.of(model, args, kwargs),
        costs=maker.costs,
        staged=maker.staged,
        attempt=maker.attempt,
        fitted=fitted,
    )


@dataclass(slots=True)
class _PlainPlans:
    """A `PlanMaker` that measures, and plans nothing but plain training."""

    solver: SolvedPlans
    once_traced: Callable[[], None]
    costs: Measurement | None = None
    staged: StagedChain | None = None
    attempt: JoinAttempt | None = None
    budget_bytes: None = None

    def of_graph(self, call: GraphCall, *, is_first: bool) -> PlannedGraph:
        """Measure a graph and run it plainly; see `PlanMaker`."""
        self.once_traced()
        known = self.solver.measure_graph(call, is_first=is_first)
        self.costs, self.staged, self.attempt = known.costs, known.staged, known.attempt
        return planned_graph(known.staged, known.costs, solve_measured(known.costs, "100%"))

    def of_blocks(self, around: Around, *, is_first: bool) -> PlannedBlocks:
        """Measure the blocks and run them plainly; see `PlanMaker`."""
        self.once_traced()
        _, measured = self.solver.measure_blocks(around, is_first=is_first)
        self.costs = measured
        return planned_blocks(measured, solve_blocks(measured, "100%", "auto"))
