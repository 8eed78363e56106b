"""Costs of stages, apart from what depends on the schedule; profiles are made of them.

A `ChainProfile` has one forward overhead per stage, and no room for what is held from a
stage's first run to its last. `Account.overheads` knows the schedule, and says what each of
its operations needs: a forward that saves for the backward needs less besides what it saves
than one that drops all that, and a stage that runs once saves no buffers and random states.
Behind the loss the caller has the output, what is made of it again beside that.
With these the simulator finds the peak of that schedule. What is made of them for solvers:

* `Account.profile` is sound for every schedule: it takes the dearer form of a forward, and
  buffers and random states as if every stage would run again.
* `Account.profile_for` is sound for one schedule: it takes the dearest of its operations, and
  its times add up to what the schedule takes. The others have no place for what a stage takes
  once if it is dropped: under them no schedule takes longer than by its own profile.
* `Account.by_kind` has options and what each kind of run costs, and is sound for every schedule
  of theirs: saved environments count as if every stage that can have one had it. Without these
  it is what every schedule needs at least, and bounds them all. With environments apart, a solver
  that knows them counts those that are there.
* `Account.by_kind_in` is closer where a schedule is known, and sound for that one alone.
* `Account.with_flat_options` adds options for solvers that know no kinds of runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any, TypeAlias, TypeVar

from chainstay.errors import PlanMismatchError
from chainstay.profiles import ChainProfile, RunCost, Skip, Stage, StageOption
from chainstay.runtime.measures.stage_cost import BesideRuns, OptionCost, StageCost, stage_by_kind
from chainstay.schedule import OpKind, Schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A chain's costs, the loss's included; see `ChainProfile` for what is not explained.

    Attributes:
        has_options: Whether options were looked for; a stage may have none.
    """

    input_bytes: int
    input_gradient_bytes: int
    stages: tuple[StageCost, ...]
    skips: tuple[Skip, ...]
    has_options: bool = False

    @classmethod
    def largest(cls, accounts: Sequence[Account]) -> Account:
        """Return one account of a chain that several processes see: in every number the largest.

        Options of one process need not be those of another: the account of several has none.

        Raises:
            PlanMismatchError: They see different chains.
        """
        if len(accounts) == 1:
            return accounts[0]
        stages = [account.stages for account in accounts]
        skips = [account.skips for account in accounts]
        shapes = {
            (tuple(c.name for c in a.stages), *((s.first, s.last) for s in a.skips))
            for a in accounts
        }
        if len(shapes) > 1:
            raise PlanMismatchError(
                f"{len(accounts)} processes that share parameters find {len(shapes)} different "
                "chains; call the model on samples of one shape in all of them"
            )
        return replace(
            _largest(tuple(accounts)),
            stages=tuple(map(_largest, zip(*stages, strict=True))),
            skips=tuple(map(_largest, zip(*skips, strict=True))),
        ).without_options()

    def profile(self) -> ChainProfile:
        """Return the profile that is sound for every schedule: `by_kind` without the kinds."""
        no_kinds: dict[str, Any] = dict.fromkeys(
            ("first", "again", "dropped_first", "dropped_again")
        )
        kinds = self.without_options().by_kind()
        return self._assembled(replace(stage, **no_kinds) for stage in kinds.stages)

    @property
    def costs(self) -> tuple[StageCost, ...]:
        """Costs of all stages in the order of plain training."""
        return self.stages

    def with_options(self, options: Iterable[tuple[OptionCost, ...]]) -> Account:
        """Return the account with these options of its stages, in their order."""
        pairs = zip(self.stages, options, strict=True)
        stages = tuple(replace(cost, options=own) for cost, own in pairs)
        return replace(self, stages=stages, has_options=True)

    def without_options(self) -> Account:
        """Return the account as if options had not been looked for."""
        return replace(self.with_options(() for _ in self.stages), has_options=False)

    def without_times(self) -> Account:
        """Return the account with times alike, in which no option is of use that times decide."""
        total = self.input_bytes + sum(
            cost.saved_bytes
            + cost.gradient_bytes
            + cost.recording_bytes
            + max(cost.backward_bytes, 0)
            for cost in self.stages
        )
        return replace(self, stages=tuple(stage.without_times(2 * total) for stage in self.stages))

    def by_kind(self, *, is_sound: bool = True, apart: bool = False) -> ChainProfile:
        """Return the profile with options, and what each kind of run costs.

        It is sound for every schedule that never makes anew what it holds: a first run has saved
        environments of the stages before it beside it, a later one perhaps those of all, and
        copies of its own. Otherwise it is at most what any schedule's operations need, if nothing
        runs again before the loss: a later run has the model's output beside it.

        Args:
            is_sound: Whether no schedule needs more; otherwise none needs less.
            apart: Whether stages have their environments, so that overheads have copies only.
        """
        costs = self.stages if is_sound and not apart else self._without_environments().stages
        held = [0, *accumulate(cost.environment_bytes for cost in costs)]  # before stage i
        copied = self._environments_before if apart else held
        twice = [
            sum(skip.bytes for skip in self._handed_out(index)) * is_sound
            for index in range(len(costs))
        ]

        def beside(index: int, count: int) -> BesideRuns:
            own = copied[index + count] - copied[index]
            return BesideRuns(
                first=held[index],
                dropped=held[index + 1],
                again=own + held[-1] + costs[index].again_bytes + twice[index],
                backward=held[index + count] + twice[index],
            )

        own = (
            replace(cost, backward_bytes=cost.backward_bytes - cost.random_bytes) for cost in costs
        )
        stages = (
            stage_by_kind((first, *costs[index + 1 :]), partial(beside, index))
            for index, first in enumerate(own)
        )
        return self._assembled(map(_with_environment, self.stages, stages) if apart else stages)

    def by_kind_in(self, schedule: Schedule, *, apart: bool = False) -> ChainProfile:
        """Return the profile by kind of run whose runs need and take what they do in `schedule`.

        Kinds of runs that it does not have need what any schedule's do at least. A kept first run
        whose input is dropped takes the time that this takes, too. Environments may be `apart`.
        """
        stages = list(self.by_kind(is_sound=False, apart=apart).stages)
        kept: dict[int, int] = {}
        begun: set[int] = set()
        records, copied = self._records(schedule), self._environments_before
        account = self._without_environments() if apart else self
        overheads = account.overheads(schedule)
        for op, overhead, (span, _) in zip(schedule, overheads, records, strict=True):
            stage = stages[op.stage]
            if op.kind is OpKind.DISCARD_ACTIVATION and stage.first is not None:
                time = stage.first.backward_time + self.stages[op.stage].hooks_time
                stages[op.stage] = replace(stage, first=replace(stage.first, backward_time=time))
            elif op.kind is OpKind.BACKWARD:
                number = kept.pop(op.stage)
                stages[op.stage] = _with_overhead(stage, "backward", number, overhead)
            elif op.kind.is_forward:
                is_again = begun.issuperset(span)
                kind = "again" if is_again else "first"
                begun.update(span)
                size = overhead
                if apart and is_again:
                    size += copied[span.stop] - copied[span.start]
                if op.kind is OpKind.FORWARD_KEEP_ALL:
                    kept[op.stage] = op.option
                else:
                    kind = f"dropped_{kind}"
                stages[op.stage] = _with_overhead(stage, kind, op.option, size)
        return self._assembled(stages)

    def profile_for(self, schedule: Schedule) -> ChainProfile:
        """Sound for `schedule` alone: of each stage's overheads there, the largest; its own times.

        `overheads` is closer; this is what a solver can be asked about.

        Args:
            schedule: A schedule for all these stages, valid under any discards. One that keeps
                stages in part is judged by `by_kind`, which has their options.
        """
        if any(op.option for op in schedule):
            return self.by_kind()
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

    def flat_profile_for(self, schedule: Schedule) -> ChainProfile:
        """Return `profile_for` with options of one stage, for what may move to the host."""
        whole = Schedule(tuple(replace(op, option=0) for op in schedule))
        return self.with_flat_options(self.profile_for(whole))

    def with_flat_options(self, profile: ChainProfile) -> ChainProfile:
        """Return a profile of these stages with their options of one stage, in the same numbers.

        What stands beside a stage's operations there stands beside those under options, too.
        """
        return replace(profile, stages=tuple(map(_with_flat_options, self.stages, profile.stages)))

    def overheads(self, schedule: Schedule) -> tuple[int, ...]:
        """Return the bytes that each operation needs while it runs, besides what is stored.

        The last recording of a stage is the one that its backward uses. The runtime runs
        earlier ones like forwards that drop, within what the schedule has for their saved data;
        for them the larger overhead is counted.
        """
        used = {
            op.stage: position
            for position, op in enumerate(schedule)
            if op.kind is OpKind.FORWARD_KEEP_ALL
        }
        records = list(self._records(schedule))
        runs = [(op.kind, stages) for op, (stages, _) in zip(schedule, records, strict=True)]
        environments = environment_bytes(runs, self.stages.__getitem__)
        beside = zip(environments, self._outputs(schedule, records), strict=True)
        own = (
            self.stages[op.stage].overhead(op.kind, is_used=used.get(op.stage) == position)
            if option is None
            else option.recording_bytes
            if op.kind.is_forward
            else option.backward_bytes
            for position, (op, (_, option)) in enumerate(zip(schedule, records, strict=True))
        )
        return tuple(held + twice + size for (held, twice), size in zip(beside, own, strict=True))

    def _records(self, schedule: Schedule) -> Iterator[tuple[range, OptionCost | None]]:
        """Yield the stages that each operation is about, and the option where it is not 0."""
        kept: dict[int, OptionCost | None] = {}
        for op in schedule:
            if op.kind is OpKind.FORWARD_KEEP_ALL:
                options = self.stages[op.stage].options
                kept[op.stage] = options[op.option - 1] if op.option else None
            is_kept = op.kind in (OpKind.FORWARD_KEEP_ALL, OpKind.BACKWARD)
            option = kept.get(op.stage) if is_kept else None
            yield range(op.stage, op.stage + (option.stages if option else 1)), option

    @property
    def _environments_before(self) -> list[int]:
        """Bytes of the environments of stages before each stage, and of all."""
        return [0, *accumulate(cost.environment_bytes for cost in self.stages)]

    def _without_environments(self) -> Account:
        stages = (replace(cost, environment_bytes=0, random_bytes=0) for cost in self.stages)
        return replace(self, stages=tuple(stages))

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

    def _outputs(self, schedule: Schedule, records: _Records) -> Iterator[int]:
        """Yield the bytes of an earlier output that the caller has beside each operation."""
        runs = [0] * len(self.stages)
        handed_out = list(self._handed_out(len(self.stages)))
        for op, (stages, _) in zip(schedule, records, strict=True):
            works = op.kind.is_computation
            here = (skip for skip in handed_out if works and skip.first <= op.stage)
            twice = sum(skip.bytes for skip in here if runs[skip.first - 1] > 1)
            has_output = op.kind.is_forward and runs[-1]
            yield twice + (self.stages[op.stage].again_bytes if has_output else 0)
            for stage in stages:
                runs[stage] += op.kind.is_forward


