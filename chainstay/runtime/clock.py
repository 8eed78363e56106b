"""How long stages take, in whole nanoseconds: in the form in which they will run.

The chain is passed through again and again, one stage at a time, so that each finds the
caches as its neighbours leave them, as in a step. In one pass every stage is kept: forward,
then backward, without hooks. In the next every stage is dropped and run again by the
executor itself, with all that this takes: handles, surroundings, recapture.

A profile has one forward time, for first runs and for others. It is what one more run
costs; what a kept stage takes less than that is in its backward time, so that every schedule
of first runs, runs again and backwards adds up to what was measured.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median, quantiles
from typing import Final

import torch

from chainstay.runtime.boundary import swallow
from chainstay.runtime.environment import Traits
from chainstay.runtime.fusing import blaming
from chainstay.runtime.liveness import ExecutionPlan, plan_execution
from chainstay.runtime.preserve import zeroed_gradients
from chainstay.runtime.progress import Progress, unseen
from chainstay.runtime.recompute import Run, Versioned
from chainstay.runtime.stages import ChainStage
from chainstay.runtime.states import State, detached
from chainstay.schedule import Schedule

__all__ = ["StageTimes", "TimedStage", "time_chain"]

_SPREAD: Final = 0.02
"""Enough is known of a chain when its time is, to this share: half the middle half's width
by the root of the number of passes."""

_SECONDS: Final = 10.0
"""The most to spend on passes beyond the least number of them."""


@dataclass(frozen=True, slots=True)
class TimedStage:
    """A stage to be timed.

    Attributes:
        stage: What to run.
        traits: How its forward touches the world.
        leaves: Everything outside that receives a gradient.
    """

    stage: ChainStage
    traits: Traits
    leaves: tuple[torch.Tensor, ...]


@dataclass(slots=True)
class StageTimes:
    """Of one stage in every pass, in ns.

    Attributes:
        forward: Of kept runs.
        backward: Likewise.
        dropped: Of forward, run again and backward together.
    """

    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)

    @property
    def profiled(self) -> tuple[int, int]:
        """Forward and backward time for a profile."""
        forward, backward = _typical(self.forward), _typical(self.backward)
        if not self.dropped:
            return forward, backward
        again = max(_typical(self.dropped) - forward - backward, 0)
        again = min(again, forward + backward)
        return again, forward + backward - again


def _typical(times: Sequence[int]) -> int:
    return int(median(times))


def time_chain(
    stages: Sequence[TimedStage],
    given: tuple[State, State],
    device: torch.device,
    repeats: int,
    progress: Progress = unseen,
) -> list[StageTimes]:
    """Pass through the chain until its time is known well enough, after one pass to warm up.

    Args:
        stages: The chain, the loss included, which nobody runs again.
        given: Its input, and what all stages may read.
        device: Where it runs.
        repeats: The least number of passes of each kind; the most is this times itself, but
            no more than four times this, and none beyond it starts after 10 seconds.
        progress: Told of every pass.
    """
    stopwatch = _time_cuda if device.type == "cuda" else _time_cpu
    chain = _Chain(stages, *given, device, stopwatch)
    progress("warming up", steps=0, more=len(stages) * (1 + repeats))
    chain.keep()
    chain.drop()
    chain.times = [StageTimes() for _ in stages]
    # Processes that share parameters must all run them equally often.
    is_sharded = any(each.stage.is_sharded for each in stages)
    begin = time.monotonic()
    for done in range(repeats * min(repeats, 4)):
        if done >= repeats and (
            is_sharded or chain.is_known or time.monotonic() - begin > _SECONDS
        ):
            break
        progress("timing", steps=len(stages), more=len(stages) * (done >= repeats))
        chain.keep()
        chain.drop()
    progress("timing", steps=len(stages))
    return chain.times


_Stopwatch = Callable[[Callable[[], State]], tuple[State, int]]


@dataclass(slots=True)
class _Chain:
    stages: Sequence[TimedStage]
    source: State
    shared: State
    device: torch.device
    stopwatch: _Stopwatch
    times: list[StageTimes] = field(init=False)

    def __post_init__(self) -> None:
        self.times = [StageTimes() for _ in self.stages]

    @property
    def is_known(self) -> bool:
        """Whether passes differ little enough."""
        forward = (each.forward for each in self.times)
        backward = (each.backward for each in self.times)
        return _is_narrow([sum(times) for times in zip(*forward, *backward, strict=True)])

    def keep(self) -> None:
        """One pass, every stage kept."""
        state = self.source
        for index, (timed, times) in enumerate(zip(self.stages, self.times, strict=True)):
            incoming = swallow(detached(state))
            with blaming(timed.stage, index, state), zeroed_gradients(timed.leaves):
                output, forward = self.stopwatch(partial(timed.stage, incoming, self.shared))
                state = detached(output)
                times.forward.append(forward)
                times.backward.append(self._backward(output))
            del output

    def drop(self) -> None:
        """One pass, every stage dropped and run again, if gradients ever ask for that."""
        state = self.source
        for index, (timed, times) in enumerate(zip(self.stages, self.times, strict=True)):
            if timed.stage.is_loss:
                return
            incoming = swallow(detached(state))
            with blaming(timed.stage, index, state), zeroed_gradients(timed.leaves):
                run = self._run_of(timed)
                output, forward = self.stopwatch(partial(run.forward, incoming))
                state = detached(output)
                if any(tensor.requires_grad for tensor in output):
                    times.dropped.append(forward + self._backward(output))
            del run, output

    def _run_of(self, timed: TimedStage) -> Run:
        return Run(
            stages=(timed.stage,),
            traits=(timed.traits,),
            plan=_DROPPED,
            device=self.device,
            shared=Versioned.of(self.shared),
            pending=0,
        )

    def _backward(self, output: State) -> int:
        wanting = tuple(tensor for tensor in output if tensor.requires_grad)
        if not wanting:
            return 0
        gradients = tuple(map(torch.ones_like, wanting))

        def backward() -> State:
            torch.autograd.backward(wanting, gradients)
            return ()

        return self.stopwatch(backward)[1]


def _is_narrow(values: Sequence[int]) -> bool:
    if len(values) < 3:  # quartiles of fewer say nothing
        return False
    low, middle, high = quantiles(values, n=4)
    return bool((high - low) / 2 <= _SPREAD * middle * math.sqrt(len(values)))


def _dropped_plan() -> ExecutionPlan:
    """One stage and a loss; when the stage runs again, the stage behind it wants its output."""
    plan = plan_execution(Schedule.parse("Fc0 Fa1 B1 Fa0 B0"), 1)
    ((again,),) = plan.before_backward
    return replace(plan, before_backward=((replace(again, output_wanted=True),),))


_DROPPED: Final = _dropped_plan()


def _time_cpu(function: Callable[[], State]) -> tuple[State, int]:
    # With one thread, time spent by other processes on this core does not count.
    clock = time.thread_time_ns if torch.get_num_threads() == 1 else time.perf_counter_ns
    start = clock()
    result = function()
    return result, clock() - start


def _time_cuda(function: Callable[[], State]) -> tuple[State, int]:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    result = function()
    end.record()
    torch.cuda.synchronize()
    return result, int(start.elapsed_time(end) * 1e6)
