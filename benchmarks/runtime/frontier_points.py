"""A measured network of the frontier benchmark, one plan of it, and how its step goes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from benchmarks.trainings import Training
from chainstay import Link, MeasuredChain, measure
from chainstay.fitting.measured import MeasuredModel, measure_model
from chainstay.fitting.planner import PlannerSettings
from chainstay.runtime import trace_memory
from chainstay.runtime.measures.measured import Measurement
from chainstay.runtime.transfer import Engine, engine_for
from chainstay.runtime.transfer.cpu_engine import CopyingEngine
from chainstay.schedule import Schedule
from chainstay.solution import Solution

__all__ = ["Point", "Subject", "run"]


@dataclass(frozen=True)
class Subject:
    """A model ready to be planned.

    Attributes:
        training: The model.
        measured: The same as stages.
    """

    training: Training
    measured: MeasuredModel | MeasuredChain

    @classmethod
    def measure(cls, training: Training, repeats: int) -> Subject:
        """Measure a model by one thread."""
        if isinstance(training.model, nn.Sequential):  # between its own stages, as torch cuts it
            (sample,) = training.args
            return cls(
                training,
                measure(
                    training.model, sample, loss=training.loss, repeats=repeats, progress=False
                ),
            )
        settings = PlannerSettings(loss=training.loss, repeats=repeats, progress=False)
        return cls(
            training, measure_model(training.model, training.args, training.kwargs, settings)
        )

    @property
    def costs(self) -> Measurement:
        """Of its stages."""
        measured = self.measured
        return measured if isinstance(measured, MeasuredChain) else measured.costs

    def step_by(self, solution: Solution, engine: Engine) -> Callable[[], None]:
        """A step by a plan; `engine` makes its transfers, if it has any."""
        measured = self.measured
        if isinstance(measured, MeasuredChain):
            return self.step_of(measured.planned(solution, engine=engine))
        return self.step_of(measured.forward(measured.planned(solution, engine)))

    def step_of(self, forward: Callable[..., Any]) -> Callable[[], None]:
        """The usual step; gradients add up."""

        def step() -> None:
            output = forward(*self.training.args, **self.training.kwargs)
            self.training.loss(output).backward()

        return step

    @property
    def plain(self) -> Schedule:
        """Plain training."""
        return Schedule.keep_all(len(self.costs.profile))


@dataclass(frozen=True, kw_only=True)
class Point:
    """One plan, and how its step went.

    Attributes:
        way: Of saving memory.
        planned_peak: Bytes.
        planned_time: Of a step, in ns.
        budget: Bytes; 0 for what nobody planned.
        host_bytes: In host memory.
        segments: Of ``checkpoint_sequential``.
        solution: The plan, if there is one.
        measured_peak: Bytes; 0 if it was not run.
        measured_time: Of a step, in ns.
        waited_time: Of that, how long it waited for transfers.
        plain_time: Of plain steps run in turns with it, in ns.
    """

    way: str
    planned_peak: int
    planned_time: float
    budget: int = 0
    host_bytes: int = 0
    segments: int = 0
    solution: Solution | None = None
    measured_peak: int = 0
    measured_time: float = 0.0
    waited_time: float = 0.0
    plain_time: float = 0.0

    def against_plan(self, plain: float) -> float:
        """The step's time over what was planned, both in times of plain training."""
        return (self.measured_time / self.plain_time) / (self.planned_time / plain)


def run(subject: Subject, link: Link, point: Point, repeats: int) -> Point:
    """Run it: peak by the allocator's own account, the least times of steps in turns."""
    device = subject.costs.chain.device
    engine = engine_for(device, link=link)
    plain, step = subject.step_of(subject.training.model), _step_by(subject, point, engine)
    step()
    peak = trace_memory(step, device).peak_bytes + subject.training.given_bytes
    times: tuple[list[_Times], list[_Times]] = ([], [])
    for turn in range(repeats + 1):
        for runs, one_step in zip(times, (plain, step), strict=True):
            elapsed = _timed(one_step, engine)
            if turn > 0:  # the first one warms up
                runs.append(elapsed)
    engine.close()
    measured = min(times[1])
    return replace(
        point,
        measured_peak=peak,
        plain_time=min(times[0]).total,
        measured_time=measured.total,
        waited_time=measured.waited,
    )


class _Times(NamedTuple):
    """Of a step, in ns, and how long it waited of that."""

    total: int
    waited: int


def _step_by(subject: Subject, point: Point, engine: Engine) -> Callable[[], None]:
    model = subject.training.model
    if point.solution is not None:
        return subject.step_by(point.solution, engine)
    if point.segments and isinstance(model, nn.Sequential):
        return subject.step_of(
            lambda sample: checkpoint_sequential(model, point.segments, sample, use_reentrant=False)
        )
    return subject.step_of(model)


def _timed(step: Callable[[], None], engine: Engine) -> _Times:
    """On the CPU, what this thread computes and how long it waits; others' work does not count."""
    if not isinstance(engine, CopyingEngine):
        torch.cuda.synchronize(engine.device)
        begin = time.perf_counter_ns()
        step()
        torch.cuda.synchronize(engine.device)
        return _Times(time.perf_counter_ns() - begin, 0)
    begin, stalled = time.thread_time_ns(), engine.stalled
    step()
    waited = int((engine.stalled - stalled) * 1e9)
    return _Times(time.thread_time_ns() - begin + waited, waited)
