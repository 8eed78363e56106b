"""The plans that there are for a model, and when another one is made.

A captured graph that differs from a known one only in numbers goes by the known plan. For any
other a `PlanMaker` makes one, if the settings allow it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import compress
from textwrap import fill
from typing import Any, Final, Literal, Protocol

import torch
from torch import nn

from chainstay.errors import InfeasibleBudgetError, NotAJoinError, PlanMismatchError
from chainstay.fitting.budgets import Budget
from chainstay.fitting.fingerprints import fingerprint_of
from chainstay.fitting.strategies.memory_options import RECOMPUTING, MemoryOptions
from chainstay.plans import Fingerprint
from chainstay.plans.kept_in_part import KeptInPart, kept_in_part, table_of_parts
from chainstay.runtime.capture.cuts.chain import GraphChain, GraphStages
from chainstay.runtime.capture.cuts.cut import cut_again
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.runtime.capture.cuts.stage_names import repeated_blocks
from chainstay.runtime.capture.dynamo import MOST_SHAPES, CapturedForward, GraphForward
from chainstay.runtime.capture.graph_inputs import InputKind
from chainstay.runtime.capture.graph_key import graph_key
from chainstay.runtime.capture.operators import ObservedGraph, observe_graph
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.devices.backend_settings import backend_settings
from chainstay.runtime.devices.device import device_at, device_of
from chainstay.runtime.execute.alternatives import table_of
from chainstay.runtime.execute.block_executor import PlannedBlocks
from chainstay.runtime.execute.planned import Planned
from chainstay.runtime.joins.branch_graphs import cut_into_join
from chainstay.runtime.joins.graph_join import GraphJoin
from chainstay.runtime.measures.blocks.around_blocks import Around
from chainstay.runtime.measures.progress import say
from chainstay.runtime.stage.loss_stage import Loss
from chainstay.runtime.stage.staged_graph import PlannedGraph
from chainstay.solution import Method
from chainstay.solve.budgets import share_of
from chainstay.units import format_bytes

StageSource = Literal["auto", "graph", "blocks", "export"]
"""How `chainstay.fit` gets at a model's stages; ``"export"`` is what ``"graph"`` was called."""

OnNewShape = Literal["plan", "refuse", "run plainly"]
"""The answer to a call for which there is no plan yet."""


AnyPlanned = PlannedGraph | PlannedBlocks

_WIDTH: Final = 80
"""Columns of the lines in which a schedule is shown."""
_OTHER_KIND: Final = (
    ", but as something else that its forward reads now is (training flags, autocast, what "
    "requires gradients, an attribute, how tensors lie in memory)"
)
"""What is told of a call whose shapes have a plan, but which has none."""
_MANY: Final = 32
"""Plans of one model for which fewer shapes are recommended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """The arguments of `chainstay.fit`, looked through; see there.

    Attributes:
        memory: The techniques by which memory may be saved.
    """

    budget: Budget = "100%"
    memory: MemoryOptions = RECOMPUTING
    loss: Loss | None = None
    method: Method | str = "auto"
    by: StageSource = "auto"
    granularity: Granularity = "fine"
    stage_options: bool = True
    on_new_shape: OnNewShape = "plan"
    bit_for_bit: bool = True
    reserve: int = 0
    repeats: int = 3
    progress: bool = True
    cache: str | os.PathLike[str] | None = None

    def say(self, text: str) -> None:
        """Tell people in one line; see `chainstay.runtime.measures.progress.say`."""
        say(text, wanted=self.progress)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphCall:
    """A call of a captured graph, for which there is no plan.

    Attributes:
        key: Equal for graphs that differ in numbers only.
        family: Equal for graphs that differ in numbers and sizes only.
        forward: The graph.
        observed: The graph with the effects of its operators.
        inputs: The inputs of the call.
        device: The inputs' device.
        call: The call of the model; ``None`` where only the graph is known, so that it cannot be
            compared with the model.
    """

    key: Hashable
    family: Hashable
    forward: GraphForward
    observed: ObservedGraph
    inputs: Sequence[Any]
    device: torch.device
    call: Call | None

    @property
    def model(self) -> nn.Module | None:
        """The user's model, if it is known."""
        return None if self.call is None else self.call.model

    @property
    def shapes(self) -> str:
        """The shapes of the call's tensors, for people."""
        kinds = [given.kind for given in self.observed.captured.inputs]
        is_argument = [kind is InputKind.ARGUMENT for kind in kinds]
        return listed_shapes(list(compress(self.inputs, is_argument)))

    @property
    def blocks(self) -> frozenset[str]:
        """Paths of the model's repeated blocks; none where only the graph is known."""
        return frozenset() if self.model is None else repeated_blocks(self.model)

    def as_join(self, granularity: Granularity) -> GraphJoin:
        """Cut the graph into branches that meet and a tail.

        Raises:
            NotAJoinError: It is none.
        """
        return cut_into_join(self.observed_again(), granularity, self.blocks)

    def cut_like(self, known: GraphStages, granularity: Granularity) -> GraphStages | None:
        """Cut the graph as one that differs in numbers; ``None`` if it comes out otherwise."""
        graph: GraphStages | None = None
        if isinstance(known, GraphChain):
            graph = cut_again(self.observed, known.cuts)
        else:
            with suppress(NotAJoinError):
                graph = self.as_join(granularity)
        return graph if graph is not None and graph.layout == known.layout else None

    def observed_again(self) -> ObservedGraph:
        """Observe the graph anew, to be cut in another way: cutting changes it."""
        return observe_graph(self.observed.name, self.forward, self.inputs)


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
        plain_time = planned.plain_time or profile.least_time
        tables = (
            table_of_parts(self.kept_in_part, len(profile), plain_time),
            table_of(planned.alternatives) if planned.alternatives else "",
        )
        cut = f"{name} in {len(profile)} stages, the loss included:"
        solved = solution.describe().replace(": ", ":\n  ", 1).replace("; ", ";\n  ")
        predicted = (
            f"predicted {planned.slowdown:.1%} slower than plain training at a peak of "
            f"{format_bytes(solution.peak_bytes)}{others}"
        )
        told = (f"{cut}\n  {solved}", planned.origin.rstrip(), predicted)
        schedule = fill(str(solution.schedule), _WIDTH, subsequent_indent="  ")
        return "\n".join(filter(None, (*told, *tables, schedule)))


