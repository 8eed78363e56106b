"""Plans by measuring and solving: what `chainstay.fit` does for a call of a new kind."""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any, Final, TypeVar

import torch
from torch import nn

from chainstay.errors import ChainstayError, UnsupportedModelError
from chainstay.fitting.budgets import bytes_of
from chainstay.fitting.measured_graph import MeasuredGraph, next_larger
from chainstay.fitting.planner import GraphCall, PlannerSettings
from chainstay.fitting.proportion import plan_in_proportion
from chainstay.fitting.strategies.fastest import Strategies, plan_of, planned_blocks, solve_blocks
from chainstay.fitting.strategies.joins import JoinAttempt
from chainstay.fitting.tried_plans import AnyPlan, Rehearse, tried
from chainstay.planning.questions import plain_peak
from chainstay.runtime.capture.cuts.chain import GraphChain, GraphStages
from chainstay.runtime.capture.cuts.cut import cut_again, cut_into_chain
from chainstay.runtime.capture.dynamo import MOST_SHAPES
from chainstay.runtime.capture.trials.equivalence import OutputSample, Trial
from chainstay.runtime.devices.device import accelerator_at
from chainstay.runtime.devices.device_memory import free_for, smaller_budget
from chainstay.runtime.devices.sharding import gathered, is_sharded
from chainstay.runtime.execute.block_executor import PlannedBlocks
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.blocks.around_blocks import Around
from chainstay.runtime.measures.blocks.block_costs import (
    MeasuredBlocks,
    measure_blocks,
    with_loss,
)
from chainstay.runtime.measures.measured import Measurement, measure_subject, measuring
from chainstay.runtime.measures.progress import progress_bar
from chainstay.runtime.measures.rehearsal import Rehearsal, rehearse_blocks, rehearse_graph
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.loss_stage import UntraceableLossError, loss_stage
from chainstay.runtime.stage.staged_graph import PlannedGraph, StagedChain, subject_of
from chainstay.solution import Solution
from chainstay.solve.budgets import share_of
from chainstay.units import format_bytes

M = TypeVar("M", bound=Measurement)

_SMALLER_PLANS: Final = 3
"""How often a plan within what is free is replaced when its step runs out of memory."""


