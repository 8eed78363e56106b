"""Costs of branches and tail, from what was seen; compare `chainstay.runtime.measures.costs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from chainstay.runtime.joins.account import JoinAccount, JoinedChain, JoinedStage
from chainstay.runtime.measures.costs import ObservedStage
from chainstay.runtime.measures.probe import StageMemory
from chainstay.runtime.measures.stage_cost import StageCost
from chainstay.runtime.stage.assumed_loss import AssumedLoss
from chainstay.runtime.stage.lineage import NumberedState


class ObservedPart(NamedTuple):
    """A branch or the tail, stage by stage."""

    observed: Sequence[ObservedStage]
    memories: Sequence[StageMemory]

    @property
    def has_loss(self) -> bool:
        """Whether the loss is its last stage."""
        return self.observed[-1].stage.is_loss

    @property
    def output(self) -> NumberedState:
        """The output of the model, if this is the last part: the loss has it as its input."""
        last = self.observed[-1]
        return last.given if self.has_loss else last.result


class _Beside(NamedTuple):
    """The bytes of the model's output that the caller holds beside a stage.

    Attributes:
        waiting: Beside its forward, if the model has run to its end.
        held: Those of them that are in memory during its backward in any case, even if its
            graph does not hold them.
        relief: As in `JoinedStage`.
    """

    waiting: int
    held: int
    relief: int


@dataclass(slots=True)
class JoinAccountant:
    """Computes the account of a join from what was seen of branches and tail.

    Attributes:
        parts: The branches, and the tail with the loss if there is one of these.
        branches: How many branches there are.
        standing: The bytes that stand through the whole step.
    """

    parts: Sequence[ObservedPart]
    branches: int
    standing: int
    _observed: list[ObservedStage] = field(init=False)
    _beside: list[_Beside] = field(init=False)
    _leaves: dict[int, int] = field(default_factory=dict)  # numbers by identity

    def __post_init__(self) -> None:
        self._observed = [observation for part in self.parts for observation in part.observed]
        self._beside = list(self._all_beside())

    @property
    def _tails(self) -> Sequence[ObservedPart]:
        """The tail, or nothing."""
        return self.parts[self.branches :]

    @property
    def _is_met_by_loss(self) -> bool:
        """Whether the branches' outputs are the model's."""
        return all(part.observed[0].stage.is_loss for part in self._tails)

    def _all_beside(self) -> Iterator[_Beside]:
        outputs = [part.observed[-1].result.bytes for part in self.parts[: self.branches]]
        handed = sum(outputs) if self._is_met_by_loss else self._tails[0].output.bytes
        for number, part in enumerate(self.parts):
            last = len(part.observed) - 1 - part.has_loss
            for index, observation in enumerate(part.observed):
                if number < self.branches:
                    waiting, held = handed, outputs[number] * self._is_met_by_loss
                else:
                    waiting = held = part.output.bytes_outside(observation.given)
                held *= index == last
                *_, backward = _sizes(observation, part.memories[index])
                yield _Beside(waiting, held, relief=max(-backward - held, 0))

    def account(self) -> JoinAccount:
        """Return the costs of all stages, without options."""
        gradients = [part.memories[-1].output_gradients for part in self._tails or self.parts]
        assumed = AssumedLoss.of(layout for output in gradients for layout in output.layouts)
        loss = JoinedStage(
            cost=StageCost.of_assumed(assumed, self.standing),
            forward_waiting=0,
            backward_waiting=0,
            relief=0,
            left_bytes=0,
            leaves=(),
            leaf_bytes=(),
        )
        chains, start = [], 0
        for part in self.parts:
            chains.append(self._chain(part, start))
            start += len(part.observed)
        tail = JoinedChain(input_bytes=0, input_gradient_bytes=0, stages=())
        passed = 0
        for part in self._tails:
            tail = chains.pop()
            if not self._is_met_by_loss:
                passed = part.output.bytes - part.output.bytes_outside(part.observed[0].given)
        if not self.parts[-1].has_loss:
            tail = replace(tail, stages=(*tail.stages, loss))
        return JoinAccount(branches=tuple(chains), tail=tail, passed_bytes=passed)

    def kept(self, memory: StageMemory, index: int, _last: int) -> tuple[int, int, int]:
        """Return what keeping a stage saves, and both overheads; see `ChainAccountant.kept`."""
        beside = self._beside[index]
        saved, recording, backward = _sizes(self._observed[index], memory)
        backward = max(backward + beside.held + beside.relief, 0)  # as if it freed as much
        return saved, recording + self.standing, backward + self.standing

    def _chain(self, part: ObservedPart, start: int) -> JoinedChain:
        """Return a part whose first stage is number `start` of all."""
        return JoinedChain(
            input_bytes=part.observed[0].given.bytes,
            input_gradient_bytes=part.memories[0].input_gradients.allocated_bytes,
            stages=tuple(
                self._stage(index, memory) for index, memory in enumerate(part.memories, start)
            ),
        )

    def _stage(self, index: int, memory: StageMemory) -> JoinedStage:
        observation, beside = self._observed[index], self._beside[index]
        leaves = observation.leaves
        return JoinedStage(
            cost=observation.cost(
                self.kept(memory, index, index),
                gradient_bytes=memory.output_gradients.allocated_bytes,
                dropping_bytes=observation.dropping_bytes(memory) + self.standing,
            ),
            forward_waiting=beside.waiting,
            backward_waiting=beside.waiting - beside.held,
            relief=beside.relief,
            left_bytes=memory.left_bytes,
            leaves=tuple(self._leaves.setdefault(id(leaf), len(self._leaves)) for leaf in leaves),
            leaf_bytes=tuple(leaf.nbytes for leaf in leaves),
        )


def _sizes(observation: ObservedStage, memory: StageMemory) -> tuple[int, int, int]:
    """Return what a stage alone saves, and both overheads, the backward's below 0 if it frees."""
    held, saved = observation.given.bytes, memory.kept_bytes
    gradients = memory.input_gradients.allocated_bytes + memory.output_gradients.allocated_bytes
    backward = memory.backward_peak - held - saved - gradients
    return saved, max(memory.kept_peak - held - saved, 0), backward
