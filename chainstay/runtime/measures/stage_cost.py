"""Measured costs of one stage and of its options, apart from what depends on the schedule."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import takewhile
from math import ceil
from typing import NamedTuple, Self

from chainstay.profiles import RunCost, Stage, StageOption
from chainstay.profiles.quantities import with_numbers
from chainstay.runtime.stage.assumed_loss import OPERATOR, AssumedLoss
from chainstay.schedule import OpKind


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCost:
    """One option of a stage; times in ns, sizes in bytes.

    Attributes:
        name: What it drops, for people.
        saved_bytes: The bytes that it saves, as in `StageOption`.
        recording_bytes: Overhead of its forward.
        backward_bytes: Overhead of its backward; below 0 where what it saves is gone before.
        replay_time: What it takes beyond forward and backward of its stages.
        stages: The number of stages that it keeps together.
        replayed: Positions of the operators that are run again, ascending; see `Selection`.
        redrawn: Positions of those of which only the noise is made again, ascending.
        is_steady: Whether it is found whatever times are measured, as in `Option`.
    """

    name: str
    saved_bytes: int
    recording_bytes: int
    backward_bytes: int
    replay_time: int
    stages: int
    replayed: tuple[int, ...] = ()
    redrawn: tuple[int, ...] = ()
    is_steady: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage; times in ns, sizes in bytes.

    Attributes:
        name: The stage's name, for people.
        forward_time: The time of one forward in ns, for solvers.
        backward_time: The time of one backward in ns; both together are what a kept run takes.
        output_bytes: The bytes of its output, as in `Stage`.
        saved_bytes: The bytes that it saves, as in `Stage`.
        gradient_bytes: The bytes of its output's gradient, as in `Stage`.
        recording_bytes: Overhead of a forward that saves for the backward.
        dropping_bytes: Overhead of one that does not.
        backward_bytes: Overhead of the backward; below 0 where the output is gone before.
        environment_bytes: The bytes of buffers and random states that its first run saves if there
            will be another; a later run needs as much again while it lasts.
        random_bytes: The bytes of random states, part of these. They are gone after the last
            run; buffers may be saved for the backward.
        rerun_time: What each forward but the first takes beyond `forward_time`.
        hooks_time: What it takes besides, if anything goes that the first run left.
        again_bytes: What stands beside its forwards once the model has run to its end, and did
            not before: the output that the caller holds.
        options: Further ways to keep it, from option 1 on.
        forward_operator: The operator at the peak of its forward, for people.
        backward_operator: The operator at the peak of its backward, likewise.
    """

    name: str
    forward_time: int
    backward_time: int
    output_bytes: int
    saved_bytes: int
    gradient_bytes: int
    recording_bytes: int
    dropping_bytes: int
    backward_bytes: int
    environment_bytes: int
    random_bytes: int = 0
    rerun_time: int = 0
    hooks_time: int = 0
    again_bytes: int = 0
    options: tuple[OptionCost, ...] = ()
    forward_operator: str = ""
    backward_operator: str = ""

    @classmethod
    def of_assumed(cls, loss: AssumedLoss, standing: int) -> Self:
        """Return the costs of a loss that is not known, while `standing` bytes stand."""
        return cls(
            name="loss",
            forward_time=0,
            backward_time=0,
            output_bytes=0,
            saved_bytes=loss.saved_bytes,
            gradient_bytes=0,
            recording_bytes=loss.forward_bytes + standing,
            dropping_bytes=loss.forward_bytes + standing,
            backward_bytes=loss.backward_bytes + standing,
            environment_bytes=0,
            forward_operator=OPERATOR,
            backward_operator=OPERATOR,
        )

    def kept_under(self, option: int) -> OptionCost:
        """Return the costs of keeping the stage under an option, 0 for all of it."""
        if option:
            return self.options[option - 1]
        return OptionCost(
            name="",
            saved_bytes=self.saved_bytes,
            recording_bytes=self.recording_bytes,
            backward_bytes=self.backward_bytes,
            replay_time=0,
            stages=1,
        )

    def surplus_time(self, runs: int, *, is_released: bool) -> int:
        """Return the time of `runs` runs beyond the forward and backward times, in ns.

        `is_released` says that something that it reads or saves goes before its backward.
        """
        again = max(runs - 1, 0)
        hooks = self.hooks_time if again or is_released else 0
        return again * self.rerun_time + hooks

    def stage(self, *, forward: int, backward: int, surplus_time: int = 0) -> Stage:
        """Return the stage with these overheads, and with `surplus_time` in its backward."""
        return Stage(
            name=self.name,
            forward_time=self.forward_time,
            backward_time=self.backward_time + surplus_time,
            output_bytes=self.output_bytes,
            saved_bytes=self.saved_bytes,
            gradient_bytes=self.gradient_bytes,
            forward_overhead_bytes=forward,
            backward_overhead_bytes=backward,
        )

    def flat_options(self, stage: Stage) -> Iterator[StageOption]:
        """Yield the options of this one stage, every run of which costs the same.

        What stands beside the operations of `stage`, in its overheads, stands beside theirs.
        """
        dearer = max(self.recording_bytes, self.dropping_bytes)
        beside_forward = max(stage.forward_overhead_bytes - dearer, 0)
        beside_backward = max(stage.backward_overhead_bytes - max(self.backward_bytes, 0), 0)
        for option in takewhile(lambda option: option.stages == 1, self.options):
            yield StageOption(
                name=option.name,
                saved_bytes=option.saved_bytes,
                backward_overhead_bytes=max(option.backward_bytes, 0) + beside_backward,
                first=RunCost(
                    time=stage.forward_time,
                    overhead_bytes=option.recording_bytes + beside_forward,
                    backward_time=stage.backward_time + option.replay_time,
                ),
            )

    def scaled(self, share: Fraction, passed_on: Fraction) -> StageCost:
        """Return the stage on a smaller or larger call: times and sizes in proportion, rounded up.

        The output and its gradient are scaled by `passed_on`; what environments take stays.
        """
        output = ceil(self.output_bytes * passed_on)
        found = with_numbers(self, ("_time", "_bytes"), lambda number: ceil(number * share))
        options = (
            replace(option, saved_bytes=max(option.saved_bytes, output)) for option in found.options
        )
        return replace(
            found,
            output_bytes=output,
            saved_bytes=max(found.saved_bytes, output),
            gradient_bytes=ceil(self.gradient_bytes * passed_on),
            environment_bytes=self.environment_bytes,
            random_bytes=self.random_bytes,
            options=tuple(options),
        )

    def beside(self, size: int) -> StageCost:
        """Return the stage while `size` more bytes stand beside all its operations."""
        overheads = ("recording_bytes", "dropping_bytes", "backward_bytes")
        return with_numbers(self, overheads, lambda overhead: overhead + size)

    def without_times(self, too_large: int) -> StageCost:
        """Return the stage with times alike; options that are not steady save `too_large` bytes."""
        options = tuple(
            replace(
                option,
                replay_time=1,
                saved_bytes=option.saved_bytes if option.is_steady else too_large,
            )
            for option in self.options
        )
        return replace(
            self, forward_time=1, backward_time=1, rerun_time=0, hooks_time=0, options=options
        )

    def overhead(self, kind: OpKind, *, is_used: bool) -> int:
        """Return the overhead of an operation of `kind` in bytes, environments left out.

        Of a recording, `is_used` says whether the stage's backward uses it.
        """
        match kind:
            case OpKind.FORWARD_KEEP_ALL if is_used:
                return self.recording_bytes
            case OpKind.FORWARD_KEEP_ALL:
                return max(self.recording_bytes, self.dropping_bytes)
            case OpKind.FORWARD_DROP | OpKind.FORWARD_KEEP_INPUT:
                return self.dropping_bytes
            case OpKind.BACKWARD:
                return self.backward_bytes
        return 0