class PlanMaker(Protocol):
    """Makes plans."""

    @property
    def budget_bytes(self) -> int | None:
        """The budget, once it is known."""
        ...

    def of_graph(self, call: GraphCall, *, is_first: bool) -> PlannedGraph:
        """Return a plan for a captured graph; `is_first` if there is none for the model yet."""
        ...

    def of_blocks(self, around: Around, *, is_first: bool) -> PlannedBlocks:
        """Return a plan for the blocks of a model; `is_first` as for `of_graph`."""
        ...


@dataclass(slots=True)
class Planner:
    """Plans captured graphs of one model within one budget.

    Attributes:
        name: The model's name, for messages.
        settings: The arguments of `chainstay.fit`.
        maker: Makes plans.
        plans: All that were made, the latest at the end.
        known: Plans of graphs by what they hold for.
        shapes: The shapes of the calls that there are plans for.
    """

    name: str
    settings: PlannerSettings
    maker: PlanMaker
    plans: list[NotedPlan] = field(default_factory=list)
    known: dict[Hashable, PlannedGraph] = field(default_factory=dict)
    shapes: set[str] = field(default_factory=set)

    def plan_graph(
        self, forward: GraphForward, inputs: Sequence[Any], call: Call | None
    ) -> PlannedGraph | CapturedForward:
        """Return a plan for a captured graph on inputs like these.

        Returns:
            The graph by a plan, or the graph itself where new shapes run plainly.

        Raises:
            NotTheModelError: The graph is not the model.
            PlanMismatchError: New shapes are refused, and this is one.
            ChainstayError: Whatever `chainstay.fit` raises.
        """
        device = device_of([value for value in inputs if isinstance(value, torch.Tensor)])
        device_at(device)  # refuses what counts no bytes
        observed = observe_graph(self.name, forward, inputs)
        settings = (Autocast.now(device), backend_settings())
        graph_call = GraphCall(
            key=graph_key(observed, inputs, settings),
            family=graph_key(observed, inputs, settings, has_sizes=False),
            forward=forward,
            observed=observed,
            inputs=inputs,
            device=device,
            call=call,
        )
        if (again := self._known_plan(graph_call)) is not None:
            return again
        if not self.admits(graph_call.shapes):
            return forward.graph.forward
        try:
            made = self.maker.of_graph(graph_call, is_first=not self.plans)
        except InfeasibleBudgetError as refusal:
            raise self.at_shapes(refusal, graph_call.shapes) from None
        self.known[graph_call.key] = made
        self._tell_of_checkpoints(observed)
        self.add(made, graph_call.shapes, call, device)
        return made

    def _known_plan(self, call: GraphCall) -> PlannedGraph | None:
        """Return the plan of a graph that differs in numbers only, with the numbers of this one."""
        if (known := self.known.get(call.key)) is None:
            return None
        graph = call.cut_like(known.graph, self.settings.granularity)
        return None if graph is None else known.for_graph(graph, call.inputs)

    def admits(self, shapes: str) -> bool:
        """Whether a call that no plan is for gets one; otherwise it runs plainly."""
        if not self.plans:
            if not sys.stderr.isatty():  # no bar shows why nothing happens
                self.settings.say(f"planning for {shapes} ...")
            return True
        if self.settings.on_new_shape == "run plainly":
            return False
        if self.settings.on_new_shape == "refuse":
            raise PlanMismatchError(
                f"no plan of this {self.name} is for a call with {shapes}"
                f"{_OTHER_KIND if shapes in self.shapes else ''}; call it like the "
                "sample, fit with on_new_shape='plan', or run it under torch.no_grad()"
            )
        kind = "another kind of call with" if shapes in self.shapes else "a new shape"
        self.settings.say(f"planning for {kind} {shapes} ...")
        return True

    def add(self, planned: Planned, shapes: str, call: Call | None, device: torch.device) -> None:
        """Note a new plan, and tell of it in one line."""
        self.shapes.add(shapes)
        self.plans.append(_noted(planned, call, device))
        if len(self.plans) > MOST_SHAPES:
            oldest = self.plans.pop(0).planned
            self.known = {key: kept for key, kept in self.known.items() if kept is not oldest}
        solution, budget = planned.solution, self.maker.budget_bytes
        limit = "" if budget is None else f" of {format_bytes(budget)}"
        slower = planned.slowdown
        told = f"{slower:.1%} slower than plain" if slower > 0 else "as fast as plain"
        peak = format_bytes(solution.peak_bytes)
        self.settings.say(f"planned for {shapes}: {peak}{limit}, {told}")
        if len(self.plans) == _MANY:
            self.settings.say(
                f"{_MANY} plans are kept; each took a pause, and takes host memory: pad batches to "
                "fewer shapes, to lengths that are multiples of 16 for example"
            )

    def _tell_of_checkpoints(self, observed: ObservedGraph) -> None:
        """Say of what the budget is a share, if the model saves memory by itself."""
        budget = self.settings.budget
        if not self.plans and share_of(budget) and observed.is_checkpointed:
            self.settings.say(
                f"the plan stands in for the torch.utils.checkpoint in {self.name}, and "
                f"{budget!r} is a share of training without that, which takes more memory than "
                "with it; for less than that takes, give bytes"
            )

    def at_shapes(
        self, refusal: InfeasibleBudgetError, shapes: str, stages: str = ""
    ) -> InfeasibleBudgetError:
        """Return the same refusal, of a call with these shapes, and a sentence on its `stages`."""
        other, budget = _OTHER_KIND if shapes in self.shapes else "", self.settings.budget
        told = f"for a call with {shapes}{other}: {refusal}"
        if self.plans and share_of(budget):
            told += (
                f" The budget {budget!r} is a share of what the first call planned needed, and the "
                "same bytes hold for all: fit with a sample of the largest call, or give bytes."
            )
        refusal.args = (told + stages, *refusal.args[1:])
        return refusal

    def use(self, planned: AnyPlanned) -> None:
        """Take another plan of the same stages in place of the one made last."""
        before = self.plans[-1]
        self.plans[-1] = replace(before, planned=planned)
        if isinstance(planned, PlannedBlocks):
            return
        for key, known in self.known.items():
            if known is before.planned:
                self.known[key] = planned

    def for_copy(self) -> Planner:
        """Return a planner for a copy of the model, without plans that move data by an engine."""
        known = {
            key: planned
            for key, planned in self.known.items()
            if planned.executor.transfers is None
        }
        again = set(map(id, known.values()))
        plans = [noted for noted in self.plans if id(noted.planned) in again]
        return replace(self, known=known, plans=plans, shapes=set(self.shapes))


def _noted(planned: Planned, call: Call | None, device: torch.device) -> NotedPlan:
    fingerprint = None if call is None else fingerprint_of(call, device, planned.chain.stages)
    return NotedPlan(planned, fingerprint)


def listed_shapes(tensors: Sequence[torch.Tensor]) -> str:
    """Return the shapes of a call's tensors, for people."""
    shapes = [str(tuple(tensor.shape)) for tensor in tensors]
    return ", ".join([*shapes[:3], "..."] if len(shapes) > 3 else shapes) or "no tensors"