def environment_bytes(
    runs: Sequence[tuple[OpKind, Sequence[_StageKey]]], cost_of: Callable[[_StageKey], StageCost]
) -> Iterator[int]:
    """Yield the bytes of saved environments while each operation runs, its own included.

    `runs` are the kind of every operation, and the stages that it is about.
    """
    first: dict[_StageKey, int] = {}
    last: dict[_StageKey, int] = {}
    for position, (kind, stages) in enumerate(runs):
        for stage in stages if kind.is_forward else ():
            first.setdefault(stage, position)
            last[stage] = position
    held = 0
    for position, (kind, stages) in enumerate(runs):
        if not kind.is_computation:
            yield 0  # removing something takes nothing
            continue
        again = {stage: cost_of(stage) for stage in stages if first[stage] < last[stage]}
        if kind is OpKind.BACKWARD:
            yield held
            held -= sum(cost.environment_bytes - cost.random_bytes for cost in again.values())
        else:
            held += sum(c.environment_bytes for s, c in again.items() if position == first[s])
            copied = sum(c.environment_bytes for s, c in again.items() if position > first[s])
            yield held + copied
            held -= sum(c.random_bytes for s, c in again.items() if position == last[s])


def _with_environment(cost: StageCost, stage: Stage) -> Stage:
    return replace(stage, environment_bytes=cost.environment_bytes, random_bytes=cost.random_bytes)