class BesideRuns(NamedTuple):
    """Bytes beside the runs of a stage that are not its own, by the kind of run.

    Attributes:
        first: Beside its first run, if that is kept.
        dropped: Beside its first run, if that is not kept.
        again: Beside a later run.
        backward: Beside its backward.
    """

    first: int
    dropped: int
    again: int
    backward: int


def stage_by_kind(stages: Sequence[StageCost], beside: Callable[[int], BesideRuns]) -> Stage:
    """Return the first of some stages by its options, and by what each kind of run costs.

    An option may keep those behind it as well; `beside` is told how many are kept together.
    """
    cost = stages[0]

    def option(own: OptionCost) -> StageOption:
        kept, more = stages[: own.stages], beside(own.stages)
        forward = sum(stage.forward_time for stage in kept)
        backward = sum(stage.backward_time for stage in kept) + own.replay_time
        return StageOption(
            name=own.name,
            saved_bytes=own.saved_bytes,
            backward_overhead_bytes=max(own.backward_bytes + more.backward, 0),
            first=RunCost(
                time=forward,
                overhead_bytes=own.recording_bytes + more.first,
                backward_time=backward,
            ),
            again=RunCost(
                time=forward + sum(stage.rerun_time for stage in kept),
                overhead_bytes=own.recording_bytes + more.again,
                backward_time=backward,
            ),
            stages=own.stages,
        )

    everything = option(cost.kept_under(0))
    more = beside(1)
    dropped = RunCost(
        time=cost.forward_time + cost.hooks_time, overhead_bytes=cost.dropping_bytes + more.dropped
    )
    dropped_again = RunCost(
        time=cost.forward_time + cost.rerun_time, overhead_bytes=cost.dropping_bytes + more.again
    )
    plain = cost.stage(
        forward=max(everything.run(first=False).overhead_bytes, dropped_again.overhead_bytes),
        backward=everything.backward_overhead_bytes,
    )
    return replace(
        plain,
        first=everything.first,
        again=everything.again,
        dropped_first=dropped,
        dropped_again=dropped_again,
        options=tuple(map(option, cost.options)),
    )
