"""Costs of branches and tail, from what was seen; compare `chainstay.runtime.measures.costs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from chainstay.runtime.joins.account import JoinAccount, JoinedChain, JoinedStage
from chainstay.runtime.measures.costs import ObservedStage, lasting_bytes
from chainstay.runtime.measures.option_costs import ObservedOption, option_cost
from chainstay.runtime.measures.probe import StageMemory
from chainstay.runtime.measures.stage_cost import StageCost
from chainstay.runtime.stage.assumed_loss import AssumedLoss
from chainstay.runtime.stage.lineage import NumberedState


@dataclass(frozen=True, slots=True)
class Seen:
    """A branch or the tail, stage by stage; options by the number of their stage."""

    observed: Sequence[ObservedStage]
    memories: Sequence[StageMemory]
    options: Mapping[int, Sequence[ObservedOption]] = field(default_factory=dict)

    @property
    def has_loss(self) -> bool:
        """Whether the loss is its last stage."""
        return self.observed[-1].stage.is_loss

    @property
    def output(self) -> NumberedState:
        """The output of the model, if this is the last part: the loss has it as its input."""
        last = self.observed[-1]
        return last.given if self.has_loss else last.result


class _Besides(NamedTuple):
    """Bytes of the model's output that the caller holds beside a stage; compare `JoinedStage`."""

    waiting: int
    held: int  # those of them beside its backward, whatever the caller holds: the graph may lack it


def account_for_join(
    seen: Sequence[Seen], branches: int, common_bytes: int, *, has_options: bool
) -> JoinAccount:
    """The costs of all stages.

    Args:
        seen: The branches, and the tail with the loss if there is one of these.
        branches: How many branches there are.
        common_bytes: The bytes that stand through the whole step, whatever the stages.
        has_options: Whether options of stages were looked for.
    """
    standing = common_bytes + sum(lasting_bytes(part.observed, part.memories) for part in seen)
    tails = seen[branches:]
    outputs = [part.observed[-1].result.bytes for part in seen[:branches]]
    is_met_by_loss = all(part.observed[0].stage.is_loss for part in tails)
    handed = sum(outputs) if is_met_by_loss else tails[0].output.bytes
    own = outputs if is_met_by_loss else [0] * branches
    numbers: dict[int, int] = {}
    chains = [
        _branch(part, standing, handed, mine, numbers=numbers)
        for part, mine in zip(seen[:branches], own, strict=True)
    ]
    gradients = [part.memories[-1].output_gradients for part in tails or seen]
    loss = AssumedLoss.of(layout for output in gradients for layout in output.layouts)
    unknown = JoinedStage(
        cost=StageCost.of_assumed(loss, standing),
        forward_waiting=0,
        backward_waiting=0,
        relief=0,
        leaves=(),
    )
    tail = JoinedChain(input_bytes=0, input_gradient_bytes=0, stages=(unknown,))
    passed = 0
    for part in tails:
        tail = _tail(part, standing, numbers)
        passed = 0 if is_met_by_loss else handed - part.output.bytes_outside(part.observed[0].given)
        if not part.has_loss:
            tail = replace(tail, stages=(*tail.stages, unknown))
    return JoinAccount(
        branches=tuple(chains), tail=tail, passed_bytes=passed, has_options=has_options
    )


def _branch(
    part: Seen, standing: int, handed: int, own: int, *, numbers: dict[int, int]
) -> JoinedChain:
    """`handed` bytes are the model's output, `own` of them this branch's output."""
    last = len(part.observed) - 1
    besides = [_Besides(handed, 0)] * last + [_Besides(handed, own)]
    return _chain(part, besides, standing, numbers)


def _tail(part: Seen, standing: int, numbers: dict[int, int]) -> JoinedChain:
    last = len(part.observed) - 1 - part.has_loss
    besides = []
    for index, observation in enumerate(part.observed):
        waiting = part.output.bytes_outside(observation.given)
        besides.append(_Besides(waiting, waiting * (index == last)))
    return _chain(part, besides, standing, numbers)


def _kept(part: Seen, index: int, memory: StageMemory) -> tuple[int, int, int]:
    """Return what keeping a stage saves, and both overheads, the backward's below 0 if it frees.

    Args:
        part: The stage's part.
        index: The stage.
        memory: Of the stage, run alone, under one of its options.
    """
    held, saved = part.observed[index].given.bytes, memory.kept_bytes
    gradients = memory.input_gradients.allocated_bytes + memory.output_gradients.allocated_bytes
    backward = memory.backward_peak - held - saved - gradients
    return saved, max(memory.kept_peak - held - saved, 0), backward


def _joined_stage(
    part: Seen, index: int, beside: _Besides, standing: int, numbers: dict[int, int]
) -> JoinedStage:
    observation, memory = part.observed[index], part.memories[index]
    saved, recording, backward = _kept(part, index, memory)
    relief = max(-backward - beside.held, 0)
    is_loss = observation.stage.is_loss
    cost = StageCost(
        name=observation.stage.name,
        forward_time=observation.time.forward,
        backward_time=observation.time.backward,
        rerun_time=observation.time.rerun,
        hooks_time=observation.time.hooks,
        output_bytes=observation.result.bytes,
        saved_bytes=saved,
        gradient_bytes=memory.output_gradients.allocated_bytes,
        recording_bytes=recording + standing,
        dropping_bytes=observation.dropping_bytes(memory) + standing,
        backward_bytes=backward + beside.held + relief + standing,
        environment_bytes=0 if is_loss else observation.environment_bytes,
        random_bytes=0 if is_loss else observation.random_bytes,
    )
    options = []
    for found in part.options.get(index, ()):
        saved, recording, backward = _kept(part, index, found.memory)
        backward = max(backward + beside.held + relief, 0)  # as if it freed as much
        sizes = (saved, recording + standing, backward + standing)
        options.append(option_cost(found.option, sizes))
    return JoinedStage(
        cost=replace(cost, options=tuple(options)),
        forward_waiting=beside.waiting,
        backward_waiting=beside.waiting - beside.held,
        relief=relief,
        leaves=_leaves(observation, numbers),
    )


def _leaves(observation: ObservedStage, numbers: dict[int, int]) -> tuple[tuple[int, int], ...]:
    """Return the leaves of a stage as in `JoinedStage`; `numbers` has known leaves by identity."""
    return tuple(
        (numbers.setdefault(id(leaf), len(numbers)), leaf.nbytes) for leaf in observation.leaves
    )


def _chain(
    part: Seen, besides: Sequence[_Besides], standing: int, numbers: dict[int, int]
) -> JoinedChain:
    stages = tuple(
        _joined_stage(part, index, beside, standing, numbers)
        for index, beside in enumerate(besides)
    )
    return JoinedChain(
        input_bytes=part.observed[0].given.bytes,
        input_gradient_bytes=part.memories[0].input_gradients.allocated_bytes,
        stages=stages,
    )
