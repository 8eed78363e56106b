"""What stages cost, apart from what depends on the schedule; profiles are made of it.

A `ChainProfile` has one forward overhead per stage, and no room for what is held from a
stage's first run to its last. `Account.profile` is sound for every schedule: it takes the
dearer form of a forward, and buffers and random states as if every stage would run again.
`Account.profile_for` knows the schedule: a stage that runs once saves no such things, and
one that is recorded at once never runs in the other form. It is what to predict the peak
of that schedule with, and no other. `Account.optimistic` says the least that any schedule's
own profile says: what is too slow or too large under it is so for every schedule.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import TypeVar

from chainstay.errors import PlanMismatchError
from chainstay.profiles import ChainProfile, Skip, Stage
from chainstay.schedule import OpKind, Schedule

__all__ = ["Account", "StageCost"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """One stage; times in ns, sizes in bytes.

    Attributes:
        name: For people.
        forward_time: Of one forward.
        backward_time: Of one backward.
        output_bytes: As in `Stage`.
        saved_bytes: Likewise.
        gradient_bytes: Likewise.
        recording_bytes: Overhead of a forward that saves for the backward.
        dropping_bytes: Overhead of one that does not.
        backward_bytes: Overhead of the backward.
        environment_bytes: Of buffers and random states that its first run saves if there
            will be another; a later run needs as much again while it lasts.
        random_bytes: Those of random states, part of these. They are gone after the last
            run; buffers may be saved for the backward.
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

    def stage(self, *, forward: int, backward: int) -> Stage:
        """With these overheads."""
        return Stage(
            name=self.name,
            forward_time=self.forward_time,
            backward_time=self.backward_time,
            output_bytes=self.output_bytes,
            saved_bytes=self.saved_bytes,
            gradient_bytes=self.gradient_bytes,
            forward_overhead_bytes=forward,
            backward_overhead_bytes=backward,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A chain's costs, the loss's included; see `ChainProfile` for what is not explained."""

    input_bytes: int
    input_gradient_bytes: int
    stages: tuple[StageCost, ...]
    skips: tuple[Skip, ...]

    @classmethod
    def largest(cls, accounts: Sequence[Account]) -> Account:
        """Of one chain as several processes see it: in every number the largest.

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
        return self._assembled(
            cost.stage(
                forward=max(cost.recording_bytes, cost.dropping_bytes)
                + cost.environment_bytes
                + held[-1],
                backward=cost.backward_bytes + up_to_it - cost.random_bytes,
            )
            for cost, up_to_it in zip(self.stages, held, strict=True)
        )

    def optimistic(self) -> ChainProfile:
        """For bounds: as if no stage ran again, so at most what `profile_for` says of any.

        Every stage runs once in the form that saves for its backward, whatever else it does.
        """
        return self._assembled(
            cost.stage(forward=cost.recording_bytes, backward=cost.backward_bytes)
            for cost in self.stages
        )

    def profile_for(self, schedule: Schedule) -> ChainProfile:
        """Sound for `schedule` alone, and closer to what that needs.

        Args:
            schedule: For all these stages, valid under any discards.
        """
        forward, backward = self._environments(schedule)
        runs = [0] * len(self.stages)
        for op in schedule:
            runs[op.stage] += op.kind.is_forward
        return self._assembled(
            cost.stage(
                forward=forward[index]
                + max(cost.recording_bytes, cost.dropping_bytes if runs[index] > 1 else 0),
                backward=cost.backward_bytes + backward[index],
            )
            for index, cost in enumerate(self.stages)
        )

    def _assembled(self, stages: Iterable[Stage]) -> ChainProfile:
        return ChainProfile(
            input_bytes=self.input_bytes,
            input_gradient_bytes=self.input_gradient_bytes,
            stages=tuple(stages),
            skips=self.skips,
        )

    def _environments(self, schedule: Schedule) -> tuple[list[int], list[int]]:
        """The most held in saved environments while each stage runs forward, and backward."""
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for position, op in enumerate(schedule):
            if op.kind.is_forward:
                first.setdefault(op.stage, position)
                last[op.stage] = position
        held = 0
        forward, backward = [0] * len(self.stages), [0] * len(self.stages)
        for position, op in enumerate(schedule):
            stage, cost = op.stage, self.stages[op.stage]
            runs_again = first[stage] < last[stage]
            if op.kind is OpKind.BACKWARD:
                backward[stage] = held
                held -= runs_again * (cost.environment_bytes - cost.random_bytes)
            elif op.kind.is_forward:
                size = cost.environment_bytes * runs_again
                held += size * (position == first[stage])
                forward[stage] = max(forward[stage], held + size * (position > first[stage]))
                held -= cost.random_bytes * (runs_again and position == last[stage])
        return forward, backward


_Record = TypeVar("_Record", StageCost, Skip)


def _largest(records: tuple[_Record, ...]) -> _Record:
    """With the largest of all numbers."""
    numbers = {
        name: max(getattr(each, name) for each in records)
        for name in (field.name for field in fields(records[0]))
        if isinstance(getattr(records[0], name), int)
    }
    return replace(records[0], **numbers)
