"""Times of stages, in whole nanoseconds, taken in the form in which they will run.

The chain is passed through again and again. In one pass every stage is kept: forward through
all of them, then backward, without hooks, as in a plain step; so memory is as cold, and as new to
the process, as it is there. In the next every stage is dropped and run again by the
executor itself, with all that this takes: handles, surroundings, recapture. Where a step might
not fit in memory, and where parameters come and go, each stage goes backward at once instead.
Only the end of a pass waits for the device: between stages there are marks in the order of its
computation. So a stage that the host cannot issue as fast as an accelerator computes it has the
time that it takes to issue, as in training, and no latency that the next stage would hide. A pass
under autocast begins without its copies of weights, which a step makes once, and so does each run
again: in a backward outside of autocast it has to make its own.

A profile has one forward time, for first runs and for others. It is what one more run
takes; what a kept stage takes less than that is in its backward time. Where a run again takes
more than a kept forward and backward together, as of stages so short that the runtime's own work
counts, the rest is told apart, and so is what hooks around a first run take (`StageTime`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median, quantiles
from typing import Any, Final

import torch

from chainstay.runtime.capture.trials.isolation import zeroed_gradients
from chainstay.runtime.devices.device import Device, device_at
from chainstay.runtime.execute.environment import incoming
from chainstay.runtime.execute.liveness import ExecutionPlan, Shape, Step, plan_execution
from chainstay.runtime.execute.recompute import Run
from chainstay.runtime.measures.boundary import noting, swallow
from chainstay.runtime.measures.progress import Progress
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.chain_stage import ChainStage, Effects
from chainstay.runtime.stage.stage_errors import blaming
from chainstay.runtime.stage.states import State, address_of, detached, state_bytes
from chainstay.schedule import Schedule

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
        effects: How its forward touches the world.
        leaves: Everything outside that receives a gradient.
    """

    stage: ChainStage
    effects: Effects
    leaves: tuple[torch.Tensor, ...]


@dataclass(slots=True)
class StageTimes:
    """The times of one stage in every pass, in ns.

    Attributes:
        forward: The times of kept forwards.
        backward: The times of kept backwards.
        dropped: The times of forward, run again and backward together.
        again: The part of these that was run again; empty where nobody can tell.
    """

    forward: list[int] = field(default_factory=list)
    backward: list[int] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)

    @property
    def extra(self) -> int:
        """The time that dropping the stage and running it again adds to keeping it, in ns."""
        kept = map(sum, zip(self.forward, self.backward, strict=True))
        # Passes of each kind take turns: what else the machine does is in all.
        return int(median(more - less for more, less in zip(self.dropped, kept, strict=False)))

    def profiled(self, hooks: int) -> StageTime:
        """Return the times of the stage for a profile; `hooks` is what they take, of all stages."""
        kept = int(median(self.forward))
        if not self.dropped:
            return StageTime(kept, int(median(self.backward)), kept=kept)
        both = int(median(map(sum, zip(self.forward, self.backward, strict=True))))
        again = int(median(self.again)) if self.again else max(self.extra, 0)
        forward = min(again, both)
        hooks = hooks if self.again else 0
        return StageTime(forward, both - forward, again - forward, hooks, kept)


@dataclass(frozen=True, slots=True)
class StageTime:
    """The times of a stage, in ns.

    Attributes:
        forward: One forward, at most as long as a kept run in all.
        backward: What else a kept run takes.
        rerun: What each forward but the first takes beyond `forward`.
        hooks: What it takes if anything is dropped that its first run left, besides.
        kept: The forward alone of a kept run; 0 where it was not timed.
    """

    forward: int
    backward: int
    rerun: int = 0
    hooks: int = 0
    kept: int = 0


def stage_times(times: Sequence[StageTimes]) -> list[StageTime]:
    """Return the times of every stage.

    What hooks take is the same small part of every stage's times, as good as lost in their noise:
    it is the median over all stages.
    """
    beyond = [stage.extra - int(median(stage.again)) for stage in times if stage.again]
    hooks = max(int(median(beyond)), 0) if beyond else 0
    return [stage.profiled(hooks) for stage in times]


