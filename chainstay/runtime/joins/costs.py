"""Costs of branches and tail, from what was seen; compare `chainstay.runtime.measures.costs`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from chainstay.runtime.joins.account import JoinAccount, JoinedChain, JoinedStage
from chainstay.runtime.measures.costs import ObservedStage, free_loss
from chainstay.runtime.measures.probe import StageMemory
from chainstay.runtime.measures.stage_cost import StageCost


@dataclass(frozen=True, slots=True)
class Seen:
    """A branch or the tail, stage by stage."""

    observed: Sequence[ObservedStage]
    memories: Sequence[StageMemory]

    @property
    def has_loss(self) -> bool:
        """Whether the loss is its last stage."""
        return self.observed[-1].stage.is_loss

    @property
    def standing_bytes(self) -> int:
        """Bytes that a plan holds through the whole step."""
        total = 0
        for each, memory in zip(self.observed, self.memories, strict=True):
            made = each.result.bytes_outside(each.given)
            if each.stage.is_loss:
                total += made + memory.output_gradients.allocated_bytes
            else:
                total += max(memory.dropped_bytes - made, 0)
        return total


class _Besides(NamedTuple):
    """The bytes of one stage besides its states; compare `JoinedStage`."""

    backward: int
    forward_waiting: int
    backward_waiting: int


def account_for_join(seen: Sequence[Seen], branches: int, common_bytes: int) -> JoinAccount:
    """The costs of all stages.

    Args:
        seen: The branches, and the tail with the loss if there is one of these.
        branches: How many branches there are.
        common_bytes: The bytes that stand through the whole step, whatever the stages.
    """
    standing = common_bytes + sum(part.standing_bytes for part in seen)
    tails = seen[branches:]
    outputs = [part.observed[-1].result.bytes for part in seen[:branches]]
    is_met_by_loss = all(part.observed[0].stage.is_loss for part in tails)
    handed = sum(outputs) if is_met_by_loss else _last_state_bytes(tails[0])
    own = outputs if is_met_by_loss else [0] * branches
    numbers: dict[int, int] = {}
    chains = [
        _branch(part, standing, handed, mine, numbers=numbers)
        for part, mine in zip(seen[:branches], own, strict=True)
    ]
    free = JoinedStage(
        cost=free_loss(standing), forward_waiting=0, backward_waiting=0, relief=0, leaves=()
    )
    tail = JoinedChain(input_bytes=0, input_gradient_bytes=0, stages=(free,))
    passed = 0
    for part in tails:
        tail = _tail(part, standing, numbers)
        passed = 0 if is_met_by_loss else handed - _own_bytes(part)
        if not part.has_loss:
            tail = replace(tail, stages=(*tail.stages, free))
    return JoinAccount(branches=tuple(chains), tail=tail, passed_bytes=passed)


def _own_bytes(tail: Seen) -> int:
    """Return the bytes of the model's output that branches have not given."""
    last = tail.observed[-1]
    return (last.given if tail.has_loss else last.result).bytes_outside(tail.observed[0].given)


def _last_state_bytes(tail: Seen) -> int:
    last = tail.observed[-1]
    return (last.given if tail.has_loss else last.result).bytes


def _branch(
    part: Seen, standing: int, handed: int, own: int, *, numbers: dict[int, int]
) -> JoinedChain:
    """`handed` bytes are the model's output, `own` of them this branch's output."""
    last = len(part.observed) - 1
    besides = []
    for index in range(len(part.observed)):
        backward = _backward_bytes(part, index)
        waiting = handed
        if index == last:  # the caller may hold what the graph does not
            backward, waiting = backward + own, handed - own
        besides.append(_Besides(backward, handed, waiting))
    return _chain(part, besides, standing, numbers)


def _tail(part: Seen, standing: int, numbers: dict[int, int]) -> JoinedChain:
    last = len(part.observed) - 1 - part.has_loss
    handed = part.observed[last].result if last >= 0 else part.observed[0].given
    besides = []
    for index, each in enumerate(part.observed):
        waiting = handed.bytes_outside(each.given)
        backward = _backward_bytes(part, index)
        later = waiting
        if index == last:
            backward, later = backward + waiting, 0
        besides.append(_Besides(backward, waiting, later))
    return _chain(part, besides, standing, numbers)


def _backward_bytes(part: Seen, index: int) -> int:
    """Return the bytes of a backward beside its input and output, negative if it frees more."""
    each, memory = part.observed[index], part.memories[index]
    known = each.given.bytes + memory.kept_bytes
    known += memory.input_gradients.allocated_bytes + memory.output_gradients.allocated_bytes
    return memory.backward_peak - known


def _cost(part: Seen, index: int, standing: int, backward: int) -> StageCost:
    each, memory = part.observed[index], part.memories[index]
    held = each.given.bytes
    recording = memory.kept_peak - held - memory.kept_bytes
    dropping = memory.dropped_peak - held - each.result.bytes_outside(each.given)
    is_loss = each.stage.is_loss
    return StageCost(
        name=each.stage.name,
        forward_time=each.time.forward,
        backward_time=each.time.backward,
        output_bytes=each.result.bytes,
        saved_bytes=memory.kept_bytes,
        gradient_bytes=memory.output_gradients.allocated_bytes,
        recording_bytes=max(recording, 0) + standing,
        dropping_bytes=max(dropping, 0) + standing,
        backward_bytes=backward + standing,
        environment_bytes=0 if is_loss else each.environment_bytes,
        random_bytes=0 if is_loss else each.random_bytes,
    )


def _leaves(each: ObservedStage, numbers: dict[int, int]) -> tuple[tuple[int, int], ...]:
    """Return the leaves of a stage as in `JoinedStage`; `numbers` has known leaves by identity."""
    return tuple((numbers.setdefault(id(leaf), len(numbers)), leaf.nbytes) for leaf in each.leaves)


def _chain(
    part: Seen, besides: Sequence[_Besides], standing: int, numbers: dict[int, int]
) -> JoinedChain:
    stages = tuple(
        JoinedStage(
            cost=_cost(part, index, standing, max(beside.backward, 0)),
            forward_waiting=beside.forward_waiting,
            backward_waiting=beside.backward_waiting,
            relief=max(-beside.backward, 0),
            leaves=_leaves(each, numbers),
        )
        for index, (each, beside) in enumerate(zip(part.observed, besides, strict=True))
    )
    return JoinedChain(
        input_bytes=part.observed[0].given.bytes,
        input_gradient_bytes=part.memories[0].input_gradients.allocated_bytes,
        stages=stages,
    )
