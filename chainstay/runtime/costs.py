"""From a running chain to a `ChainProfile`: each stage's times and bytes.

Every stage is run alone, so that only one stage's graph is alive at once. Beyond the
plain reading of the profile's fields:

* The caller holds the model's output until the step ends, as ``output = model(x)`` in a
  training loop does: it is in the overheads of every stage but the loss, whose input it is.
* Some bytes stand through the whole step: buffers and random states saved for stages that
  may run again, what a dropping forward cannot drop, the loss value and its seed gradient.
  They are in every stage's overheads.
* So do autocast's copies of weights, and for a while gradients of tied weights; see `sharing`.
* Parameters, their gradients and optimizer state are the caller's and count nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.profiles import ChainProfile, Stage
from chainstay.runtime.clock import time_stage
from chainstay.runtime.environment import (
    Environment,
    Traits,
    observe_traits,
    require_repeatable,
)
from chainstay.runtime.fusing import blaming, run_stage
from chainstay.runtime.memory import allocated_bytes, rounded_bytes, trace_phases
from chainstay.runtime.mode import Autocast
from chainstay.runtime.probe import StageMemory, StageProbe, leaves_of
from chainstay.runtime.sharing import autocast_copies_bytes, tied_gradients_bytes
from chainstay.runtime.stages import ChainStage

__all__ = ["ObservedStage", "assemble_profile", "observe_chain", "trace_chain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStage:
    """What is seen of a stage without tracing its memory; times in ns, sizes in bytes."""

    stage: ChainStage
    traits: Traits
    leaves: tuple[torch.Tensor, ...]
    forward_time: int
    backward_time: int
    output_bytes: int
    environment_bytes: int


def observe_chain(
    stages: tuple[ChainStage, ...], loss: ChainStage | None, source: torch.Tensor, repeats: int
) -> list[ObservedStage]:
    """Run the chain once, stage by stage, and time each stage on the way.

    Raises:
        UnsupportedModelError: The loss gives something else than one number, the model
            integers, or a stage cannot be run again.
    """
    observed = []
    known = {id(each) for stage in stages for part in stage.modules() for each in part.parameters()}
    for index, stage in enumerate(stages if loss is None else (*stages, loss)):
        with blaming(stage, index, source):
            traits = observe_traits(stage, source)
        environment = Environment.capture(traits, source.device)
        environment_bytes = environment.size_on(source.device)
        output = run_stage(stage, index, source)
        if index == len(stages) - 1:
            _require_differentiable(output)
        leaves = tuple(leaf for leaf in leaves_of(output) if leaf is not source)
        following = _detached(output)
        del output  # its graph would be alive beside the one being timed
        with blaming(stage, index, source):
            if stage.is_loss:
                _require_number(following)
            else:
                _require_known(leaves, known, stage)
                require_repeatable(stage, source, following, environment)
            forward_time, backward_time = time_stage(stage, source, leaves, repeats)
        observed.append(
            ObservedStage(
                stage=stage,
                traits=traits,
                leaves=leaves,
                forward_time=forward_time,
                backward_time=backward_time,
                output_bytes=allocated_bytes(following),
                environment_bytes=environment_bytes,
            )
        )
        source = following
    return observed


def trace_chain(observed: Sequence[ObservedStage], source: torch.Tensor) -> list[StageMemory]:
    """Memory of every stage, run alone on what the stages before it give."""
    probes = [StageProbe(stage=each.stage, leaves=each.leaves) for each in observed]
    with closing(_phases(probes, source)) as phases:  # a failing stage leaves no gradient behind
        traces = iter(trace_phases(phases, source.device))
    return [probe.memory(traces) for probe in reversed(probes)][::-1]


def _phases(probes: Sequence[StageProbe], source: torch.Tensor) -> Generator[Callable[[], None]]:
    """Every stage's phases, the last stage first: its gradient's layout is the one below's."""
    device = source.device
    parked = []
    for probe in probes:
        parked.append(_detached(source, to="cpu"))  # all activations might not fit on the device
        source = _detached(run_stage(probe.stage, len(parked) - 1, source))
    gradient = None
    for index, probe in reversed(list(enumerate(probes))):
        probe.output_gradient = gradient
        for phase in probe.phases(parked[index], device):
            yield partial(_blamed, phase, probe.stage, index, parked[index])
        parked.pop()
        gradient = probe.input_gradient