def time_chain(
    stages: Sequence[TimedStage],
    given: tuple[State, Sequence[Any]],
    device: torch.device,
    repeats: int,
    progress: Progress,
) -> list[StageTimes]:
    """Pass through the chain until its time is known well enough, after one pass to warm up.

    Args:
        stages: The chain, the loss included, which nobody runs again.
        given: Its input, and what all stages may read.
        device: Where it runs.
        repeats: The least number of passes in which all is kept, and half as many of those in
            which all is dropped; the most is this times itself, but no more than four times this,
            and none beyond it starts after 10 seconds.
        progress: Told of every pass.
    """
    chain = _Chain(stages, *given, device)
    progress("warming up", steps=0, more=len(stages) * (1 + repeats))
    # Processes that share parameters must all run them equally often.
    is_sharded = any(timed.stage.is_sharded for timed in stages)
    needed = chain.step_bytes()
    chain.is_whole = not is_sharded and 2 * needed <= chain.clock.free_bytes()
    leaves = chain.leaves(range(len(stages))) if chain.is_whole else ()
    begin = time.monotonic()

    with zeroed_gradients(leaves):
        chain.keep()
        chain.times = [StageTimes() for _ in stages]
        for done in range(repeats * min(repeats, 4)):
            if done >= repeats and (
                is_sharded or chain.is_known or time.monotonic() - begin > _SECONDS
            ):
                break
            progress("timing", steps=len(stages), more=len(stages) * (done >= repeats))
            chain.keep()
            if done % 2 == 0:  # what runs again is timed by itself: few passes will do
                chain.drop()
    progress("timing", steps=len(stages))
    return chain.times


_Forward = Callable[[State], State]


