"""A model given as a chain of stages, tensor in, tensor out: measured, and run by a schedule."""

from __future__ import annotations

import os
import weakref
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from chainstay.errors import PlanMismatchError, type_with_article
from chainstay.problems.offload import OffloadSolution
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.capture.cuts.cut import cut_again
from chainstay.runtime.capture.cuts.stage_borders import (
    cut_between_stages,
    naming_the_stage,
    observed_stages,
    output_index,
    traced_stages,
)
from chainstay.runtime.capture.dynamo import (
    CapturedForward,
    GraphCapture,
    GraphForward,
    UnplannedGraphError,
    wants_gradients,
)
from chainstay.runtime.capture.graph_key import graph_key
from chainstay.runtime.capture.tracing import NoFullGraphError, UnknownCallError
from chainstay.runtime.capture.trials.dispatch_modes import without_modes
from chainstay.runtime.capture.trials.equivalence import OutputSample
from chainstay.runtime.capture.trials.isolation import require_initialised
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.execute.executor import Executor, matching
from chainstay.runtime.execute.handles import dropping
from chainstay.runtime.measures.chain_source import ChainSource
from chainstay.runtime.measures.measured import (
    Measurement,
    measure_subject,
    measuring,
    require_repeats,
)
from chainstay.runtime.measures.progress import progress_bar
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.given_stages import Model, StageLoop, named_stages
from chainstay.runtime.stage.loss_stage import Loss, loss_stage, require_loss
from chainstay.runtime.stage.staged_graph import StagedChain, subject_of
from chainstay.runtime.transfer import Engine, PlannedTransfers, engine_for, program_of
from chainstay.schedule import Schedule
from chainstay.solution import Solution


