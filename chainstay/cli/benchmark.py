"""Several strategies to train one model, each run for real, in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch.utils import checkpoint

from chainstay.baselines import checkpoint_sequential
from chainstay.cli.model_plans import measured_method
from chainstay.cli.models.model_costs import ModelCosts
from chainstay.cli.models.workload import Workload
from chainstay.cli.options import PlanOptions
from chainstay.cli.terminal import progress_bar, short_bytes
from chainstay.cli.training_steps import fits_here, measure_peak, measure_step_times
from chainstay.errors import InfeasibleBudgetError
from chainstay.fitting.measured import MeasuredModel
from chainstay.fitting.planner import AnyPlanned
from chainstay.fitting.strategies.fastest import planned_graph
from chainstay.runtime.execute.executor import Executor
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.states import State
from chainstay.schedule import Schedule
from chainstay.solve.budgets import parse_budget


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkRow:
    """One strategy, as predicted and as measured.

    Attributes:
        name: Name of the strategy.
        budget: Budget in bytes, where there is one.
        planned_peak: Simulated peak in bytes.
        planned_ns: Simulated time of a step, in ns.
        measured_peak: Measured peak in bytes; ``None`` if it was not run.
        measured_ns: Least measured time of a step in ns; ``None`` if it was not run.
        note: Reason why it was not run; empty if it was.
    """

    name: str
    budget: int | None = None
    planned_peak: int | None = None
    planned_ns: float | None = None
    measured_peak: int | None = None
    measured_ns: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class _RunnableStrategy:
    """A strategy, and a context in which the model trains by it."""

    row: BenchmarkRow
    running: Callable[[], AbstractContextManager[None]]


def measure_strategies(
    costs: ModelCosts, plans: Sequence[PlanOptions], *, segments: int, steps: int
) -> list[BenchmarkRow]:
    """Run plain training, `segments` ways of checkpointing, and plans; return what they took."""
    strategies = [_plain(costs), *_segmented(costs, segments), *_planned(costs, plans)]
    return _measured(costs.workload, strategies, steps)


def _measured(
    workload: Workload, strategies: Sequence[_RunnableStrategy], steps: int
) -> list[BenchmarkRow]:
    """Run all strategies in turn, round after round, so that other load slows all alike."""
    running = [strategy for strategy in strategies if not strategy.row.note]
    times: dict[str, list[int]] = {strategy.row.name: [] for strategy in running}
    peaks: dict[str, int] = {}
    with progress_bar("measuring", len(running) * (steps + 1)) as step:
        for _ in range(steps):
            for strategy in running:
                with strategy.running():
                    times[strategy.row.name] += measure_step_times(workload, 1, lambda: None)
                step(strategy.row.name)
        for strategy in running:
            with strategy.running():
                peaks[strategy.row.name] = measure_peak(workload)
            step(strategy.row.name)
    return [
        replace(row, measured_ns=min(times[row.name]), measured_peak=peaks[row.name])
        if (row := strategy.row).name in peaks
        else row
        for strategy in strategies
    ]


def _plain(costs: ModelCosts) -> _RunnableStrategy:
    plain = costs.plain
    fits = fits_here(plain.peak_bytes, costs.workload.target.device)
    row = BenchmarkRow(
        name="plain PyTorch",
        planned_peak=plain.peak_bytes,
        planned_ns=plain.makespan,
        note="" if fits else "does not fit here",
    )
    return _RunnableStrategy(row, nullcontext)


def _segmented(costs: ModelCosts, most: int) -> Iterator[_RunnableStrategy]:
    """Yield the counts of segments that no other beats, evenly chosen if there are many."""
    model = costs.model
    if model is None or model.staged is None:
        return
    stages = len(costs.profile)
    simulated = []
    for count in range(1, stages):
        replay = costs.replay(checkpoint_sequential(stages, count))
        simulated.append((replay.peak_bytes, replay.makespan, count))
    front: list[tuple[int, int, int]] = []
    for candidate in sorted(simulated):
        if not front or candidate[1] < front[-1][1]:
            front.append(candidate)
    for peak, makespan, count in _spread(front, most):
        row = BenchmarkRow(
            name=f"torch checkpoint ({count})", planned_peak=peak, planned_ns=makespan
        )
        yield _RunnableStrategy(row, partial(model.running, _checkpointed(model, count)))


def _spread(front: Sequence[tuple[int, int, int]], most: int) -> Sequence[tuple[int, int, int]]:
    if len(front) <= most:
        return front[::-1]
    chosen = sorted({round(index * (len(front) - 1) / max(most - 1, 1)) for index in range(most)})
    return [front[index] for index in reversed(chosen)]


def _checkpointed(model: MeasuredModel, segments: int) -> AnyPlanned:
    """Return the stages of a model, to be run by torch's ``checkpoint_sequential``."""
    assert model.staged is not None, "only graphs are cut into segments"
    plain = planned_graph(model.staged, model.costs, model.solve("100%"))
    return replace(plain, executor=_CheckpointSequential(model.staged.chain, segments))


class _CheckpointSequential(Executor):
    """Runs a chain by torch's ``checkpoint_sequential``."""

    def __init__(self, chain: Chain, segments: int) -> None:
        super().__init__(chain, Schedule.keep_all(len(chain.stages) + 1))
        self._segments = segments

    def __call__(self, state: State, shared: Sequence[Any] = ()) -> State:
        """Run the stages and return the last state."""
        stages = [partial(stage, shared=shared) for stage in self.chain.stages]
        last: State = checkpoint.checkpoint_sequential(
            stages, self._segments, state, use_reentrant=False
        )
        return last


def _planned(costs: ModelCosts, plans: Sequence[PlanOptions]) -> Iterator[_RunnableStrategy]:
    plain, model = costs.plain, costs.model
    assert model is not None, "a data sheet is refused before"
    for options in plans:
        budget = parse_budget(options.budget, lambda: plain.peak_bytes)
        name = f"chainstay {options.budget}"
        try:
            solution = model.solve(budget, measured_method(options.solving))
        except InfeasibleBudgetError as refusal:
            needs = short_bytes(refusal.required)
            refused = BenchmarkRow(name=name, budget=budget, note=f"needs {needs}")
            yield _RunnableStrategy(refused, nullcontext)
            continue
        row = BenchmarkRow(
            name=name,
            budget=budget,
            planned_peak=solution.peak_bytes,
            planned_ns=float(solution.makespan),
        )
        yield _RunnableStrategy(row, partial(model.running, model.planned(solution)))