@lru_cache(maxsize=4096)  # a search looks at hundreds of profiles, most stages of which are equal
def _with_flat_options(cost: StageCost, stage: Stage) -> Stage:
    return replace(stage, options=tuple(cost.flat_options(stage)))


def _with_overhead(stage: Stage, kind: str, number: int, size: int) -> Stage:
    """Return a stage one kind of whose runs, under an option, needs `size` bytes at least."""
    if not number:
        return _needing(stage, kind, size)
    options = list(stage.options)
    options[number - 1] = _needing(options[number - 1], kind, size)
    return replace(stage, options=tuple(options))


def _needing(record: _Kept, kind: str, size: int) -> _Kept:
    if kind == "backward":
        size = max(size, record.backward_overhead_bytes)
        return replace(record, backward_overhead_bytes=size)
    run: RunCost = getattr(record, kind)
    changes: dict[str, Any] = {kind: replace(run, overhead_bytes=max(size, run.overhead_bytes))}
    return replace(record, **changes)


_StageKey = TypeVar("_StageKey", bound=Hashable)
_Records: TypeAlias = Sequence[tuple[range, OptionCost | None]]
"""By operation: the stages that it is about, and the option, as `Account._records` gives them."""
_Record = TypeVar("_Record", Account, StageCost, Skip)
_Kept = TypeVar("_Kept", Stage, StageOption)


def _largest(records: tuple[_Record, ...]) -> _Record:
    """Return a record with the largest of all numbers."""
    first = records[0]
    names = [field.name for field in fields(first) if isinstance(getattr(first, field.name), int)]
    return replace(first, **{name: max(getattr(one, name) for one in records) for name in names})
