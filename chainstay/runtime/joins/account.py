"""Costs of a join's stages, apart from what depends on the schedule.

As `chainstay.runtime.measures.account` for chains. Some bytes depend on when an operation runs:

* buffers and random states that are saved for stages that run again;
* the model's output, in the caller's hands from its making on;
* what a stage's backward leaves of its graph, as no gradient comes to that part.

Half-summed gradients of what several stages use are `JoinProfile.shared`. Towers that share their
weights have many: from the first tower's backward to that of the last one. (What the summing itself
takes is in the backward's own cost.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from chainstay.problems.join import joined
from chainstay.profiles import ChainProfile, JoinProfile, SharedGradient, Stage
from chainstay.runtime.measures.account import environment_bytes
from chainstay.runtime.measures.stage_cost import BesideRuns, OptionCost, StageCost, stage_by_kind
from chainstay.schedule import Op, OpKind, Schedule

_StageKey: TypeAlias = tuple[int | None, int]
"""A stage by its branch (``None`` for the tail) and index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedStage:
    """One stage.

    Attributes:
        cost: What it costs whenever it runs.
        forward_waiting: What the caller holds of the model's output while it runs, if that
            has been made; what is in its input left out.
        backward_waiting: What the caller holds of it while its backward runs.
        relief: Bytes by which its backward alone stays below all that it reads and gives.
        left_bytes: What its graph holds behind its backward, for parts that get no gradient.
        leaves: Numbers of the parameters and inputs that it sends gradients to.
        leaf_bytes: The bytes of each.
    """

    cost: StageCost
    forward_waiting: int
    backward_waiting: int
    relief: int
    left_bytes: int
    leaves: tuple[int, ...]
    leaf_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedChain:
    """A branch, or the tail with the loss behind it; its input's bytes, and its stages."""

    input_bytes: int
    input_gradient_bytes: int
    stages: tuple[JoinedStage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinAccount:
    """A join's costs; the last stage of the tail is the loss.

    Attributes:
        branches: The branches in their order.
        tail: Behind them.
        passed_bytes: The bytes that branches give and the tail hands out as it is. The caller holds
            it still when a branch has made it anew.
        has_options: Whether options were looked for; a stage may have none.
    """

    branches: tuple[JoinedChain, ...]
    tail: JoinedChain
    passed_bytes: int
    has_options: bool = False

    @property
    def costs(self) -> tuple[StageCost, ...]:
        """Costs of all stages in the order of plain training."""
        return tuple(stage.cost for _, stage in self._stages())

    def with_options(self, options: Iterable[tuple[OptionCost, ...]]) -> JoinAccount:
        """Return the account with these options of its stages, in the order of `costs`."""
        following = iter(options)
        *branches, tail = (
            replace(
                chain,
                stages=tuple(
                    replace(stage, cost=replace(stage.cost, options=next(following)))
                    for stage in chain.stages
                ),
            )
            for _, chain in self._parts()
        )
        return replace(self, branches=tuple(branches), tail=tail, has_options=True)

    def without_options(self) -> JoinAccount:
        """Return the account as if options had not been looked for."""
        return replace(self.with_options(() for _ in self.costs), has_options=False)

    def by_kind(self, schedule: Schedule | None = None) -> JoinProfile:
        """Return the profile with what each kind of run costs.

        Args:
            schedule: Beside each run is what stands while this schedule runs, or where it has no
                such run, what would stand. By default, what stands in every canonical schedule
                (`chainstay.dp.join.canonical`): these run nothing again before the loss has run,
                so later runs and backwards have the model's output beside them.
        """
        beside = self._least_beside() if schedule is None else self._beside_in(schedule)
        *branches, tail = (
            ChainProfile(
                input_bytes=chain.input_bytes,
                input_gradient_bytes=chain.input_gradient_bytes,
                stages=tuple(
                    _stage(stage, beside[branch, index]) for index, stage in enumerate(chain.stages)
                ),
            )
            for branch, chain in self._parts()
        )
        return replace(joined(tuple(branches), tail), shared=self._shared())

    def _least_beside(self) -> dict[_StageKey, BesideRuns]:
        """Return the bytes that stand beside every stage's runs in all canonical schedules."""
        loss = (None, len(self.tail.stages) - 1)
        beside = {}
        for key, stage in self._stages():
            first = stage.forward_waiting * (key == loss)
            backward = stage.backward_waiting - stage.relief
            beside[key] = BesideRuns(first, first, stage.forward_waiting, backward)
        return beside

    def _beside_in(self, schedule: Schedule) -> dict[_StageKey, BesideRuns]:
        """Return the bytes that stand beside every stage's runs in a schedule."""
        most: dict[tuple[_StageKey, str], int] = {}
        for op, kind, size in self._walked(schedule):
            if kind:
                place = ((op.branch, op.stage), kind)
                most[place] = max(most.get(place, size), size)
        beside = {}
        for key, stage in self._stages():
            saved = stage.cost.environment_bytes
            backward = most[key, "backward"]
            first = most.get((key, "first"), most.get((key, "dropped"), 0) - saved)
            if_again = backward + stage.relief - stage.backward_waiting + stage.forward_waiting
            beside[key] = BesideRuns(
                first=first,
                dropped=most.get((key, "dropped"), first + saved),
                again=most.get((key, "again"), if_again + 2 * saved),
                backward=backward,
            )
        return beside

    @property
    def relief(self) -> int:
        """The most that a peak is below that by `by_kind` for a backward that frees, in bytes."""
        return max(
            max(stage.relief - stage.cost.kept_under(option).backward_bytes, 0)
            for _, stage in self._stages()
            for option in range(1 + len(stage.cost.options))
        )

    def overheads(self, schedule: Schedule) -> list[int]:
        """Return the bytes that each operation needs beside what the schedule and `shared` store.

        Less than zero where a backward frees more than it makes, see `simulate_join`.
        """
        kept: dict[_StageKey, int] = {}
        overheads = []
        for op, _, beside in self._walked(schedule):
            key = (op.branch, op.stage)
            own = 0
            if op.kind is OpKind.FORWARD_KEEP_ALL:
                kept[key] = op.option
                own = self.stage(key).cost.kept_under(op.option).recording_bytes
            elif op.kind.is_forward:
                own = self.stage(key).cost.dropping_bytes
            elif op.kind is OpKind.BACKWARD:
                own = self.stage(key).cost.kept_under(kept[key]).backward_bytes
            overheads.append(own + beside)
        return overheads

    def _walked(self, schedule: Schedule) -> Iterator[tuple[Op, str, int]]:
        """Yield each operation, the kind of run that it is, and the bytes that stand beside it."""
        runs = [(op.kind, ((op.branch, op.stage),)) for op in schedule]
        environments = environment_bytes(runs, lambda key: self.stage(key).cost)
        beside = zip(environments, self._outputs(schedule), strict=True)
        begun: set[_StageKey] = set()
        left = 0
        for op, sizes in zip(schedule, beside, strict=True):
            key, kind = (op.branch, op.stage), ""
            if op.kind is OpKind.BACKWARD:
                kind = "backward"
            elif op.kind.is_forward:
                is_kept = op.kind is OpKind.FORWARD_KEEP_ALL
                kind = "again" if key in begun else "first" if is_kept else "dropped"
                begun.add(key)
            yield op, kind, sum(sizes) + left
            if kind == "backward":
                left += self.stage(key).left_bytes

    def _outputs(self, schedule: Schedule) -> Iterator[int]:
        """Yield the bytes of the model's output that the caller has beside each operation."""
        loss = (None, len(self.tail.stages) - 1)
        ends = [(j, len(branch.stages) - 1) for j, branch in enumerate(self.branches)]
        runs = Counter[_StageKey]()
        for op in schedule:
            key = (op.branch, op.stage)
            runs[key] += op.kind.is_forward
            # The tail has the branches' outputs: what it hands out of them is there twice if these
            # were made anew.
            is_twice = op.branch is None and runs[loss] and any(runs[end] > 1 for end in ends)
            passed = self.passed_bytes * bool(is_twice)
            if op.kind is OpKind.BACKWARD:
                stage = self.stage(key)
                yield stage.backward_waiting - stage.relief + passed
            elif op.kind.is_forward:
                yield self.stage(key).forward_waiting * bool(runs[loss]) + passed
            else:
                yield 0

    def stage(self, key: _StageKey) -> JoinedStage:
        """Return a stage."""
        branch, index = key
        return (self.tail if branch is None else self.branches[branch]).stages[index]

    def _parts(self) -> tuple[tuple[int | None, JoinedChain], ...]:
        return (*enumerate(self.branches), (None, self.tail))

    def _stages(self) -> Iterator[tuple[_StageKey, JoinedStage]]:
        """Yield all stages in the order of plain training."""
        for branch, chain in self._parts():
            for index, stage in enumerate(chain.stages):
                yield (branch, index), stage

    def _shared(self) -> tuple[SharedGradient, ...]:
        """Return the gradients that several stages sum; those of the same stages are one."""
        users: dict[tuple[int, int], list[int]] = {}
        for number, (_, stage) in enumerate(self._stages()):
            for leaf in zip(stage.leaves, stage.leaf_bytes, strict=True):
                users.setdefault(leaf, []).append(number)
        sizes = Counter[tuple[int, ...]]()
        for (_, size), stages in users.items():
            sizes[tuple(stages)] += size
        return tuple(
            SharedGradient(bytes=size, users=stages)
            for stages, size in sizes.items()
            if len(stages) > 1
        )


def _stage(stage: JoinedStage, beside: BesideRuns) -> Stage:
    return stage_by_kind((stage.cost,), lambda _: beside)
