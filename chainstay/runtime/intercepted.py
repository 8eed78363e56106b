"""From a model's blocks, and what it does around them, to what a plan for them costs.

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
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from chainstay.errors import ChainstayError, UnsupportedModelError
from chainstay.profiles import Skip
from chainstay.runtime.accounting import Account, StageCost
from chainstay.runtime.caching import AccountFile, signature_around, signature_of
from chainstay.runtime.chain import Chain, TensorLayout
from chainstay.runtime.costs import ObservedStage, Subject, observe_chain, trace_chain
from chainstay.runtime.extraction.blocks import InterceptedChain
from chainstay.runtime.extraction.calls import device_of
from chainstay.runtime.extraction.intercepting import intercept_sampled
from chainstay.runtime.lineage import NumberedState, shared_skips
from chainstay.runtime.measurement import Measurement, measuring, traits_of
from chainstay.runtime.memory import require_measurable
from chainstay.runtime.mode import Autocast, Mode, titled_modules
from chainstay.runtime.outside import Around, Outside
from chainstay.runtime.probe import StageMemory
from chainstay.runtime.progress import Progress, progress_bar
from chainstay.runtime.sharding import gathered, whole_bytes
from chainstay.runtime.sharing import autocast_copies_bytes, tied_gradients_bytes
from chainstay.runtime.stages import ChainStage
from chainstay.runtime.states import copied, state_bytes

__all__ = ["measure_intercepted"]

Loss = Callable[[Any], torch.Tensor]


def measure_intercepted(  # noqa: PLR0913  # the settings of measuring have defaults
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    loss: Loss | None,
    repeats: int,
    progress: bool = True,
    cache: str | os.PathLike[str] | None = None,
) -> tuple[InterceptedChain, Measurement]:
    """Find the blocks of `model`, and measure time and memory of a step with them.

    Everything is left as it was, as by `chainstay.measure`. The inputs and outputs of all
    blocks are held meanwhile, on the CPU if the model is elsewhere.

    Args:
        model: See `chainstay.runtime.extraction.intercept`.
        args: Positional arguments of a call like those to come.
        kwargs: Keyword arguments, likewise.
        loss: From the model's output to a scalar; as for `measure_extracted`.
        repeats: Timed runs of each stage, and of what is around them.
        progress: Show a bar on stderr, if that is a terminal and it takes over a second.
        cache: A directory for what was measured, as for `measure_extracted`. Blocks are looked
            for in any case; of several processes, all find a file there or all measure.

    Raises:
        UnsupportedModelError: There are no blocks, or they cannot be run as stages.
    """
    device = device_of(model, args, kwargs)
    require_measurable(device)
    modules = [*model.modules(), *(loss.modules() if isinstance(loss, nn.Module) else ())]
    shown = progress_bar(wanted=progress)
    with shown as bar, measuring(modules, device), _told_by_name(model):
        around = _around(model, args, kwargs, loss, device)
        stages = tuple(ChainStage(each.name, (each,)) for each in around.chain.stages)
        mode = Mode.now(titled_modules(stages), device)
        subjects = partial(_subjects, stages, around, bar)
        file = None if cache is None else _file_of(subjects(), around, mode, cache)
        account = None if file is None else file.read()
        if all(gathered(model, account is not None)) and account is not None:
            traits = tuple(each for subject in subjects() for each in traits_of(subject))
        else:
            blocks = _Blocks.measured(stages, subjects(), around.chain, device, repeats)
            account = _account_of(blocks, around, bar, mode.autocast, repeats)
            traits = tuple(each.traits for each in blocks.observed)
            if file is not None:
                file.write(account)
    measured = Chain(
        stages=stages,
        layouts=tuple(map(TensorLayout.of, around.sample.states[0])),
        device=device,
        mode=mode,
        modules=titled_modules(stages),
    )
    return around.chain, Measurement(chain=measured, account=account, traits=traits)


def _around(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    loss: Loss | None,
    device: torch.device,
) -> Around:
    """The blocks, and the model around them."""
    chain, sample = intercept_sampled(model, args, kwargs)
    around = Around(chain, sample, args, kwargs, loss, device)
    held = around.held()
    if held:
        chain, sample = intercept_sampled(model, args, kwargs, held=held)
        around = replace(around, chain=chain, sample=sample)
    return around


def _subjects(
    stages: Sequence[ChainStage], around: Around, progress: Progress
) -> Iterator[Subject]:
    """One per segment, with a copy of its input on the device."""
    for segment in around.chain.segments():
        yield Subject(
            stages=tuple(stages[segment.start : segment.stop]),
            source=copied(around.sample.states[segment.start], around.device),
            shared=around.sample.shared[segment.start],
            device=around.device,
            progress=progress,
        )


def _file_of(
    subjects: Iterator[Subject], around: Around, mode: Mode, cache: str | os.PathLike[str]
) -> AccountFile:
    """Where the account is, or will be."""
    chain = around.chain
    signatures = [
        signature_around(chain.model, (around.args, dict(around.kwargs)), around.loss),
        *(signature_of(subject, mode) for subject in subjects),
        *(f"{each.carried} {each.is_input_changed}" for each in chain.stages),
    ]
    return AccountFile.of("\n".join(signatures), [each.name for each in chain.stages], cache)


def _account_of(
    blocks: _Blocks, around: Around, progress: Progress, autocast: Autocast | None, repeats: int
) -> Account:
    progress("running what is around the blocks", steps=0, more=1)
    outside = around.measured([each.input_gradients for each in blocks.memories], repeats)
    progress("running what is around the blocks")
    standing = _standing_bytes(blocks, outside, (around.args, around.kwargs), autocast)
    return _Accountant(blocks, outside, standing).account()


@contextmanager
def _told_by_name(model: nn.Module) -> Iterator[None]:
    try:
        yield
    except (torch.OutOfMemoryError, ChainstayError):
        raise  # tell their own story
    except Exception as cause:  # model and loss are the user's code and may raise anything
        raise UnsupportedModelError(
            f"{type(model).__name__} or its loss fails on the sample: {type(cause).__name__}: "
            f"{str(cause).rstrip('.')}; check that both run on it"
        ) from cause


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """All blocks, measured one by one.

    Attributes:
        chain: To which they belong.
        stages: They themselves.
        observed: Their times.
        memories: Their memory.
        device: Where they are.
    """

    chain: InterceptedChain
    stages: tuple[ChainStage, ...]
    observed: tuple[ObservedStage, ...]
    memories: tuple[StageMemory, ...]
    device: torch.device

    @classmethod
    def measured(
        cls,
        stages: tuple[ChainStage, ...],
        subjects: Iterator[Subject],
        chain: InterceptedChain,
        device: torch.device,
        repeats: int,
    ) -> _Blocks:
        """Measure segment by segment."""
        observed: list[ObservedStage] = []
        memories: list[StageMemory] = []
        for subject in subjects:
            found = observe_chain(subject, repeats)
            observed += found
            memories += trace_chain(found, subject)
        return cls(chain, stages, tuple(observed), tuple(memories), device)


@dataclass(frozen=True, slots=True)
class _Accountant:
    """Puts blocks and what is around them together.

    Attributes:
        blocks: Measured one by one.
        outside: A step without them.
        standing: Bytes that a plan holds through the whole step.
    """

    blocks: _Blocks
    outside: Outside
    standing: int

    def account(self) -> Account:
        """What every stage costs, the loss last."""
        segments = list(self.blocks.chain.segments())
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
        observed, memory = self.blocks.observed[index], self.blocks.memories[index]
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
            moving_time=observed.time.moving,
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
        last = len(self.blocks.stages) - 1
        loss, backward = self.outside.loss, self.outside.backward[last]
        observed = self.blocks.observed[last]
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
        """What the profile has for the input of stage `index`."""
        return self._counted(self.blocks.observed[index].given, self.blocks.chain.segment_of(index))

    def _counted(self, state: NumberedState, start: int) -> int:
        """Bytes of `state` without the input of its segment, which counts as outside."""
        outside = self.blocks.observed[start].given.storages
        return sum(size for number, size in state.storages.items() if number not in outside)

    def _gradient_bytes(self, cut: int) -> int:
        """Of the state in front of stage `cut`, on either side of what the model does there."""
        memories = self.blocks.memories
        sides = [memories[cut - 1].output_gradients] if cut else []
        sides += [memories[cut].input_gradients] if cut < len(memories) else []
        return max(each.allocated_bytes for each in sides)

    def _skips(self, segment: range) -> Iterator[Skip]:
        """What several states of a segment share."""
        outside = self.blocks.observed[segment.start].given.storages
        states = [self.blocks.observed[index].given for index in segment]
        gradients = [self.blocks.memories[index].input_gradients for index in segment]
        for skip in shared_skips([_without(state, outside) for state in states], gradients):
            yield replace(skip, first=skip.first + segment.start, last=skip.last + segment.start)

    def _tied(self) -> list[tuple[int, int]]:
        """What gradients of parameters take that several blocks use, or blocks and others."""
        used = {id(leaf) for each in self.blocks.observed for leaf in each.leaves}
        others = tuple(leaf for leaf in self.outside.leaves if id(leaf) in used)
        leaves = [others, *(each.leaves for each in self.blocks.observed), others]
        held = [(), *(each.leaf_gradients for each in self.blocks.memories), ()]
        return tied_gradients_bytes(leaves, held)[1:-1]


def _without(state: NumberedState, outside: Mapping[int, int]) -> NumberedState:
    storages = {n: 0 if n in outside else size for n, size in state.storages.items()}
    return NumberedState(storages=storages, tensors=state.tensors)


def _standing_bytes(
    blocks: _Blocks,
    outside: Outside,
    call: tuple[tuple[Any, ...], Mapping[str, Any]],
    autocast: Autocast | None,
) -> int:
    """Inputs of the model, what blocks do not drop, copies of inputs that are changed."""
    inputs = [leaf for leaf in tree_leaves(call) if isinstance(leaf, torch.Tensor)]
    total = state_bytes(each for each in inputs if each.device == blocks.device)
    leaves = [each.leaves for each in blocks.observed]
    total += autocast_copies_bytes([*leaves, outside.leaves], autocast)
    for stage, each, memory in zip(
        blocks.chain.stages, blocks.observed, blocks.memories, strict=True
    ):
        made = each.result.bytes_outside(each.given)
        total += max(memory.dropped_bytes - made, 0)
        total += each.given.bytes if stage.is_input_changed else 0
    # What collectives gather and reduce goes when their own threads let it go: beside a block
    # there may be the parameters and the gradients of a neighbour, now and then.
    sharded = [whole_bytes(stage.block) for stage in blocks.chain.stages if stage.is_sharded]
    total += 2 * max(sharded, default=0)
    return total
