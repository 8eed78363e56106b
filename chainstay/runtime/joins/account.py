"""Costs of a join's stages, apart from what depends on the schedule.

As `chainstay.runtime.measures.account` for chains. Some bytes depend on when an operation runs:

* buffers and random states that are saved for stages that run again;
* the model's output, in the caller's hands from its making on;
* half-summed gradients of what several stages use. Towers that share their weights have
  many: from the first tower's backward to that of the last one. (What the summing itself
  takes is in the backward's own cost.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from chainstay.profiles import ChainProfile, JoinProfile
from chainstay.runtime.measures.stage_cost import StageCost
from chainstay.schedule import Op, OpKind, Schedule

__all__ = ["JoinAccount", "JoinedChain", "JoinedStage"]


class Beside(NamedTuple):
    """The costs of a stage besides what is stored and what it takes in every schedule.

    Attributes:
        forward: The bytes in its forward.
        backward: The bytes in its backward.
        surplus_time: Time in ns, see `StageCost.surplus_time`.
    """

    forward: int
    backward: int
    surplus_time: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedStage:
    """One stage.

    Attributes:
        cost: What it costs whenever it runs.
        forward_waiting: What the caller holds of the model's output while it runs, if that
            has been made; what is in its input left out.
        backward_waiting: What the caller holds of it while its backward runs.
        relief: Bytes by which its backward alone stays below all that it reads and gives.
        leaves: Parameters and inputs that it sends gradients to: a number for each, and bytes.
    """

    cost: StageCost
    forward_waiting: int
    backward_waiting: int
    relief: int
    leaves: tuple[tuple[int, int], ...]


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
    """

    branches: tuple[JoinedChain, ...]
    tail: JoinedChain
    passed_bytes: int

    @property
    def keep(self) -> tuple[bool, ...]:
        """Whether a branch has an input with a gradient, which stays."""
        return tuple(branch.input_gradient_bytes > 0 for branch in self.branches)

    def bare(self) -> JoinProfile:
        """Without overheads, which `overheads` tells operation by operation."""
        return self._profile(lambda _: Beside(0, 0))

    def optimistic(self) -> JoinProfile:
        """The profile for bounds: overheads that every operation of any schedule has at least.

        Peaks may be lower still, by `relief`.
        """
        return self._profile(
            lambda stage: Beside(
                min(stage.cost.recording_bytes, stage.cost.dropping_bytes),
                max(stage.cost.backward_bytes - stage.relief, 0),
            )
        )

    @property
    def relief(self) -> int:
        """The most that a schedule's own peak is below that by `optimistic`, in bytes."""
        return max(stage.relief for stage in self._stages())

    def pessimistic(self) -> JoinProfile:
        """Sound for every schedule."""
        environments = sum(stage.cost.environment_bytes for stage in self._stages())
        sums = self._all_sums() + self.passed_bytes

        def overheads(stage: JoinedStage) -> Beside:
            beside = environments + sums
            forward = max(stage.cost.recording_bytes, stage.cost.dropping_bytes)
            return Beside(
                forward + stage.cost.environment_bytes + stage.forward_waiting + beside,
                stage.cost.backward_bytes + stage.backward_waiting + beside,
            )

        return self._profile(overheads)

    def profile_for(self, schedule: Schedule) -> JoinProfile:
        """Sound for `schedule` alone: of each stage, the largest overheads there; its own times."""
        forward: dict[tuple[int | None, int], int] = {}
        backward: dict[tuple[int | None, int], int] = {}
        runs = Counter((op.branch, op.stage) for op in schedule if op.kind.is_forward)
        for op, size in zip(schedule, self.overheads(schedule), strict=True):
            key = (op.branch, op.stage)
            if op.kind.is_forward:
                forward[key] = max(forward.get(key, 0), size)
            elif op.kind is OpKind.BACKWARD:
                backward[key] = max(size, 0)
        by_stage = {}
        for key, size in forward.items():
            stage = self.stage(key)
            surplus = stage.cost.surplus_time(runs[key], is_released=False)
            by_stage[id(stage)] = Beside(size, backward[key], surplus)
        return self._profile(lambda stage: by_stage[id(stage)])

    def overheads(self, schedule: Schedule) -> list[int]:
        """Return the bytes that each operation needs beside what the schedule stores.

        Less than zero where a backward frees more than it makes, see `simulate_join`.

        Args:
            schedule: Valid for this join.
        """
        walk = _OverheadWalk(self, schedule)
        return [walk.take(position, op) for position, op in enumerate(schedule)]

    def stage(self, key: tuple[int | None, int]) -> JoinedStage:
        """A stage by branch (``None`` for the tail) and index."""
        branch, index = key
        return (self.tail if branch is None else self.branches[branch]).stages[index]

    def _stages(self) -> Iterator[JoinedStage]:
        for chain in (*self.branches, self.tail):
            yield from chain.stages

    def _all_sums(self) -> int:
        """Return the bytes of all gradients that are summed over several stages."""
        uses = Counter(leaf for stage in self._stages() for leaf in stage.leaves)
        return sum(size for (_, size), count in uses.items() if count > 1)

    def _profile(self, overheads: Callable[[JoinedStage], Beside]) -> JoinProfile:
        branches = tuple(_chain(branch, overheads) for branch in self.branches)
        outputs = [branch.activation_bytes(len(branch)) for branch in branches]
        gradients = [branch.gradient_bytes(len(branch)) for branch in branches]
        return JoinProfile(
            branches=branches,
            tail=ChainProfile(
                input_bytes=sum(outputs),
                input_gradient_bytes=sum(gradients),
                stages=_chain(self.tail, overheads).stages,
            ),
        )