@dataclass(slots=True)
class SolvedPlans:
    """A `PlanMaker` that measures and solves.

    Attributes:
        settings: The arguments of `chainstay.fit`.
        budget_bytes: The budget; a share is one of what the first call needs.
        free_bytes: What was free before the first plan, once a step has run out of it; else 0.
        measured: The graphs that were measured, by their keys.
        options: The options of stages that were measured; those that are alike have the same.
        loss_costs: The costs of the first call that was measured: its account, and the bytes that
            its loss was given.
    """

    settings: PlannerSettings
    budget_bytes: int | None = None
    free_bytes: int = 0
    measured: dict[Hashable, MeasuredGraph] = field(default_factory=dict)
    options: dict[Hashable, Any] = field(default_factory=dict)
    loss_costs: tuple[Account, int] | None = None

    def of_graph(self, call: GraphCall, *, is_first: bool) -> PlannedGraph:
        """Measure a captured graph and plan it; see `PlanMaker`.

        One that is smaller than a measured one is planned by its costs.
        """
        alike = self._alike(call)
        if alike:
            try:
                smaller = self._in_proportion(call, alike)
            except torch.OutOfMemoryError:  # its rehearsal went beyond the prediction
                smaller = None
            if smaller is not None:
                return smaller
            call = replace(call, observed=call.observed_again())
        known, settings = self.measure_graph(call, is_first=is_first), self.settings

        def solved(limit: int) -> PlannedGraph:
            method, memory = settings.method, settings.memory
            strategies = Strategies(known.costs, limit, method, memory, known.attempt)
            strategies.try_all()
            return plan_of(known.staged, strategies)

        def rehearsed(planned: PlannedGraph, limit: int) -> Rehearsal:
            graph, loss = planned.graph, known.loss
            with measuring(call.device):
                if not known.is_scaled and (loss is None or graph is not known.staged.graph):
                    loss = self._loss_stage(known.output, graph, call.inputs)
                return rehearse_graph(planned, call.inputs, loss, limit)

        budget = self._budget(call.model, known.costs)
        return self._made(budget, call.device, solved, rehearsed)

    def _alike(self, call: GraphCall) -> list[MeasuredGraph]:
        """Return measured graphs of other sizes, else alike; none if the call's was measured."""
        if call.key in self.measured or self.budget_bytes is None:
            return []
        return [
            known
            for known in self.measured.values()
            if known.family == call.family
            and known.staged.graph.not_a_join
            and self._has_options_wanted(call.model, known.costs)
        ]

    def _in_proportion(
        self, call: GraphCall, alike: Sequence[MeasuredGraph]
    ) -> PlannedGraph | None:
        """Plan a graph by the costs of one of these; ``None`` if it has to be measured."""
        graph = cut_again(call.observed, alike[-1].staged.graph.cuts)
        larger = None if graph is None else next_larger(graph, alike)
        if graph is None or larger is None:
            return None
        output = _output(call, graph)
        budget, settings = self._budget(call.model, larger.costs), self.settings
        with measuring(call.device):
            loss, _ = self._loss_or_none(output, graph, call.inputs)

        def solved(costs: Measurement) -> Strategies:
            return Strategies(costs, budget, settings.method, settings.memory)

        def rehearsed(planned: PlannedGraph) -> Rehearsal:
            with measuring(call.device):
                return rehearse_graph(planned, call.inputs, loss, sys.maxsize)

        return plan_in_proportion(larger, call, graph, solved, rehearsed)

    def of_blocks(self, around: Around, *, is_first: bool) -> PlannedBlocks:
        """Plan blocks; all processes that share parameters get the same plan or refusal."""
        found, measured = self.measure_blocks(around, is_first=is_first)
        model = found.host.model
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
            with measuring(found.device):
                return rehearse_blocks(found, plan, limit)

        if is_sharded(model):
            return planned(budget)
        return self._made(budget, found.device, planned, rehearsed)

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
        graph = cut_into_chain(call.observed, self.settings.granularity, call.blocks)
        output = _output(call, graph)
        known = self._measured_before(call, graph)
        if known is None:
            known = self._measured(call, graph, output, is_first=is_first)
            self.measured[call.key] = replace(known, loss=None)  # it holds tensors of the call
            if len(self.measured) > MOST_SHAPES:
                del self.measured[next(iter(self.measured))]  # the oldest
        if graph.not_a_join:
            return replace(known, output=output, attempt=None)
        loss = partial(self._loss_stage, output, inputs=call.inputs)
        attempt = JoinAttempt(call=call, settings=self.settings, loss=loss)
        return replace(known, output=output, attempt=attempt)

    def _measured_before(self, call: GraphCall, graph: GraphChain) -> MeasuredGraph | None:
        """Return what was measured of a graph that is alike, with the numbers of this one."""
        known = self.measured.get(call.key)
        if known is None or not self._has_options_wanted(call.model, known.costs):
            return None
        if graph.layout != known.staged.graph.layout:
            return None
        staged = known.staged.with_graph(graph, call.inputs)
        return None if staged is None else replace(known, staged=staged)

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
        model, settings = around.host.model, self.settings
        measured = measure_blocks(
            around,
            repeats=settings.repeats,
            progress=settings.progress,
            cache=settings.cache,
            wants_options=partial(self._wants_options, model),
        )
        given = sum(tensor.storage_bytes for tensor in around.chain.boundaries[-1])
        measured = self._with_loss_costs(measured, given, is_scaled=is_scaled)
        account = Account.largest(gathered(model, measured.account))
        return around, replace(measured, account=account)

    def _made(
        self,
        budget: int,
        device: torch.device,
        solved: Callable[[int], AnyPlan],
        rehearsed: Rehearse[AnyPlan],
    ) -> AnyPlan:
        """Make a plan; where the budget is what is free, and its step finds less, a smaller one."""
        is_told, is_whole = self.settings.progress, share_of(self.settings.budget) == 1
        accelerator = accelerator_at(device) if self.settings.budget is None else None
        for _ in range(_SMALLER_PLANS):
            try:
                return tried(budget, solved, rehearsed, is_told=is_told, is_whole=is_whole)
            except torch.OutOfMemoryError:
                if accelerator is None:
                    raise
            # Only here the tensors of the step that failed have gone with its error.
            lost = accelerator.memory().reserved - accelerator.peaks().requested
            self.free_bytes = self.free_bytes or free_for(budget)
            smaller = smaller_budget(budget, self.free_bytes, lost)
            self.settings.say(
                f"a step within {format_bytes(budget)} ran out of memory, as the allocator's "
                "blocks and the room between them are larger than what is asked for; planning "
                f"again within {format_bytes(smaller)}"
            )
            self.budget_bytes = budget = smaller
        return tried(budget, solved, rehearsed, is_told=is_told, is_whole=is_whole)

    def _budget(self, model: nn.Module | None, measured: Measurement) -> int:
        if self.budget_bytes is None:
            settings = self.settings
            self.budget_bytes = bytes_of(settings.budget, model, settings.reserve, measured)
        return self.budget_bytes

    def _fits_plainly(self, model: nn.Module | None, costs: Measurement) -> bool:
        return plain_peak(costs) <= self._budget(model, costs)

    def _has_options_wanted(self, model: nn.Module | None, costs: Measurement) -> bool:
        """Whether options of stages were measured, where they may be of use."""
        return costs.account.has_options or not self._wants_options(model, costs)

    def _wants_options(self, model: nn.Module | None, costs: Measurement) -> bool:
        """Whether options of stages may be of use: what fits plainly runs plainly."""
        may_recompute = self.settings.stage_options and self.settings.memory.recompute
        return may_recompute and not self._fits_plainly(model, costs)

    def _measured(
        self, call: GraphCall, graph: GraphChain, output: OutputSample | None, *, is_first: bool
    ) -> MeasuredGraph:
        settings = self.settings

        def repeats(costs: Measurement) -> int:
            """Times of what fits plainly decide nothing, but those of the first call are told."""
            fits = not is_first and self._fits_plainly(call.model, costs)
            return 1 if fits else settings.repeats

        with progress_bar(wanted=settings.progress) as bar, measuring(call.device):
            loss, is_scaled = self._loss_or_none(output, graph, call.inputs)
            subject = subject_of(graph, call.inputs, loss, call.device, progress=bar)
            costs = measure_subject(
                replace(subject, options=self.options),
                graph.shared_names,
                repeats,
                settings.cache,
                wants_options=partial(self._wants_options, call.model),
            )
        given = graph.boundary_bytes(len(graph.stages))
        costs = self._with_loss_costs(costs, given, is_scaled=is_scaled)
        return MeasuredGraph(
            staged=StagedChain(graph=graph, chain=costs.chain),
            costs=costs,
            shapes=call.shapes,
            family=call.family,
            is_scaled=is_scaled,
            loss=loss,
        )

    def _with_loss_costs(self, measured: M, given: int, *, is_scaled: bool) -> M:
        """Return the costs; a loss that cannot run here costs as the first one, in proportion."""
        account = measured.account
        if self.loss_costs is None:
            self.loss_costs = (account, given)
        if not is_scaled:
            return measured
        first, before = self.loss_costs
        share = Fraction(given, max(before, 1))
        loss = first.stages[-1].scaled(share, share)
        return replace(measured, account=replace(account, stages=(*account.stages[:-1], loss)))

    def _loss_or_none(
        self, output: OutputSample | None, graph: GraphChain, inputs: Sequence[Any]
    ) -> tuple[ChainStage | None, bool]:
        """Return the loss, and whether it cannot run here: it holds targets of another shape."""
        try:
            return self._loss_stage(output, graph, inputs), False
        except UnsupportedModelError:
            if self.loss_costs is None:
                raise
            return None, True

    def _loss_stage(
        self, output: OutputSample | None, graph: GraphStages, inputs: Sequence[Any]
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
        self.settings.say(
            f"planning without loss=, which cannot be traced ({refusal.__cause__}): it counts "
            "as a cross-entropy of the largest output"
        )


def _output(found: GraphCall, graph: GraphChain) -> OutputSample | None:
    """Return the output of model and graph, which agree; ``None`` if only the graph is known."""
    if found.call is None:
        return None
    return Trial.of(found.call, found.observed, graph, found.inputs, found.device).require_same()