class PlannedChain(StageLoop):
    """A chain of stages that forgets, recomputes or offloads activations as a schedule says.

    Its output hangs on an ordinary autograd graph: ``backward``, ``autograd.grad``,
    ``retain_graph``, gradient accumulation and several forwards before a backward all work.
    The modules inside are the model's own objects under their own names, so that
    parameters are shared with the model and ``state_dict`` keys are the same. Without
    gradients (``torch.no_grad``, or nothing that requires any) it runs plainly.

    The plan's memory counts the input and the output as held until the step ends, so the
    usual loop (``output = planned(x)``, ``loss(output).backward()``) stays within it.

    A plan holds for what was measured: the input's layout, training flags, autocast, and what
    the stages compute but for its numbers. Another call is refused; evaluate under
    ``torch.no_grad``.

    With transfers, `close` stops them and lets host memory go; without a call, that happens
    with the chain's end.

    Args:
        measured: What to run.
        schedule: For its stages and the loss, valid under free discards.
        transfers: Makes the transfers that the schedule has, if it has any.

    Raises:
        PlanMismatchError: The schedule is for another number of stages.
        InvalidScheduleError: An operation lacks what it needs.
        UnsupportedModelError: A stage has the name of an attribute of this class.
    """

    _measured: MeasuredChain
    _executor: Executor
    _capture: _ChainGraphs

    def __init__(
        self, measured: MeasuredChain, schedule: Schedule, transfers: PlannedTransfers | None = None
    ) -> None:
        super().__init__(
            measured.source.named,
            _measured=measured,
            _executor=Executor(measured.chain, schedule, transfers),
            _capture=_ChainGraphs(),
        )
        self.training = measured.source.is_training

    @torch.compiler.disable(recursive=True)  # type: ignore[untyped-decorator]  # a traced plan gives silently wrong gradients
    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        """The model's output.

        Raises:
            PlanMismatchError: Gradients are wanted, and the input, the mode or a stage is not
                like that which the plan was measured with, so that its memory is not known;
                or a stage was added or removed.
            UnsupportedModelError: A stage has changed, and cannot be traced any more.
        """
        if not isinstance(activation, torch.Tensor):
            raise PlanMismatchError(
                f"the input is {type_with_article(activation)}, must be one tensor "
                f"{self._measured.source.layout}"
            )
        self._require_own_modules()
        if not torch.is_grad_enabled():
            return self.run_plainly(activation)
        if activation.is_inference():
            raise PlanMismatchError(
                "the input was made under torch.inference_mode(), where no gradient can be "
                "computed; make it outside, or pass a clone of it"
            )
        capture = self._capture.graphs
        try:
            output: torch.Tensor = capture.run(self, activation)
        except (UnknownCallError, UnplannedGraphError):
            return self._first_run(capture, activation)
        return output

    def close(self) -> None:
        """Stop transfers and let host memory go; nothing is trained after that."""
        self._executor.close()

    def _first_run(self, capture: GraphCapture, activation: torch.Tensor) -> torch.Tensor:
        def plan(found: UnplannedGraphError) -> CapturedForward:
            with without_modes():
                planned = self._planned(found, activation)
            self._capture.note(found.forward)
            return planned

        try:
            output: torch.Tensor = capture.capture(plan, (self, activation), {})
        except NoFullGraphError as reason:
            raise naming_the_stage(reason, self._stages_now(), activation) from reason.__cause__
        return output

    def _require_own_modules(self) -> None:
        own = {stage for stage in self._stages if isinstance(stage, str)}
        if own != self._modules.keys():
            (name, *_) = sorted(own ^ self._modules.keys())
            raise PlanMismatchError(
                f"module {name} was {'removed from' if name in own else 'added to'} the planned "
                "chain, which runs the stages that were measured; change the model, then measure "
                "and plan again"
            )

    def _planned(self, found: UnplannedGraphError, activation: torch.Tensor) -> CapturedForward:
        """Return a graph by the plan, if it is the one that was measured but for its numbers."""
        measured = self._measured
        if not wants_gradients(found.inputs):
            return found.forward.graph
        observed = observed_stages(found, measured.source.titles)
        autocast = Autocast.now(measured.chain.device)
        key = graph_key(observed, found.inputs, autocast, tells_parameters=False)
        graph = cut_again(observed, measured.graph.cuts)
        staged = None
        if graph is not None and key == measured.key:
            former = StagedChain(graph=measured.graph, chain=self._executor.chain)
            staged = former.with_graph(graph, found.inputs)
        if graph is None or staged is None:
            raise PlanMismatchError(measured.source.mismatch(self._stages_now(), activation))
        executor = self._executor.with_chain(staged.chain)

        def planned(*inputs: Any) -> Sequence[Any]:
            state, shared = graph.begin(inputs)
            return graph.finish(executor(state, shared), shared)

        return planned

    def _stages_now(self) -> list[tuple[str, Any]]:
        return [
            (name, self._modules.get(name, stage)) for name, stage in self._measured.source.named
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredChain(Measurement):
    """A model and what it costs.

    Attributes:
        chain: The model as stages, some of its own joined.
        account: Costs of ``len(stages) + 1`` stages; the last one is the loss.
        graph: The model's graph, cut into these stages.
        key: What a graph must have in common with that one to go by a plan of it.
        source: What it was made from.
    """

    graph: GraphChain
    key: Hashable
    source: ChainSource

    @property
    def stages(self) -> tuple[ChainStage, ...]:
        """The stages that a schedule speaks about, the loss excluded."""
        return self.chain.stages

    def planned(
        self,
        plan: Schedule | Solution,
        *,
        engine: Engine | None = None,
        host_budget: int | None = None,
    ) -> PlannedChain:
        """The model as a module that trains by `plan`; see `PlannedChain`.

        Args:
            plan: Made under any discards: ``"table1"``, ``"tape"`` or ``"free"``; or what
                `chainstay.solve_offload` makes of `offload_profile`, or
                `chainstay.solve_hybrid` of `movable_profile`.
            engine: Makes the transfers of such a plan; by default, that of the device.
            host_budget: Of the default engine: bytes of host memory, ``None`` for no limit.

        Raises:
            PlanMismatchError: The plan is for another number of stages, or no plan.
            HostBudgetError: What is away at once needs more host memory.
            InvalidScheduleError: An operation of the plan lacks what it needs.
            UnsupportedModelError: A stage has the name of an attribute of `PlannedChain`.
        """
        schedule: object = plan.schedule if isinstance(plan, Solution) else plan
        if not isinstance(schedule, Schedule):
            raise PlanMismatchError(
                f"the plan is {type_with_article(plan)}, must be a Schedule or a Solution; "
                "get one from chainstay.solve_measured(measured, budget)"
            )
        transfers = None
        if isinstance(plan, OffloadSolution):
            engine = engine or engine_for(
                self.chain.device, link=plan.link, host_budget=host_budget
            )
            schedule = matching(program_of(plan), self.chain)
            profile, overheads = self.flat_profile_for(schedule), self.overheads_for(schedule)
            transfers = PlannedTransfers.of(plan, profile, overheads, engine)
        return PlannedChain(self, schedule, transfers)


def measure(  # noqa: PLR0913  # all but the model and the sample have defaults
    model: Model,
    sample: torch.Tensor,
    *,
    loss: Loss | None = None,
    repeats: int = 3,
    progress: bool = True,
    cache: str | os.PathLike[str] | None = None,
) -> MeasuredChain:
    """Measure time and memory of every stage of `model` on `sample`.

    The stages are traced by TorchDynamo, and their operators run on stand-ins for parameters
    and buffers: the model is left as it was, even when a stage fails.

    Args:
        model: A `torch.nn.Sequential`, or a list or tuple of stages, each tensor in,
            tensor out.
        sample: An input like those to come: same shape, type, device and ``requires_grad``.
        loss: From the output to a scalar; holds its targets itself. Measured as the last
            stage. Without it, it has the memory of a cross-entropy of the output.
        repeats: The least number of times that each stage is timed, after one that warms up;
            it goes on until the time of a step is known to 2 %, up to four times as often.
        progress: Show a bar on stderr, if that is a terminal and it takes over a second.
        cache: A directory for what was measured, one JSON file per model, call and machine;
            what is found there is not measured again. By default there is none.

    Raises:
        UnsupportedModelError: The model is not such a chain, or cannot be traced; the text
            names the stage.
        ValueError: `repeats` is no whole number or less than 1.

    Complexity:
        About ``repeats + 6`` steps of plain training, with one stage's graph at a time.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
        >>> measured = measure(model, torch.zeros(2, 8), loss=torch.Tensor.mean)
        >>> [(stage.name, stage.output_bytes) for stage in measured.profile.stages]
        [('Linear0', 32), ('Linear1', 8), ('loss', 4)]
    """
    require_repeats(repeats)
    named = named_stages(model)
    source = ChainSource.of(model, named, sample)
    require_loss(loss)
    for stage in (*(stage for _, stage in named), loss):
        if isinstance(stage, nn.Module):
            require_initialised(stage)
    observed, inputs = traced_stages(named, sample)
    key = graph_key(observed, inputs, Autocast.now(sample.device), tells_parameters=False)
    graph = cut_between_stages(observed, source.titles)
    with progress_bar(wanted=progress) as bar, measuring(sample.device):
        behind = _loss_of(loss, graph, output_index(observed.captured), inputs)
        subject = subject_of(graph, inputs, behind, sample.device, progress=bar, merges=False)
        measured = measure_subject(
            subject, graph.shared_names, lambda _: repeats, cache, wants_options=lambda _: True
        )
    return MeasuredChain(
        chain=measured.chain,
        account=measured.account,
        freed_bytes=measured.freed_bytes,
        graph=graph,
        key=key,
        source=source,
    )


def _loss_of(
    loss: Loss | None, graph: GraphChain, index: int, inputs: Sequence[Any]
) -> ChainStage | None:
    """The loss behind the chain's output, which is number `index` of its graph's, as a stage."""
    if loss is None:
        return None
    with torch.enable_grad(), dropping():
        state, shared = graph.begin(graph.stand_ins(inputs).of_all(inputs))
        for stage in graph.stages:
            state = stage(state, shared)
        output = graph.finish(state, shared)[index]
    return loss_stage(loss, OutputSample(output, {id(output): index}), graph.output, shared)


class _ChainGraphs:
    """Graphs of a planned chain; a copy of the chain finds its own."""

    def __init__(self) -> None:
        self._found: GraphCapture | None = None
        self._forwards: list[GraphForward] = []
        weakref.finalize(self, _forget_plans, self._forwards)

    @property
    def graphs(self) -> GraphCapture:
        """The graphs there are; they are made at the first call."""
        if self._found is None:
            self._found = GraphCapture(StageLoop.run_plainly, GraphForward.from_graph, "the chain")
        return self._found

    def note(self, forward: GraphForward) -> None:
        """Let a graph have its plans for as long as these graphs are there."""
        self._forwards.append(forward)

    def __deepcopy__(self, memo: dict[int, Any]) -> _ChainGraphs:
        return _ChainGraphs()

    def __reduce__(self) -> tuple[type[_ChainGraphs], tuple[()]]:
        return _ChainGraphs, ()


def _forget_plans(forwards: Sequence[GraphForward]) -> None:
    """TorchDynamo may keep graphs longer than whoever had them captured."""
    for forward in forwards:
        forward.plans.clear()