def _chain(chain: JoinedChain, overheads: Callable[[JoinedStage], Beside]) -> ChainProfile:
    stages = []
    for stage in chain.stages:
        beside = overheads(stage)
        stages.append(stage.cost.stage(**beside._asdict()))
    return ChainProfile(
        input_bytes=chain.input_bytes,
        input_gradient_bytes=chain.input_gradient_bytes,
        stages=tuple(stages),
    )


@dataclass(slots=True)
class _OverheadWalk:
    """A schedule, operation by operation.

    Attributes:
        account: The account of the join.
        schedule: What runs.
        first: Where each stage runs first.
        last: Where it runs last.
        backwards: Per leaf, how many backwards of stages that use it are to come.
        sums: Gradients that are half summed, and their bytes.
        environments: Bytes of saved buffers and random states.
        has_output: Whether the caller has the model's output.
        is_remade: Whether a branch has run to its end again.
    """

    account: JoinAccount
    schedule: Schedule
    first: dict[tuple[int | None, int], int] = field(default_factory=dict)
    last: dict[tuple[int | None, int], int] = field(default_factory=dict)
    backwards: Counter[int] = field(default_factory=Counter)
    sums: dict[int, int] = field(default_factory=dict)
    environments: int = 0
    has_output: bool = False
    is_remade: bool = False

    def __post_init__(self) -> None:
        for position, op in enumerate(self.schedule):
            if op.kind.is_forward:
                self.first.setdefault((op.branch, op.stage), position)
                self.last[op.branch, op.stage] = position
            if op.kind is OpKind.BACKWARD:
                stage = self.account.stage((op.branch, op.stage))
                self.backwards.update(number for number, _ in stage.leaves)

    def take(self, position: int, op: Op) -> int:
        """Return the bytes that `op` needs, and note what it leaves behind."""
        if op.kind is OpKind.BACKWARD:
            return self._backward(op)
        return self._forward(position, op) if op.kind.is_forward else 0

    def _forward(self, position: int, op: Op) -> int:
        key = (op.branch, op.stage)
        stage = self.account.stage(key)
        cost = stage.cost
        if op.branch is None and op.stage == len(self.account.tail.stages) - 1:
            self.has_output = True
        is_end = op.branch is not None and op.stage == len(self._chain(op).stages) - 1
        self.is_remade |= is_end and position > self.first[key]
        runs_again = self.first[key] < self.last[key]
        size = cost.environment_bytes * runs_again
        is_first = position == self.first[key]
        is_recording = op.kind is OpKind.FORWARD_KEEP_ALL
        needed = cost.recording_bytes if is_recording else cost.dropping_bytes
        needed += self.environments + size + sum(self.sums.values())
        needed += stage.forward_waiting * self.has_output + self._passed(op)
        self.environments += size * is_first
        self.environments -= cost.random_bytes * (runs_again and position == self.last[key])
        return needed

    def _backward(self, op: Op) -> int:
        key = (op.branch, op.stage)
        stage = self.account.stage(key)
        cost = stage.cost
        self.backwards.subtract(number for number, _ in stage.leaves)
        before = dict(self.sums)
        for number, size in stage.leaves:
            if self.backwards[number]:
                self.sums[number] = size
            else:
                self.sums.pop(number, None)
        held = sum((before | self.sums).values())
        needed = cost.backward_bytes + stage.backward_waiting + self.environments + held
        needed += self._passed(op) - stage.relief
        runs_again = self.first[key] < self.last[key]
        self.environments -= runs_again * (cost.environment_bytes - cost.random_bytes)
        return needed

    def _passed(self, op: Op) -> int:
        """Return the caller's bytes, without the branches' outputs, in a stage of the tail."""
        is_twice = op.branch is None and self.has_output and self.is_remade
        return self.account.passed_bytes * is_twice

    def _chain(self, op: Op) -> JoinedChain:
        return self.account.tail if op.branch is None else self.account.branches[op.branch]