def _blamed(phase: Callable[[], None], stage: ChainStage, index: int, source: torch.Tensor) -> None:
    with blaming(stage, index, source):
        phase()


def assemble_profile(
    observed: Sequence[ObservedStage],
    memories: Sequence[StageMemory],
    source: torch.Tensor,
    autocast: Autocast | None,
) -> ChainProfile:
    """The profile; without a measured loss a free one is put at its end."""
    device = source.device
    leaves = [each.leaves for each in observed]
    tied = tied_gradients_bytes(leaves)
    casts = [*leaves, (source,)] if source.requires_grad else leaves
    standing = sum(map(_standing_bytes, observed, memories))
    standing += autocast_copies_bytes(casts, autocast)
    inputs = [rounded_bytes(source.nbytes, device), *(each.output_bytes for each in observed)]
    gradients = [memories[0].input_gradient_bytes]
    gradients += [memory.output_gradient_bytes for memory in memories]
    last = max(index for index, each in enumerate(observed) if not each.stage.is_loss)
    stages = []
    for index, (each, memory) in enumerate(zip(observed, memories, strict=True)):
        handed_out = 0 if each.stage.is_loss else observed[last].output_bytes
        held, saved = inputs[index], memory.kept_bytes
        forward = max(
            memory.kept_peak - held - saved, memory.dropped_peak - held - each.output_bytes, 0
        )
        backward = memory.backward_peak - held - saved - gradients[index] - gradients[index + 1]
        if index == last:  # its saved bytes have the output already, which the graph may lack
            backward += handed_out
        else:
            backward = max(backward, 0) + handed_out
        stages.append(
            Stage(
                name=each.stage.name,
                forward_time=each.forward_time,
                backward_time=each.backward_time,
                output_bytes=each.output_bytes,
                saved_bytes=saved,
                gradient_bytes=gradients[index + 1],
                forward_overhead_bytes=sum(
                    (forward, standing, each.environment_bytes, handed_out, tied[index][0])
                ),
                backward_overhead_bytes=max(backward, 0) + standing + tied[index][1],
            )
        )
    if not observed[-1].stage.is_loss:
        stages.append(
            Stage(name="loss", forward_overhead_bytes=standing, backward_overhead_bytes=standing)
        )
    return ChainProfile(
        input_bytes=inputs[0], input_gradient_bytes=gradients[0], stages=tuple(stages)
    )


def _standing_bytes(each: ObservedStage, memory: StageMemory) -> int:
    """Bytes of this stage that a plan holds through the whole step."""
    if each.stage.is_loss:
        return each.output_bytes + memory.output_gradient_bytes
    undroppable = max(memory.dropped_bytes - each.output_bytes, 0)
    return undroppable + each.environment_bytes


def _require_differentiable(output: torch.Tensor) -> None:
    if not (output.is_floating_point() or output.is_complex()):
        raise UnsupportedModelError(
            f"the model's output is of type {output.dtype}, which has no gradient; leave out "
            "the stages that turn it into integers"
        )


def _require_number(loss: torch.Tensor) -> None:
    if loss.numel() != 1 or not loss.is_floating_point():
        raise UnsupportedModelError(
            f"the loss returns a tensor of shape {tuple(loss.shape)} and type {loss.dtype}, must "
            "return one real number; reduce it with .mean() or .sum()"
        )


def _require_known(leaves: tuple[torch.Tensor, ...], known: set[int], stage: ChainStage) -> None:
    """A module out of sight may change buffers and be switched between training and not."""
    hidden = [leaf for leaf in leaves if isinstance(leaf, nn.Parameter) and id(leaf) not in known]
    if hidden:
        raise UnsupportedModelError(
            f"stage {stage.name} uses parameters of a module that the chain does not know, one "
            f"of shape {tuple(hidden[0].shape)}; wrap it in an nn.Module that registers it"
        )


def _detached(activation: torch.Tensor, to: str | None = None) -> torch.Tensor:
    """The same values without the graph that made them, if wanted on another device."""
    return activation.detach().to(to or activation.device).requires_grad_(activation.requires_grad)
