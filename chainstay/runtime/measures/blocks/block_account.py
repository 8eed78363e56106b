"""Costs of a plan for a model's blocks, with what the model does around them.

The blocks are stages like any others, each measured by itself. What happens around them runs once,
whatever the schedule; a run without the blocks shows it (see `around_blocks`). Beyond the plain
reading of a profile's fields:

* What is held outside is in the overheads of the stages that run meanwhile.
* The input of a segment stays from its first forward to its last backward. It is counted
  outside, so in the profile it takes nothing: no good schedule makes it a second time.
* What a segment returns is the model's. It is counted outside, for as long as the model keeps it.
* What the model does between two blocks has its peaks in the overheads of the block behind, and
  its times in that block's backward, which runs once as well.
* The loss is what follows the last block: the rest of the forward, and the loss itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from chainstay.profiles import Skip
from chainstay.runtime.capture.blocks.chain import BlockChain
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.devices.sharding import whole_bytes
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.blocks.around_blocks import Around, Outside
from chainstay.runtime.measures.costs import ObservedStage, lasting_bytes
from chainstay.runtime.measures.probe import StageMemory
from chainstay.runtime.measures.shared_bytes import TiedGradients
from chainstay.runtime.measures.stage_cost import StageCost
from chainstay.runtime.stage.lineage import NumberedState, shared_skips
from chainstay.runtime.stage.states import address_of


@dataclass(slots=True)
class BlockAccountant:
    """Computes the account of a model by blocks: of these, and of what is around them."""

    around: Around
    observed: Sequence[ObservedStage]
    memories: Sequence[StageMemory]
    outside: Outside
    autocast: Autocast | None
    standing: int = field(init=False)  # bytes that a plan holds through the whole step
    _skips: tuple[Skip, ...] = field(init=False)
    _tied: TiedGradients = field(init=False)

    def __post_init__(self) -> None:
        self.standing = self._standing_bytes()
        segments = self.chain.segments()
        self._skips = tuple(skip for segment in segments for skip in self._skips_of(segment))
        self._tied = self._tied_gradients()

    @property
    def chain(self) -> BlockChain:
        """The blocks."""
        return self.around.chain

    def account(self) -> Account:
        """Return the costs of every stage, the loss last."""
        return Account(
            input_bytes=0,
            input_gradient_bytes=self._gradient_bytes(0) + self._tied.beside(0),
            stages=(*map(self._stage, range(len(self.observed))), self._loss()),
            skips=(*self._skips, *self._tied.skips),
        )

    def kept(self, memory: StageMemory, index: int, _last: int) -> tuple[int, int, int]:
        """Return what keeping a block saves, and both overheads; see `ChainAccountant.kept`."""
        behind, all_given = self.outside.behind_backward(index), self.observed[index].given.bytes
        saved = memory.graph_bytes if self._is_end(index) else memory.kept_bytes
        gradients = self._gradient_bytes(index) + self._gradient_bytes(index + 1)
        gradients -= sum(s.gradient_bytes for s in self._skips if s.first <= index < s.last)
        backward = self._backward_level(index) + memory.backward_peak - all_given
        backward = max(backward, behind.peak - self._given_bytes(index)) - saved - gradients
        made = sum(s.bytes for s in self._skips if s.first == index + 1)
        return (
            max(saved, made),
            self._forward_bytes(index, memory.kept_peak, saved),
            max(backward, self._backward_level(index), 0) + self.standing + self._tied.sums[index],
        )

    def _standing_bytes(self) -> int:
        """Return the bytes of the model's inputs and of what blocks leave standing."""
        lasting = lasting_bytes(self.observed, self.memories, self.autocast, self.outside.leaves)
        # What collectives gather and reduce goes when their own threads let it go: beside a block
        # there may be the parameters and the gradients of a neighbour, now and then.
        blocks = [stage.block for stage in self.chain.stages]
        sharded = [whole_bytes(block) for block in blocks if block is not None]
        return self.around.input_bytes + lasting + 2 * max(sharded, default=0)

    def _forward_bytes(self, index: int, peak: int, made: int) -> int:
        """Return the overhead of a first run that needs `peak` alone, and leaves `made` bytes."""
        around = self._forward_level(index) + self.standing
        entering = self.outside.before[index].peak - self._given_bytes(index) - made + self.standing
        return max(peak - self.observed[index].given.bytes - made + around, around, entering)

    def _again_bytes(self, index: int) -> int:
        """Return what is held outside beside a later run, and was not beside the first."""
        stop = next(segment.stop for segment in self.chain.segments() if index in segment)
        most = max(map(self._backward_level, range(index, stop)))
        return max(most - self._forward_level(index), 0)

    def _is_end(self, index: int) -> bool:
        return index + 1 in (*self.chain.starts, len(self.observed))

    def _stage(self, index: int) -> StageCost:
        observed, memory, is_end = self.observed[index], self.memories[index], self._is_end(index)
        start = self.chain.segment_of(index)
        made = 0 if is_end else observed.made_bytes
        # A stage that runs again reads copies of an input that somebody changes in place.
        copies = observed.given.bytes if self.chain.stages[index].is_input_changed else 0
        before, behind = self.outside.before[index], self.outside.behind_backward(index)
        return observed.cost(
            self.kept(memory, index, index),
            forward_time=max(observed.time.forward, 1),  # nothing is run again for fun
            backward_time=observed.time.backward + before.nanoseconds + behind.nanoseconds,
            output_bytes=0 if is_end else self._counted(observed.result, start),
            gradient_bytes=self._gradient_bytes(index + 1) + self._tied.beside(index + 1),
            dropping_bytes=self._forward_bytes(index, memory.dropped_peak, made),
            environment_bytes=observed.environment_bytes + copies,
            random_bytes=0,
            again_bytes=self._again_bytes(index),
        )

    def _loss(self) -> StageCost:
        """All behind the last block."""
        last = len(self.observed) - 1
        loss, backward = self.outside.loss, self.outside.backward[last]
        assumed = self.outside.assumed
        made = self.observed[last].made_bytes
        saved = max(loss.level - self.outside.behind[last].level + made, 0)
        gradient = self._gradient_bytes(last + 1)
        saved += assumed.saved_bytes
        turn = loss.level + assumed.saved_bytes  # bytes in use between forward and backward
        forward = max(loss.peak, turn + assumed.forward_bytes) - saved
        giving = turn + assumed.backward_bytes + assumed.gradient_bytes
        return StageCost(
            name="loss",
            forward_time=loss.nanoseconds,
            backward_time=backward.nanoseconds,
            output_bytes=0,
            saved_bytes=saved,
            gradient_bytes=0,
            recording_bytes=max(forward, 0) + self.standing,
            dropping_bytes=max(forward, 0) + self.standing,
            backward_bytes=max(max(backward.peak, giving) - saved - gradient, 0) + self.standing,
            environment_bytes=0,
        )

    def _forward_level(self, index: int) -> int:
        """Return the bytes held outside while stage `index` runs for the first time."""
        return max(self.outside.before[index].level - self._given_bytes(index), 0)

    def _backward_level(self, index: int) -> int:
        """Held outside from just before the backward of stage `index` on."""
        backward = self.outside.backward[index]
        return max(backward.level - backward.gradient_bytes, 0)

    def _given_bytes(self, index: int) -> int:
        """Return the bytes that the profile has for the input of stage `index`."""
        return self._counted(self.observed[index].given, self.chain.segment_of(index))

    def _counted(self, state: NumberedState, start: int) -> int:
        """Bytes of `state` without the input of its segment, which counts as outside."""
        outside = self.observed[start].given.storages
        return sum(size for number, size in state.storages.items() if number not in outside)

    def _gradient_bytes(self, cut: int) -> int:
        """Return the bytes of the gradient in front of stage `cut`, the larger of the two sides."""
        memories = self.memories
        sides = [memories[cut - 1].output_gradients] if cut else []
        sides += [memories[cut].input_gradients] if cut < len(memories) else []
        return max(side.allocated_bytes for side in sides)

    def _skips_of(self, segment: range) -> Iterator[Skip]:
        """Yield the tensors that several states of a segment share."""
        outside = self.observed[segment.start].given.storages
        states = [self.observed[index].given for index in segment]
        gradients = [self.memories[index].input_gradients for index in segment]
        for skip in shared_skips([_without(state, outside) for state in states], gradients):
            yield replace(skip, first=skip.first + segment.start, last=skip.last + segment.start)

    def _tied_gradients(self) -> TiedGradients:
        """Return the gradients of parameters that a block shares with others.

        What the model uses outside as well counts as used in front of and behind all blocks.
        """
        used = {_place_of(leaf): leaf for seen in self.observed for leaf in seen.leaves}
        leaves = (leaf for leaf in self.outside.leaves if leaf.layout == torch.strided)
        places = (_place_of(leaf) for leaf in leaves if leaf.nbytes)
        others = tuple(used[place] for place in places if place in used)
        stages = [others, *(seen.leaves for seen in self.observed), others]
        held = [(), *(memory.leaf_gradients for memory in self.memories), ()]
        found = TiedGradients.of(stages, held)
        waiting = {(first - 1, last - 1): size for (first, last), size in found.waiting.items()}
        return TiedGradients(waiting, found.sums[1:-1])


def _place_of(leaf: torch.Tensor) -> tuple[object, ...]:
    """Tells a parameter from others, whichever stand-in it has: all of them share its memory."""
    return address_of(leaf), leaf.storage_offset(), leaf.shape


def _without(state: NumberedState, outside: Mapping[int, int]) -> NumberedState:
    storages = {n: 0 if n in outside else size for n, size in state.storages.items()}
    return NumberedState(storages=storages, tensors=state.tensors)
