"""Plans by measuring and solving: what `chainstay.fit` does for a call of a new kind."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

import torch
from torch import nn

from chainstay.errors import ChainstayError, InfeasibleBudgetError, UnsupportedModelError
from chainstay.fitting.budgets import bytes_of, plain_peak
from chainstay.fitting.planner import GraphCall, PlannerSettings, is_alike
from chainstay.fitting.strategies.fastest import (
    Strategies,
    fastest_plan,
    planned_blocks,
    solve_blocks,
)
from chainstay.fitting.strategies.joins import JoinAttempt
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.capture.cuts.cut import cut_into_chain
from chainstay.runtime.capture.cuts.stage_names import repeated_blocks
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.capture.trials.equivalence import OutputSample, Trial
from chainstay.runtime.devices.device import accelerator_at
from chainstay.runtime.devices.device_memory import MARGIN
from chainstay.runtime.devices.sharding import gathered, is_sharded
from chainstay.runtime.execute.block_executor import PlannedBlocks
from chainstay.runtime.joins.executor import PlannedJoin
from chainstay.runtime.joins.graph_join import GraphJoin
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.blocks.around_blocks import Around
from chainstay.runtime.measures.blocks.block_costs import MeasuredBlocks, measure_blocks, with_loss
from chainstay.runtime.measures.measured import Measurement, measuring
from chainstay.runtime.measures.progress import progress_bar, say
from chainstay.runtime.measures.rehearsal import Rehearsal, rehearse_blocks, rehearse_graph
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.loss_stage import UntraceableLossError, loss_stage
from chainstay.runtime.stage.staged_graph import (
    PlannedGraph,
    StagedGraph,
    measured_graph,
    subject_of,
    with_graph,
)
from chainstay.schedule import OpKind
from chainstay.solution import Solution
from chainstay.units import format_bytes

__all__ = ["MeasuredGraph", "SolvedPlans"]

M = TypeVar("M", bound=Measurement)

AnyPlan = TypeVar("AnyPlan", PlannedGraph | PlannedJoin, PlannedBlocks)

_Rehearse: TypeAlias = Callable[[AnyPlan, int], Rehearsal]

_TIGHTENINGS: Final = 3
"""How often a plan that needs more than predicted is replaced by a tighter one."""
_TOLERATED: Final = 1.05
"""By so much plain training may exceed what it was predicted to need."""


@dataclass(frozen=True, slots=True)
class MeasuredGraph:
    """A graph that was measured.

    Attributes:
        staged: The graph as stages.
        costs: The costs of the stages.
        is_scaled: Whether the loss's costs are those of another call, in proportion.
        output: The model's output on the call at hand; ``None`` if the graph is not a model's.
        attempt: An attempt to plan its branches apart, if it has any.
    """

    staged: StagedGraph
    costs: Measurement
    is_scaled: bool = False
    output: OutputSample | None = None
    attempt: JoinAttempt | None = None


@dataclass(slots=True)
class SolvedPlans:
    """A `PlanMaker` that measures and solves.

    Attributes:
        settings: The arguments of `chainstay.fit`.
        budget_bytes: The budget; a share is one of what the first call needs.
        measured: The graphs that were measured, by their keys.
        options: The options of stages that were measured; those that are alike have the same.
        loss_costs: The costs of the first call that was measured: its account, and the bytes that
            its loss was given.
    """

    settings: PlannerSettings
    budget_bytes: int | None = None
    measured: dict[Hashable, MeasuredGraph] = field(default_factory=dict)
    options: dict[Hashable, Any] = field(default_factory=dict)
    loss_costs: tuple[Account, int] | None = None

    def of_graph(self, call: GraphCall, *, is_first: bool) -> PlannedGraph | PlannedJoin:
        """Measure a captured graph and plan it; see `PlanMaker`."""
        known, settings = self.measure_graph(call, is_first=is_first), self.settings

        def solved(limit: int) -> PlannedGraph | PlannedJoin:
            method, memory = settings.method, settings.memory
            strategies = Strategies(known.costs, limit, method, memory, known.attempt)
            return fastest_plan(known.staged, strategies)

        def rehearsed(planned: PlannedGraph | PlannedJoin, limit: int) -> Rehearsal:
            with measuring(call.device):
                loss = (
                    None
                    if known.is_scaled
                    else self._loss_stage(known.output, planned.graph, call.inputs)
                )
                return rehearse_graph(planned, call.inputs, loss, limit)

        budget = self._budget(call.model, known.costs)
        return self._made(budget, call.device, lambda b: self._rehearsed(b, solved, rehearsed))

    def of_blocks(self, around: Around, *, is_first: bool) -> PlannedBlocks:
        """Plan blocks; all processes that share parameters get the same plan or refusal."""
        around, measured = self.measure_blocks(around, is_first=is_first)
        model = around.host.model
        budget = min(gathered(model, self._budget(model, measured)))

        def solved(limit: int) -> Solution | ChainstayError:
            try:
                return solve_blocks(measured, limit, self.settings.method)
            except ChainstayError as refusal:
                return refusal

        def planned(limit: int) -> PlannedBlocks:
            solution = gathered(model, solved(limit))[0]
            if isinstance(solution, ChainstayError):
                raise solution
            return planned_blocks(measured, solution)

        def rehearsed(plan: PlannedBlocks, limit: int) -> Rehearsal:
            with measuring(around.device):
                return rehearse_blocks(around, plan, limit)

        if is_sharded(model):
            return planned(budget)
        return self._made(budget, around.device, lambda b: self._rehearsed(b, planned, rehearsed))

    def measure_graph(self, call: GraphCall, *, is_first: bool) -> MeasuredGraph:
        """Measure the stages of a captured graph, unless one that is alike has been measured.

        Args:
            call: The call of the graph.
            is_first: Whether there is no plan for the model yet. Others are measured shortly
                where they fit without a plan.

        Raises:
            NotTheModelError: The graph is not the model.
            UnsupportedModelError: It cannot be run in stages.
        """
        model = call.model
        blocks = frozenset[str]() if model is None else repeated_blocks(model)
        graph = cut_into_chain(call.observed, self.settings.granularity, blocks)
        output = None if call.call is None else _output(call.call, call, graph)
        known = self.measured.get(call.key)
        if known is not None and not known.costs.account.has_options:
            known = None if self._wants_options(model, known.costs) else known
        staged = None
        if known is not None and is_alike(graph, known.staged.graph):
            staged = with_graph(known.staged, graph, call.inputs)  # its own numbers
        if known is not None and staged is not None:
            known = replace(known, staged=staged)
        else:
            repeats = self.settings.repeats
            known = self._measured(call, graph, output, 1 if not is_first else repeats)
            if not is_first and not self._fits_plainly(model, known.costs) and repeats > 1:
                known = self._measured(call, graph, output, repeats)
            self.measured[call.key] = known
        if graph.not_a_join:
            return replace(known, output=output, attempt=None)
        loss = partial(self._loss_stage, output, inputs=call.inputs)
        attempt = JoinAttempt(call=call, settings=self.settings, loss=loss, blocks=blocks)
        return replace(known, output=output, attempt=attempt)

    def measure_blocks(self, around: Around, *, is_first: bool) -> tuple[Around, MeasuredBlocks]:
        """Measure the blocks of a model; processes that share parameters agree on the most.

        Args:
            around: The model around its blocks.
            is_first: Whether there is no plan for the model yet. Of others, the loss may be
                known from the first.

        Returns:
            The model around its blocks, with the loss, and what they cost.
        """
        is_scaled = False
        try:
            if self.settings.loss is not None:
                around = with_loss(around, self.settings.loss)
        except UnsupportedModelError as refusal:
            if is_first and not isinstance(refusal, UntraceableLossError):
                raise
            if is_first:
                self._leave_out_loss(refusal)
            is_scaled = not is_first  # it holds targets of another shape
        measured = self._measured_blocks(around, is_scaled=is_scaled)
        account = Account.largest(gathered(around.host.model, measured.account))
        return around, replace(measured, account=account)

    def _made(self, budget: int, device: torch.device, make: Callable[[int], AnyPlan]) -> AnyPlan:
        """Make a plan; where the budget is what is free, and its step finds less, once more.

        The allocator's blocks are larger than what is asked for, and there is room between them:
        how much, is seen in the step that ran out of memory.
        """
        try:
            return make(budget)
        except torch.OutOfMemoryError:
            accelerator = accelerator_at(device)
            if self.settings.budget is not None or accelerator is None:
                raise
        # Only here the tensors of the step that failed have gone with its error.
        peaks = accelerator.peaks()
        lost = peaks.allocated - peaks.requested
        smaller = max(int(budget * (1 - MARGIN)) - lost, 1)
        say(
            f"a step within {format_bytes(budget)} ran out of memory, as the allocator's blocks "
            f"took {format_bytes(lost)} more; planning again within {format_bytes(smaller)}",
            wanted=self.settings.progress,
        )
        self.budget_bytes = smaller
        return make(smaller)

    def _rehearsed(
        self, budget: int, solved: Callable[[int], AnyPlan], rehearsed: _Rehearse[AnyPlan]
    ) -> AnyPlan:
        """The plan within a budget, tried out; so is the least budget that a refusal names."""
        try:
            return self._tried(budget, solved, rehearsed, is_told=self.settings.progress)
        except InfeasibleBudgetError as refusal:
            found = refusal
        for _ in range(_TIGHTENINGS):
            try:
                self._tried(found.required, solved, rehearsed, is_told=False).close()
            except InfeasibleBudgetError as larger:
                found = found.known(budget, max(larger.required, found.required + 1))
            else:
                break
        raise found

    def _tried(
        self,
        budget: int,
        solved: Callable[[int], AnyPlan],
        rehearsed: _Rehearse[AnyPlan],
        *,
        is_told: bool,
    ) -> AnyPlan:
        """The plan within a budget, tried out; a tighter one where it needs more than predicted."""
        limit, planned = budget, solved(budget)
        first = planned.solution

        def within(found: Solution) -> Solution:
            """The same of the user's budget; bounds that hold for a tighter one do not."""
            alike = (found.family, found.discards) == (first.family, first.discards)
            return replace(
                found,
                budget=budget,
                lower_bound=first.lower_bound if alike else 0,
                unrestricted_bound=first.unrestricted_bound,
            )

        for tightenings in range(_TIGHTENINGS + 1):
            predicted = planned.solution.peak_bytes
            allowed = max(budget, int(predicted * _TOLERATED) if _keeps_all(planned) else 0)
            found = rehearsed(planned, allowed)
            if found.peak_bytes <= allowed:
                break
            if tightenings == _TIGHTENINGS:
                planned.close()
                raise InfeasibleBudgetError(
                    budget=budget,
                    required=found.peak_bytes,
                    stages=len(planned.profile),
                    family="known",
                )
            limit = min(limit, predicted) - (found.peak_bytes - budget)
            say(
                f"a step by the plan needs {format_bytes(found.peak_bytes)}, "
                f"{format_bytes(predicted)} were predicted; the budget of {format_bytes(budget)} "
                f"is exceeded first at {found.operator or 'an unknown operator'}; planning again",
                wanted=is_told,
            )
            planned.close()
            try:
                planned = solved(max(limit, 1))
            except InfeasibleBudgetError as refusal:
                required = refusal.required + budget - max(limit, 1)
                raise refusal.known(budget, required) from refusal
        return planned if limit == budget else replace(planned, solution=within(planned.solution))

    def _budget(self, model: nn.Module | None, measured: Measurement) -> int:
        if self.budget_bytes is None:
            settings = self.settings
            self.budget_bytes = bytes_of(settings.budget, model, settings.reserve, measured)
        return self.budget_bytes

    def _fits_plainly(self, model: nn.Module | None, costs: Measurement) -> bool:
        return plain_peak(costs) <= self._budget(model, costs)

    def _wants_options(self, model: nn.Module | None, costs: Measurement) -> bool:
        """Whether options of stages may be of use: what fits plainly runs plainly."""
        may_recompute = self.settings.stage_options and self.settings.memory.recompute
        return may_recompute and not self._fits_plainly(model, costs)

    def _measured(
        self, call: GraphCall, graph: GraphChain, output: OutputSample | None, repeats: int
    ) -> MeasuredGraph:
        settings, is_scaled = self.settings, False
        with progress_bar(wanted=settings.progress) as bar, measuring(call.device):
            try:
                loss = self._loss_stage(output, graph, call.inputs)
            except UnsupportedModelError:
                if self.loss_costs is None:
                    raise
                loss, is_scaled = None, True  # it holds targets of another shape
            subject = subject_of(graph, call.inputs, loss, call.device, progress=bar)
            staged, costs = measured_graph(
                graph,
                replace(subject, options=self.options),
                repeats=repeats,
                cache=settings.cache,
                wants_options=partial(self._wants_options, call.model),
            )
        given = graph.boundary_bytes(len(graph.stages))
        costs = self._with_loss_costs(costs, given, is_scaled=is_scaled)
        return MeasuredGraph(staged, costs, is_scaled)

    def _measured_blocks(self, around: Around, *, is_scaled: bool) -> MeasuredBlocks:
        settings = self.settings
        measured = measure_blocks(
            around,
            repeats=settings.repeats,
            progress=settings.progress,
            cache=settings.cache,
            wants_options=partial(self._wants_options, around.host.model),
        )
        given = sum(tensor.storage_bytes for tensor in around.chain.boundaries[-1])
        return self._with_loss_costs(measured, given, is_scaled=is_scaled)

    def _with_loss_costs(self, measured: M, given: int, *, is_scaled: bool) -> M:
        """Return the costs; a loss that cannot run here costs as the first one, in proportion."""
        account = measured.account
        if self.loss_costs is None:
            self.loss_costs = (account, given)
        if not is_scaled:
            return measured
        first, before = self.loss_costs
        loss = first.stages[-1].scaled(given, max(before, 1))
        return replace(measured, account=replace(account, stages=(*account.stages[:-1], loss)))

    def _loss_stage(
        self, output: OutputSample | None, graph: GraphChain | GraphJoin, inputs: Sequence[Any]
    ) -> ChainStage | None:
        if output is None:
            return None
        _, shared = graph.begin(inputs)
        try:
            return loss_stage(self.settings.loss, output, graph.output, shared)
        except UntraceableLossError as refusal:
            if self.loss_costs is not None:
                raise
            self._leave_out_loss(refusal)
            return loss_stage(None, output, graph.output, shared)

    def _leave_out_loss(self, refusal: Exception) -> None:
        """Plan without the loss from now on, and say so."""
        self.settings = replace(self.settings, loss=None)
        say(
            f"planning without loss=, which cannot be traced ({refusal.__cause__}): its memory is "
            "yours to add",
            wanted=self.settings.progress,
        )


def _keeps_all(planned: PlannedGraph | PlannedJoin | PlannedBlocks) -> bool:
    """Whether it is plain training."""
    schedule = planned.solution.schedule
    kinds = {op.kind for op in schedule}
    is_whole = not any(op.option for op in schedule)
    return is_whole and kinds == {OpKind.FORWARD_KEEP_ALL, OpKind.BACKWARD}


def _output(call: Call, found: GraphCall, graph: GraphChain) -> OutputSample:
    """The model's output, which the graph gives, too."""
    written = graph.written_by(found.inputs)
    return Trial(call, found.inputs, graph, written, found.device).require_same()