@dataclass(slots=True)
class _Chain:
    """The chain that is passed through."""

    stages: Sequence[TimedStage]
    source: State
    shared: Sequence[Any]
    device: torch.device
    is_whole: bool = False  # all stages run forward before the first backward
    times: list[StageTimes] = field(init=False)
    clock: Device = field(init=False)

    def __post_init__(self) -> None:
        self.times = [StageTimes() for _ in self.stages]
        self.clock = device_at(self.device)

    @property
    def is_known(self) -> bool:
        """Whether passes differ little enough."""
        forward = (stage.forward for stage in self.times)
        backward = (stage.backward for stage in self.times)
        return _is_narrow([sum(times) for times in zip(*forward, *backward, strict=True)])

    def step_bytes(self) -> int:
        """Return about how many bytes a plain step holds, in a pass of single stages."""
        sizes: dict[int, int] = {}

        def pack(tensor: torch.Tensor) -> None:  # to keep it would be a circle through its node
            sizes[address_of(tensor)] = state_bytes((tensor,))

        total = state_bytes(
            {id(leaf): leaf for stage in self.stages for leaf in stage.leaves}.values()
        )
        state = self.source
        for index, timed in enumerate(self.stages):
            hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
            with blaming(timed.stage, index, state), hooks:
                given = swallow(detached(incoming(timed.stage, state)))
                state = detached(timed.stage(given, self.shared))
            total += sum(sizes.values()) + state_bytes(state)
            sizes.clear()
        return total

    def keep(self) -> None:
        """One pass, every stage kept."""

        def start(timed: TimedStage) -> _Forward:
            return partial(timed.stage, shared=self.shared)

        for index, forward, backward in self._passed(len(self.stages), start):
            self.times[index].forward.append(forward)
            self.times[index].backward.append(backward or 0)

    def drop(self) -> None:
        """One pass, every stage dropped and run again, if gradients ever ask for that."""
        runs: list[_DroppedRun] = []

        def start(timed: TimedStage) -> _Forward:
            chain = Chain(
                stages=(timed.stage,),
                device=self.device,
                names=("an input of the model",) * len(self.shared),
                effects=(timed.effects,),
            )
            runs.append(_DroppedRun(chain, _DROPPED, self.shared, pending=0, clock=self.clock))
            return partial(runs[-1].forward, steps=_DROPPED.forward)

        count = sum(not timed.stage.is_loss for timed in self.stages)
        for index, forward, backward in self._passed(count, start):
            if backward is not None:
                self.times[index].dropped.append(forward + backward)
                again = (self.clock.elapsed(*pair) for pair in runs[index].again)
                self.times[index].again.append(sum(again))

    def leaves(self, stages: Iterable[int]) -> list[torch.Tensor]:
        """Return the tensors that these stages send gradients to."""
        return [leaf for index in stages for leaf in self.stages[index].leaves]

    def _passed(
        self, count: int, start: Callable[[TimedStage], _Forward]
    ) -> Iterator[tuple[int, int, int | None]]:
        """Each stage's number and times of its forward and, if there is one, of its backward."""
        size = max(count, 1) if self.is_whole else 1  # of a loss alone, nothing runs again
        state = self.source
        torch.clear_autocast_cache()
        for first in range(0, count, size):
            group = range(first, first + size)
            reached: dict[int, object] = {}
            forwards: list[tuple[object, object]] = []
            given: list[State] = []
            with zeroed_gradients(() if self.is_whole else self.leaves(group)):
                for index in group:
                    state = (
                        swallow(detached(incoming(self.stages[index].stage, state)))
                        if index == first
                        else noting(state, partial(self._mark, reached, index))
                    )
                    given.append(_described(state))
                    with blaming(self.stages[index].stage, index, state):
                        forward = start(self.stages[index])
                        begin = self.clock.mark()
                        state = forward(state)
                        forwards.append((begin, self.clock.mark()))
                backwards = self._backwards(state, group, reached, given)
            self.clock.synchronize()
            for index, pair, back in zip(group, forwards, backwards, strict=True):
                elapsed = None if back is None else self.clock.elapsed(*back)
                yield index, self.clock.elapsed(*pair), elapsed
            state = detached(state)

    def _backwards(
        self, output: State, group: range, reached: dict[int, object], given: Sequence[State]
    ) -> list[tuple[object, object] | None]:
        """Run the backwards of a group; return the marks around each, ``None`` if unknown."""
        wanting = tuple(tensor for tensor in output if tensor.requires_grad)
        if not wanting:
            return [None for _ in group]
        gradients = tuple(map(torch.ones_like, wanting))
        self._mark(reached, group.stop)
        try:
            torch.autograd.backward(wanting, gradients)
        except Exception:
            index = min(reached, default=group.stop) - 1
            with blaming(self.stages[index].stage, index, given[index - group.start]):
                raise
        end = self.clock.mark()
        ends = [reached.get(index, end) for index in group]
        begins = [reached.get(index + 1) for index in group]
        return [
            None if begin is None else (begin, end) for begin, end in zip(begins, ends, strict=True)
        ]

    def _mark(self, reached: dict[int, object], index: int) -> None:
        reached[index] = self.clock.mark()


def _described(state: State) -> State:
    """Shapes and types, without memory."""
    return tuple(torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in state)


def _is_narrow(values: Sequence[int]) -> bool:
    if len(values) < 3:  # quartiles of fewer say nothing
        return False
    low, middle, high = quantiles(values, n=4)
    return bool((high - low) / 2 <= _SPREAD * middle * math.sqrt(len(values)))


@dataclass(slots=True)
class _DroppedRun(Run):
    """A timed run of one stage that was dropped.

    Attributes:
        clock: Makes the marks.
        again: The marks around every run again.
    """

    clock: Device = field(kw_only=True)
    again: list[tuple[object, object]] = field(default_factory=list)

    def run_again(self, step: Step) -> None:
        """Run the stage again between two marks; see `Run`."""
        torch.clear_autocast_cache()
        begin = self.clock.mark()
        Run.run_again(self, step)
        self.again.append((begin, self.clock.mark()))


def _dropped_plan() -> ExecutionPlan:
    """One stage and a loss; when the stage runs again, the stage behind it wants its output."""
    plan = plan_execution(Schedule.parse("Fc0 Fa1 B1 Fa0 B0"), Shape(1))
    ((again,),) = plan.before_backward
    return replace(plan, before_backward=((replace(again, output_wanted=True),),))


_DROPPED: Final = _dropped_plan()
