"""Costs of stages, apart from what depends on the schedule; profiles are made of them.

A `ChainProfile` has one forward overhead per stage, and no room for what is held from a
stage's first run to its last. `Account.overheads` knows the schedule, and says what each of
its operations needs: a forward that saves for the backward needs less besides what it saves
than one that drops all that, and a stage that runs once saves no buffers and random states.
Where a stage in the middle of the model makes part of its output again, the caller still has
the first one.
With these the simulator finds the peak of that schedule. What is made of them for solvers:

* `Account.profile` is sound for every schedule: it takes the dearer form of a forward, and
  buffers and random states as if every stage would run again.
* `Account.profile_for` is sound for one schedule: it takes the dearest of its operations, and
  its times add up to what the schedule takes. The others have no place for what a stage takes
  once if it is dropped, nor for runs again that take longer than forward and backward together:
  under them no schedule takes longer than by its own profile.
* `Account.by_kind` has options and what each kind of run costs, and is sound for every schedule
  of theirs: saved environments count as if every stage that can have one had it.
* `Account.optimistic` is at most what any schedule's operations need: what is too slow or too
  large under it is so for every schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import TypeVar

from chainstay.errors import PlanMismatchError
from chainstay.profiles import ChainProfile, RunCost, Skip, Stage, StageOption
from chainstay.schedule import OpKind, Schedule

__all__ = ["Account", "OptionCost", "StageCost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionCost:
    """One option of a stage; times in ns, sizes in bytes.

    Attributes:
        name: What it drops, for people.
        saved_bytes: The bytes that it saves, as in `StageOption`.
        recording_bytes: Overhead of its forward.
        backward_bytes: Overhead of its backward.
        replay_time: What it takes beyond forward and backward of its stages.
        stages: The number of stages that it keeps together.
        choice: What it keeps and replays, as `chainstay.runtime.options` reads it.
    """

    name: str
    saved_bytes: int
    recording_bytes: int
    backward_bytes: int
    replay_time: int
    stages: int
    choice: str


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
        backward_bytes: Overhead of the backward.
        environment_bytes: The bytes of buffers and random states that its first run saves if there
            will be another; a later run needs as much again while it lasts.
        random_bytes: The bytes of random states, part of these. They are gone after the last
            run; buffers may be saved for the backward.
        rerun_time: What each forward but the first takes beyond `forward_time`.
        hooks_time: What it takes besides, if anything goes that the first run left.
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
    options: tuple[OptionCost, ...] = ()
    forward_operator: str = ""
    backward_operator: str = ""

    def surplus_time(self, runs: int, *, is_released: bool) -> int:
        """Return the time of the stage beyond its forward and backward times, in ns.

        Args:
            runs: How often it runs.
            is_released: Whether something that it reads or saves goes before its backward.
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

    def scaled(self, numerator: int, denominator: int) -> StageCost:
        """All times and sizes in proportion, rounded up."""
        numbers = {
            each.name: -(-getattr(self, each.name) * numerator // denominator)
            for each in fields(self)
            if isinstance(getattr(self, each.name), int)
        }
        return replace(self, options=(), **numbers)

    def overhead(self, kind: OpKind, *, is_used: bool) -> int:
        """Return the overhead of an operation of `kind` in bytes, environments left out.

        Args:
            kind: What is done with this stage.
            is_used: For a recording: whether the stage's backward uses it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A chain's costs, the loss's included; see `ChainProfile` for what is not explained."""

    input_bytes: int
    input_gradient_bytes: int
    stages: tuple[StageCost, ...]
    skips: tuple[Skip, ...]

    @classmethod
    def largest(cls, accounts: Sequence[Account]) -> Account:
        """Return one account of a chain that several processes see: in every number the largest.

        Raises:
            PlanMismatchError: They see different chains.
        """
        shapes = {
            (tuple(c.name for c in a.stages), *((s.first, s.last) for s in a.skips))
            for a in accounts
        }
        if len(shapes) > 1:
            raise PlanMismatchError(
                f"{len(accounts)} processes that share parameters find {len(shapes)} different "
                "chains; call the model on samples of one shape in all of them"
            )
        return cls(
            input_bytes=max(each.input_bytes for each in accounts),
            input_gradient_bytes=max(each.input_gradient_bytes for each in accounts),
            stages=tuple(map(_largest, zip(*(each.stages for each in accounts), strict=True))),
            skips=tuple(map(_largest, zip(*(each.skips for each in accounts), strict=True))),
        )

    def profile(self) -> ChainProfile:
        """Sound for every schedule.

        When a stage's backward comes, those above hold nothing any more.
        """
        held = list(accumulate(cost.environment_bytes for cost in self.stages))
        again = [sum(s.bytes for s in self._handed_out(index)) for index in range(len(held))]
        return self._assembled(
            cost.stage(
                forward=max(cost.recording_bytes, cost.dropping_bytes)
                + cost.environment_bytes
                + held[-1]
                + twice,
                backward=cost.backward_bytes + up_to_it - cost.random_bytes + twice,
            )
            for cost, up_to_it, twice in zip(self.stages, held, again, strict=True)
        )

    def by_kind(self) -> ChainProfile:
        """Sound for every schedule that never makes anew what it holds, with options.

        A first run has the saved environments of the stages before it beside it, a later one
        perhaps those of all, and copies of its own.
        """
        return self._assembled(self._stage_by_kind(index) for index in range(len(self.stages)))

    def _stage_by_kind(self, index: int) -> Stage:
        cost, held = self.stages[index], self._held_environments()
        twice = sum(skip.bytes for skip in self._handed_out(index))

        def option(own: OptionCost) -> StageOption:
            stages = self.stages[index : index + own.stages]
            forward = sum(each.forward_time for each in stages)
            backward = sum(each.backward_time for each in stages) + own.replay_time
            again = sum(each.environment_bytes for each in stages) + held[-1] + twice
            return StageOption(
                name=own.name,
                saved_bytes=own.saved_bytes,
                backward_overhead_bytes=own.backward_bytes + held[index + own.stages] + twice,
                first=RunCost(
                    time=forward,
                    overhead_bytes=own.recording_bytes + held[index],
                    backward_time=backward,
                ),
                again=RunCost(
                    time=forward + sum(each.rerun_time for each in stages),
                    overhead_bytes=own.recording_bytes + again,
                    backward_time=backward,
                ),
                stages=own.stages,
            )

        everything = option(
            OptionCost(
                name="",
                saved_bytes=cost.saved_bytes,
                recording_bytes=cost.recording_bytes,
                backward_bytes=cost.backward_bytes - cost.random_bytes,
                replay_time=0,
                stages=1,
                choice="",
            )
        )
        dropped = RunCost(
            time=cost.forward_time + cost.hooks_time,
            overhead_bytes=cost.dropping_bytes + held[index + 1],
        )
        dropped_again = RunCost(
            time=cost.forward_time + cost.rerun_time,
            overhead_bytes=cost.dropping_bytes + cost.environment_bytes + held[-1] + twice,
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

    def _held_environments(self) -> list[int]:
        """At [i], the bytes of saved environments of the stages before stage i, if all have one."""
        return [0, *accumulate(cost.environment_bytes for cost in self.stages)]

    def optimistic(self) -> ChainProfile:
        """The profile for bounds: no stage runs again, every forward is in its cheaper form."""
        return self._assembled(
            cost.stage(
                forward=min(cost.recording_bytes, cost.dropping_bytes),
                backward=cost.backward_bytes,
            )
            for cost in self.stages
        )

    def profile_for(self, schedule: Schedule) -> ChainProfile:
        """Sound for `schedule` alone: of each stage's overheads there, the largest; its own times.

        `overheads` is closer; this is what a solver can be asked about.

        Args:
            schedule: A schedule for all these stages, valid under any discards.
        """
        largest = {True: [0] * len(self.stages), False: [0] * len(self.stages)}
        for op, overhead in zip(schedule, self.overheads(schedule), strict=True):
            stages = largest[op.kind.is_forward]
            stages[op.stage] = max(stages[op.stage], overhead)
        return self._assembled(
            cost.stage(forward=forward, backward=backward, surplus_time=surplus)
            for cost, forward, backward, surplus in zip(
                self.stages, largest[True], largest[False], self._surplus(schedule), strict=True
            )
        )

    def overheads(self, schedule: Schedule) -> tuple[int, ...]:
        """Return the bytes that each operation needs while it runs, besides what is stored.

        The last recording of a stage is the one that its backward uses. The runtime runs
        earlier ones like forwards that drop, within what the schedule has for their saved data;
        for them the larger overhead is counted.

        Args:
            schedule: A schedule as for `profile_for`.
        """
        used = {
            op.stage: position
            for position, op in enumerate(schedule)
            if op.kind is OpKind.FORWARD_KEEP_ALL
        }
        return tuple(
            held
            + twice
            + self.stages[op.stage].overhead(op.kind, is_used=used[op.stage] == position)
            for position, (op, held, twice) in enumerate(
                zip(schedule, self._environments(schedule), self._outputs(schedule), strict=True)
            )
        )

    def _assembled(self, stages: Iterable[Stage]) -> ChainProfile:
        return ChainProfile(
            input_bytes=self.input_bytes,
            input_gradient_bytes=self.input_gradient_bytes,
            stages=tuple(stages),
            skips=self.skips,
        )

    def _handed_out(self, index: int) -> Iterator[Skip]:
        """Tensors of the model's output that the input of stage `index` has, made by a stage.

        The caller holds them as they were made first.
        """
        last = len(self.stages) - 1
        return (s for s in self.skips if 0 < s.first <= index and s.last == last)

    def _surplus(self, schedule: Schedule) -> Iterator[int]:
        """Yield every stage's time in `schedule` beyond its forward and backward times, in ns.

        Of what moves, both the stage that makes it and the one that reads it know.
        """
        runs = Counter(op.stage for op in schedule if op.kind.is_forward)
        released = {op.stage for op in schedule if op.kind is OpKind.DISCARD_ACTIVATION}
        for op in schedule:
            if op.kind.is_offload:
                maker = op.item.stage
                released |= {maker, maker + 1}
        for index, cost in enumerate(self.stages):
            yield cost.surplus_time(runs[index], is_released=index in released)

    def _outputs(self, schedule: Schedule) -> Iterator[int]:
        """Yield the bytes that each operation reads of an earlier output the caller still has."""
        runs = [0] * len(self.stages)
        for op in schedule:
            works = op.kind.is_forward or op.kind is OpKind.BACKWARD
            handed_out = self._handed_out(op.stage) if works else ()
            yield sum(skip.bytes for skip in handed_out if runs[skip.first - 1] > 1)
            runs[op.stage] += op.kind.is_forward

    def _environments(self, schedule: Schedule) -> Iterator[int]:
        """Yield the bytes of saved environments while each operation runs, its own included."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, op in enumerate(schedule):
            if op.kind.is_forward:
                first.setdefault(op.stage, position)
                last[op.stage] = position
        held = 0
        for position, op in enumerate(schedule):
            stage, cost = op.stage, self.stages[op.stage]
            runs_again = first[stage] < last[stage]
            if op.kind is OpKind.BACKWARD:
                yield held
                held -= runs_again * (cost.environment_bytes - cost.random_bytes)
            elif op.kind.is_forward:
                size = cost.environment_bytes * runs_again
                held += size * (position == first[stage])
                yield held + size * (position > first[stage])
                held -= cost.random_bytes * (runs_again and position == last[stage])
            else:
                yield 0  # removing something takes nothing


_Record = TypeVar("_Record", StageCost, Skip)


def _largest(records: tuple[_Record, ...]) -> _Record:
    """Return a record with the largest of all numbers."""
    numbers = {
        name: max(getattr(each, name) for each in records)
        for name in (field.name for field in fields(records[0]))
        if isinstance(getattr(records[0], name), int)
    }
    return replace(records[0], **numbers)
