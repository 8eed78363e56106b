"""Costs of a plan for a model's blocks, with what the model does around them.

The blocks are stages like any others, each measured by itself. What happens around them runs
once, whatever the schedule; a run without the blocks shows it (see `outside`). Beyond the plain
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

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from chainstay.profiles import Skip
from chainstay.runtime.capture.blocks.chain import BlockChain
from chainstay.runtime.capture.blocks.graphs import BlockGraphs
from chainstay.runtime.capture.blocks.host import Host
from chainstay.runtime.capture.blocks.sample import blocks_run_by, sample_blocks
from chainstay.runtime.capture.trials.isolation import StandIns
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.devices.device import device_at
from chainstay.runtime.devices.sharding import gathered, run_alone, whole_bytes
from chainstay.runtime.execute.environment import Traits
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.around_blocks import Around, Outside
from chainstay.runtime.measures.cost_files import AccountFile, signature_around, signature_of
from chainstay.runtime.measures.costs import ObservedStage, Subject, observe_chain, trace_chain
from chainstay.runtime.measures.measured import Measurement, measuring, traits_of
from chainstay.runtime.measures.probe import StageMemory
from chainstay.runtime.measures.progress import Progress, progress_bar, unseen
from chainstay.runtime.measures.shared_bytes import autocast_copies_bytes, tied_gradients_bytes
from chainstay.runtime.measures.stage_cost import StageCost
from chainstay.runtime.stage.chain import Chain
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.lineage import NumberedState, shared_skips
from chainstay.runtime.stage.loss_stage import TracedLoss, traced_loss
from chainstay.runtime.stage.states import copied

__all__ = [
    "MeasuredBlocks",
    "find_blocks",
    "measure_blocks",
    "unmeasured_blocks",
    "with_loss",
]

Loss = Callable[[Any], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredBlocks(Measurement):
    """A model's blocks and what a step with them costs.

    Attributes:
        blocks: The blocks.
    """

    blocks: BlockChain


def find_blocks(host: Host, graphs: BlockGraphs) -> Around:
    """Find the blocks of a model.

    Their inputs and outputs are held from then on, on the CPU.

    Args:
        host: Runs the model's own Python on a call.
        graphs: The graphs of its blocks.

    Raises:
        UnsupportedModelError: There are no blocks, or they cannot be run as stages.
    """
    device_at(host.device)
    with measuring(host.device):
        chain, sample = sample_blocks(host, graphs)
        around = Around(host, graphs, chain, sample, None, host.device)
        held = around.held()
        if held:
            chain, sample = sample_blocks(host, graphs, held=held)
            around = replace(around, chain=chain, sample=sample, leaves=())
    return around


def with_loss(around: Around, loss: Loss) -> Around:
    """The same with a loss behind the model.

    Args:
        around: The model around its blocks.
        loss: A function from the model's output to a scalar.

    Raises:
        UnsupportedModelError: The loss cannot be traced on the model's output.
    """
    names = (stage.name for stage in around.chain.stages)
    trip = around.trip()
    with (
        measuring(around.device),
        around.host.fresh() as (model, run),
        blocks_run_by(model, names, around.graphs, trip.run),
    ):
        return replace(around, loss=traced_loss(loss, run()), leaves=())


def measure_blocks(
    around: Around,
    *,
    repeats: int,
    progress: bool = True,
    cache: str | os.PathLike[str] | None = None,
) -> MeasuredBlocks:
    """Measure time and memory of a step with the blocks of a model.

    Args:
        around: The model around its blocks; see `find_blocks` and `with_loss`.
        repeats: Timed runs of each stage, and of what is around them.
        progress: Show a bar on stderr, if that is a terminal and it takes over a second.
        cache: A directory for what was measured; of several processes, all find a file there
            or all measure.

    Raises:
        UnsupportedModelError: The backward does not go through the blocks in turn.
    """
    device, model = around.device, around.host.model
    with progress_bar(wanted=progress) as bar, measuring(device), run_alone():
        stages = around.chain.chain_stages
        autocast = Autocast.now(device)
        subjects = partial(_subjects, stages, around, bar)
        file = None if cache is None else _file_of(subjects(), around, autocast, cache)
        account = None if file is None else file.read()
        if all(gathered(model, account is not None)) and account is not None:
            traits = tuple(each for subject in subjects() for each in traits_of(subject))
        else:
            observed: list[ObservedStage] = []
            memories: list[StageMemory] = []
            for subject in subjects():
                found = observe_chain(subject, repeats)
                observed += found
                memories += trace_chain(found, subject)
            bar("running what is around the blocks", steps=0, more=1)
            outside = around.measured([each.input_gradients for each in memories], repeats)
            bar("running what is around the blocks")
            standing = _standing_bytes(observed, memories, outside, around, autocast)
            account = _Accountant(around.chain, observed, memories, outside, standing).account()
            traits = tuple(each.traits for each in observed)
            if file is not None:
                file.write(account)
    chain = Chain(stages=stages, device=device, names=around.chain.shared_names)
    return MeasuredBlocks(chain=chain, account=account, traits=traits, blocks=around.chain)


def unmeasured_blocks(around: Around) -> tuple[Traits, ...]:
    """Return the traits of each block."""
    with measuring(around.device):
        subjects = _subjects(around.chain.chain_stages, around, unseen)
        return tuple(each for subject in subjects for each in traits_of(subject))


def _subjects(
    stages: Sequence[ChainStage], around: Around, progress: Progress
) -> Iterator[Subject]:
    """One per segment, with a copy of its input on the device."""
    sample = around.sample
    written = {position for stage in stages for position in stage.written}
    shared = StandIns({id(sample.shared[position]) for position in written}).of_all(sample.shared)
    for segment in around.chain.segments():
        yield Subject(
            stages=tuple(stages[segment.start : segment.stop]),
            source=copied(sample.states[segment.start], around.device),
            shared=shared,
            counted=sample.counted,
            device=around.device,
            progress=progress,
        )


def _file_of(
    subjects: Iterator[Subject],
    around: Around,
    autocast: Autocast | None,
    cache: str | os.PathLike[str],
) -> AccountFile:
    """Return the file for the account, whether or not it exists."""
    host = around.host
    signatures = [
        signature_around(host.model, (host.args, dict(host.kwargs)), _text_of(around.loss)),
        *(signature_of(subject, autocast) for subject in subjects),
    ]
    names = [stage.name for stage in around.chain.stages]
    return AccountFile.of("\n".join(signatures), names, cache)


def _text_of(loss: TracedLoss | None) -> str:
    return "no loss" if loss is None else loss.text


@dataclass(frozen=True, slots=True)
class _Accountant:
    """Puts blocks and what is around them together."""

    chain: BlockChain
    observed: Sequence[ObservedStage]
    memories: Sequence[StageMemory]
    outside: Outside
    standing: int  # bytes that a plan holds through the whole step

    def account(self) -> Account:
        """Return the costs of every stage, the loss last."""
        segments = list(self.chain.segments())
        skips = tuple(skip for segment in segments for skip in self._skips(segment))
        tied = self._tied()
        stages = [
            self._stage(index, segment, skips, tied[index])
            for segment in segments
            for index in segment
        ]
        return Account(
            input_bytes=0,
            input_gradient_bytes=self._gradient_bytes(0),
            stages=(*stages, self._loss()),
            skips=skips,
        )

    def _stage(
        self, index: int, segment: range, skips: Sequence[Skip], tied: tuple[int, int]
    ) -> StageCost:
        observed, memory = self.observed[index], self.memories[index]
        before, behind = self.outside.before[index], self.outside.behind_backward(index)
        given = self._given_bytes(index)
        all_given, all_made = observed.given.bytes, observed.result.bytes_outside(observed.given)
        is_end = index + 1 == segment.stop
        output = 0 if is_end else self._counted(observed.result, segment.start)
        made, saved = (0, memory.graph_bytes) if is_end else (all_made, memory.kept_bytes)
        around = max(map(self._level, range(index, segment.stop))) + self.standing + tied[0]
        entering = before.peak - given - min(made, saved) + self.standing
        gradients = self._gradient_bytes(index) + self._gradient_bytes(index + 1)
        gradients -= sum(s.gradient_bytes for s in skips if s.first <= index < s.last)
        backward = self._backward_level(index) + memory.backward_peak - all_given
        backward += self.outside.backward[index].lasting_bytes  # a block alone may free them
        backward = max(backward, behind.peak - given) - saved - gradients
        return StageCost(
            name=observed.stage.name,
            forward_time=max(observed.time.forward, 1),  # nothing is run again for fun
            backward_time=observed.time.backward + before.nanoseconds + behind.nanoseconds,
            rerun_time=observed.time.rerun,
            hooks_time=observed.time.hooks,
            output_bytes=output,
            saved_bytes=max(saved, sum(s.bytes for s in skips if s.first == index + 1)),
            gradient_bytes=self._gradient_bytes(index + 1),
            recording_bytes=max(memory.kept_peak - all_given - saved + around, around, entering),
            dropping_bytes=max(memory.dropped_peak - all_given - made + around, around, entering),
            backward_bytes=max(backward, self._backward_level(index), 0) + self.standing + tied[1],
            environment_bytes=observed.environment_bytes,
        )

    def _loss(self) -> StageCost:
        """All behind the last block."""
        last = len(self.observed) - 1
        loss, backward = self.outside.loss, self.outside.backward[last]
        observed = self.observed[last]
        made = observed.result.bytes_outside(observed.given)
        saved = max(loss.level - self.outside.behind[last].level + made, 0)
        gradient = self._gradient_bytes(last + 1)
        forward = max(loss.peak - saved, 0) + self.standing
        return StageCost(
            name="loss",
            forward_time=loss.nanoseconds,
            backward_time=backward.nanoseconds,
            output_bytes=0,
            saved_bytes=saved,
            gradient_bytes=0,
            recording_bytes=forward,
            dropping_bytes=forward,
            backward_bytes=max(backward.peak - saved - gradient, 0) + self.standing,
            environment_bytes=0,
        )

    def _level(self, index: int) -> int:
        """The most held outside while stage `index` runs forward, in the turn or before."""
        forward = self.outside.before[index].level - self._given_bytes(index)
        return max(forward, self._backward_level(index), 0)

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
        return max(each.allocated_bytes for each in sides)

    def _skips(self, segment: range) -> Iterator[Skip]:
        """Yield the tensors that several states of a segment share."""
        outside = self.observed[segment.start].given.storages
        states = [self.observed[index].given for index in segment]
        gradients = [self.memories[index].input_gradients for index in segment]
        for skip in shared_skips([_without(state, outside) for state in states], gradients):
            yield replace(skip, first=skip.first + segment.start, last=skip.last + segment.start)

    def _tied(self) -> list[tuple[int, int]]:
        """Return the bytes of gradients of parameters that a block shares with others."""
        used = {id(leaf) for each in self.observed for leaf in each.leaves}
        others = tuple(leaf for leaf in self.outside.leaves if id(leaf) in used)
        leaves = [others, *(each.leaves for each in self.observed), others]
        held = [(), *(each.leaf_gradients for each in self.memories), ()]
        return tied_gradients_bytes(leaves, held)[1:-1]


def _without(state: NumberedState, outside: Mapping[int, int]) -> NumberedState:
    storages = {n: 0 if n in outside else size for n, size in state.storages.items()}
    return NumberedState(storages=storages, tensors=state.tensors)


def _standing_bytes(
    observed: Sequence[ObservedStage],
    memories: Sequence[StageMemory],
    outside: Outside,
    around: Around,
    autocast: Autocast | None,
) -> int:
    """Inputs of the model, what blocks do not drop, copies of inputs that are changed."""
    total = around.input_bytes
    leaves = [each.leaves for each in observed]
    total += autocast_copies_bytes([*leaves, outside.leaves], autocast)
    blocks = around.chain.stages
    for stage, each, memory in zip(blocks, observed, memories, strict=True):
        made = each.result.bytes_outside(each.given)
        total += max(memory.dropped_bytes - made, 0)
        total += each.given.bytes if stage.is_input_changed else 0
    # What collectives gather and reduce goes when their own threads let it go: beside a block
    # there may be the parameters and the gradients of a neighbour, now and then.
    sharded = [whole_bytes(stage.block) for stage in blocks if stage.block is not None]
    total += 2 * max(sharded, default=0)
    return total
