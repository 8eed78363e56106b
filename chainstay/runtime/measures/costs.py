"""Costs of a running chain as a `ChainProfile`: each stage's times and bytes.

Every stage is run alone, so that only one stage's graph is alive at once. Beyond the
plain reading of the profile's fields:

* The caller holds the model's output until the step ends, as ``output = model(x)`` in a
  training loop does: it is in the overheads of every stage but those whose input has it. So is
  what parts of the graph saved that only the output holds, once the backward has come by.
* Some bytes stand through the whole step: what a dropping forward cannot drop, the loss
  value and its seed gradient. They are in every stage's overheads.
* Buffers and random states are saved for stages that run again; see `account`.
* So do autocast's copies of weights, and for a while gradients of tied weights; see
  `shared_bytes`.
* Parameters, their gradients and optimizer state are the caller's and count nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any, Self

import torch

from chainstay.profiles import Skip
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.devices.memory import trace_phases
from chainstay.runtime.execute.environment import first_look, require_repeatable
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.boundary import Gradients
from chainstay.runtime.measures.clock import StageTime, TimedStage, stage_times, time_chain
from chainstay.runtime.measures.probe import StageMemory, StageProbe, leaves_of
from chainstay.runtime.measures.progress import Progress
from chainstay.runtime.measures.shared_bytes import LeafUses, TiedGradients, autocast_copies_bytes
from chainstay.runtime.measures.stage_cost import StageCost
from chainstay.runtime.options.instruments import MEASURED, Instruments
from chainstay.runtime.stage.assumed_loss import AssumedLoss
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.lineage import Lineage, NumberedState, shared_skips
from chainstay.runtime.stage.loss_stage import require_differentiable, require_number
from chainstay.runtime.stage.stage_errors import blaming, run_stage
from chainstay.runtime.stage.states import (
    State,
    copied,
    detached,
    devices_of,
    is_among,
    state_bytes,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The subject of a measurement.

    Attributes:
        stages: Stages of the model, and the loss if it is known.
        source: Input of the first stage.
        shared: What all stages may read; what they write is nobody's but the subject's.
        counted: Tensors of these that are there because of the call, whose memory counts.
        device: Where they run.
        progress: Told of every run of a stage.
        blocks: The first and last of stages that are a block of the model.
        spans: Those of further stages that may be kept together, as blocks may be.
        hands_out: Whether the model's own code gets what every stage gives, and may change it.
        options: The options of stages that were measured before, to which more are added.
        instruments: What options are looked at with.
    """

    stages: tuple[ChainStage, ...]
    source: State
    shared: Sequence[Any]
    counted: State
    device: torch.device
    progress: Progress
    blocks: tuple[tuple[int, int], ...] = ()
    spans: tuple[tuple[int, int], ...] = ()
    hands_out: bool = False
    options: dict[Hashable, Any] | None = None
    instruments: Instruments = MEASURED

    @property
    def model_stages(self) -> tuple[ChainStage, ...]:
        """The stages without the loss."""
        return tuple(stage for stage in self.stages if not stage.is_loss)

    @property
    def counted_bytes(self) -> int:
        """The bytes on the device that are there because of the call."""
        return state_bytes(tensor for tensor in self.counted if tensor.device == self.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStage(TimedStage):
    """The observations of a stage, its memory not traced; sizes in bytes."""

    time: StageTime
    given: NumberedState
    result: NumberedState
    environment_bytes: int
    random_bytes: int = 0

    @property
    def made_bytes(self) -> int:
        """The bytes of its output that its input has not."""
        return self.result.bytes_outside(self.given)

    def dropping_bytes(self, memory: StageMemory) -> int:
        """Return the overhead of a forward that drops what it saves; `memory` is of that stage."""
        return max(memory.dropped_peak - self.given.bytes - self.made_bytes, 0)

    def cost(self, kept: tuple[int, int, int], **others: Any) -> StageCost:
        """Return the costs of the stage.

        Args:
            kept: What keeping it saves, and both overheads.
            others: Fields of `StageCost` that depend on what is beside the stage.
        """
        saved, recording, backward = kept
        known: dict[str, Any] = {
            "name": self.stage.name,
            "forward_time": self.time.forward,
            "backward_time": self.time.backward,
            "rerun_time": self.time.rerun,
            "hooks_time": self.time.hooks,
            "output_bytes": self.result.bytes,
            "saved_bytes": saved,
            "recording_bytes": recording,
            "backward_bytes": backward,
            "environment_bytes": self.environment_bytes,
            "random_bytes": self.random_bytes,
        }
        return StageCost(**known | others)


def observe_chain(subject: Subject) -> list[ObservedStage]:
    """Run the chain once, stage by stage; `timed` adds what the stages take.

    Raises:
        UnsupportedModelError: The loss gives something else than one number, the model
            integers, or a stage cannot be run again.
    """
    observed = []
    source, shared, device = subject.source, subject.shared, subject.device
    held = (value for value in shared if isinstance(value, torch.Tensor))
    lineage = Lineage.beside(held, device)
    lineage.add(source)
    last = len(subject.model_stages) - 1  # none where there is nothing but the loss
    subject.progress("running every stage", steps=0, more=len(subject.stages))
    for index, stage in enumerate(subject.stages):
        subject.progress("running every stage")
        with blaming(stage, index, source):
            effects, environment, output = first_look(stage, source, shared, device)
        environment_bytes = environment.size_on(device)
        # An accelerator's random states are in host memory.
        states = (state for _, state in environment.random if state.device == device)
        random_bytes = sum(state.nbytes for state in states)
        if index == last:
            require_differentiable(output)
        lineage.add(output, source)
        leaves = tuple(leaf for leaf in leaves_of(output) if not is_among(leaf, source))
        following = detached(output)
        del output  # its graph would be alive beside the one being timed
        with blaming(stage, index, source):
            if stage.is_loss:
                require_number(following[0])
            else:
                require_repeatable(stage, (source, shared), following, environment, device)
        observed.append(
            ObservedStage(
                stage=stage,
                effects=effects,
                leaves=leaves,
                time=StageTime(0, 0),
                given=lineage.states[index],
                result=lineage.states[index + 1],
                environment_bytes=0 if stage.is_loss else environment_bytes,
                random_bytes=0 if stage.is_loss else random_bytes,
            )
        )
        source = following
    return observed


def timed(observed: Sequence[ObservedStage], subject: Subject, repeats: int) -> list[ObservedStage]:
    """Return the stages with the time that each takes, the least of so many runs."""
    given = (subject.source, subject.shared)
    times = time_chain(observed, given, subject.device, repeats, subject.progress)
    return [replace(s, time=t) for s, t in zip(observed, stage_times(times), strict=True)]


def trace_chain(
    observed: Sequence[ObservedStage],
    subject: Subject,
    gradients: Gradients | None = None,
    *,
    returned: Sequence[frozenset[int]] | None = None,
    is_whole: bool = False,
) -> list[StageMemory]:
    """Return the memory of every stage, run alone on what the stages before it give.

    `gradients` are those of the last state, as whoever reads it leaves them; by default as usual.
    `returned` is as `returned_tensors` gives it; by default, the model returns nothing of these.
    With `is_whole`, nothing else uses their leaves, so that it is known when gradients wait.
    """
    probes = [
        StageProbe(stage=seen.stage, shared=subject.shared, leaves=seen.leaves) for seen in observed
    ]
    returned = returned or [frozenset()] * (1 + len(probes))
    # A failing stage leaves no gradient behind.
    with closing(_phases(probes, subject, gradients, returned, is_whole=is_whole)) as phases:
        traces = iter(trace_phases(phases, subject.device))
    return [probe.memory(traces) for probe in reversed(probes)][::-1]


def returned_tensors(
    observed: Sequence[ObservedStage], indices: Iterable[int] | None = None
) -> list[frozenset[int]]:
    """Return which tensors of every stage's input, and of the last output, the model returns.

    They are given by index. They are all of the last state before a loss, or those at `indices`.
    """
    states = [observed[0].given, *(seen.result for seen in observed)]
    final = states[-1 - observed[-1].stage.is_loss].tensors
    returned = {*final} if indices is None else {final[index] for index in indices}
    return [
        frozenset(index for index, number in enumerate(state.tensors) if number in returned)
        for state in states
    ]


def _phases(
    probes: Sequence[StageProbe],
    subject: Subject,
    gradients: Gradients | None,
    returned: Sequence[frozenset[int]],
    *,
    is_whole: bool,
) -> Generator[Callable[[], None]]:
    """Every stage's phases, the last stage first: its gradients lie as the one below gets them."""
    leaves = [probe.leaves for probe in probes]
    source, device = subject.source, subject.device
    on_the_host, devices = [], []
    for index, probe in enumerate(probes):
        on_the_host.append(_on_the_host(source))
        devices.append(devices_of(source))
        source = detached(run_stage(probe.stage, index, source, subject.shared))
    subject.progress("tracing memory", steps=0, more=len(probes))
    for index, probe in reversed(list(enumerate(probes))):
        subject.progress("tracing memory")
        probe.output_gradients = gradients and replace(gradients, held=returned[index + 1])
        if is_whole:
            held = [holder.leaf_gradients for holder in probes]
            probe.uses = LeafUses.of(leaves, index, index, held)
        for phase in probe.phases(on_the_host[index], device, devices[index]):
            yield partial(_blamed, phase, probe.stage, index, on_the_host[index])
        on_the_host.pop()
        gradients = probe.input_gradients


def _on_the_host(state: State) -> State:
    """The same values off the device: all states together might not fit there."""
    host = (torch.device("cpu"),) * len(state)
    return state if devices_of(state) == host else copied(state, host)


def _blamed(phase: Callable[[], None], stage: ChainStage, index: int, source: State) -> None:
    with blaming(stage, index, source):
        phase()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainAccountant:
    """Computes the account of a chain, from what is in memory beside each of its stages.

    Attributes:
        standing: Bytes that stand through the whole step.
        states: Inputs of all stages, and the last output.
        gradients: How theirs lie.
        skips: Tensors that several states share.
        tied: Gradients that several stages sum.
        left: Bytes that the graph of every stage and those behind it holds once they have gone
            backwards, for parts that get no gradient; at last 0.
        has_loss: Whether the last stage is the loss.
    """

    standing: int
    states: Sequence[NumberedState]
    gradients: Sequence[Gradients]
    skips: tuple[Skip, ...]
    tied: TiedGradients
    left: Sequence[int]
    has_loss: bool

    @classmethod
    def of(
        cls,
        observed: Sequence[ObservedStage],
        memories: Sequence[StageMemory],
        subject: Subject,
        autocast: Autocast | None,
    ) -> Self:
        """Return the accountant of stages that were looked at, whether or not they were timed."""
        states = [observed[0].given, *(seen.result for seen in observed)]
        gradients = [*(stage.input_gradients for stage in memories), memories[-1].output_gradients]
        has_loss = observed[-1].stage.is_loss
        inputs = slice(0, len(observed) + (not has_loss))  # of every stage, the loss's included
        wanting = tuple(tensor for tensor in subject.source if tensor.requires_grad)
        return cls(
            standing=subject.counted_bytes + lasting_bytes(observed, memories, autocast, wanting),
            states=states,
            gradients=gradients,
            skips=shared_skips(states[inputs], gradients[inputs]),
            tied=TiedGradients.of(
                [seen.leaves for seen in observed], [stage.leaf_gradients for stage in memories]
            ),
            left=[*accumulate((s.left_bytes for s in reversed(memories)), initial=0)][::-1],
            has_loss=has_loss,
        )

    def account(
        self, observed: Sequence[ObservedStage], memories: Sequence[StageMemory]
    ) -> Account:
        """Return the costs of every stage; without a measured loss there is an assumed one."""
        costs = [
            seen.cost(
                self.kept(memory, index, index),
                gradient_bytes=self.gradient_bytes(index + 1),
                dropping_bytes=seen.dropping_bytes(memory) + self.standing,
                again_bytes=self.waiting(index) + self.left[index + 1],
                forward_operator=memory.forward_operator,
                backward_operator=memory.backward_operator,
            )
            for index, (seen, memory) in enumerate(zip(observed, memories, strict=True))
        ]
        if not self.has_loss:
            loss = AssumedLoss.of(self.gradients[-1].layouts)
            costs.append(StageCost.of_assumed(loss, self.standing))
        return Account(
            input_bytes=self.states[0].bytes,
            input_gradient_bytes=self.gradient_bytes(0),
            stages=tuple(costs),
            skips=(*self.skips, *self.tied.skips),
        )

    def gradient_bytes(self, state: int) -> int:
        """Return the bytes of a state's gradient, and of what waits beside it."""
        return self.gradients[state].allocated_bytes + self.tied.beside(state)

    def waiting(self, stage: int) -> int:
        """Return the bytes of the model's output that the caller holds beside a stage."""
        output = self.states[-2] if self.has_loss else self.states[-1]
        return output.bytes_outside(self.states[stage])

    def kept(self, memory: StageMemory, first: int, last: int) -> tuple[int, int, int]:
        """Return what keeping stages `first` to `last` saves, and both overheads, in bytes.

        That of the backward is below 0 where the output is saved, but gone before this runs.
        """
        held, saved = self.states[first].bytes, memory.kept_bytes
        recording = memory.kept_peak - held - saved
        backward = memory.backward_peak - held - saved
        backward -= self.gradients[first].allocated_bytes + self.gradients[last + 1].allocated_bytes
        backward -= memory.summed_bytes or 0
        backward += sum(s.gradient_bytes for s in self.skips if s.first <= first <= last < s.last)
        backward += self.left[last + 1]
        backward += self.waiting(first)  # below 0 where the graph lacks the output, which is saved
        made = sum(s.bytes for s in self.skips if first < s.first <= last + 1 <= s.last)
        is_seen = memory.summed_bytes is not None
        sums = 0 if is_seen else max(self.tied.sums[first : last + 1])
        return (
            max(saved, made),
            max(recording, 0) + self.standing,
            backward + self.standing + sums,
        )


def lasting_bytes(
    observed: Sequence[ObservedStage],
    memories: Sequence[StageMemory],
    autocast: Autocast | None,
    others: State = (),
) -> int:
    """Return the bytes that stages leave standing through the whole step.

    That is what forwards cannot drop, the value and the gradient of the loss, and autocast's copies
    of leaves, those of `others` included.
    """
    total = autocast_copies_bytes(others, autocast)
    for seen, memory in zip(observed, memories, strict=True):
        total += memory.copied_bytes
        if seen.stage.is_loss:
            total += seen.made_bytes + memory.output_gradients.allocated_bytes
        else:
            total += max(memory.dropped_bytes - seen.made_bytes, 0)
    return total
