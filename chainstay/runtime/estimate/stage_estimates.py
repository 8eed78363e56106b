"""Every stage of a chain run alone on stand-ins: what it holds, what it takes.

The definitions are those of `costs`: stages go through the same phases as when they are
measured for real, and the profile is put together by the same code. Differences:

* Of stages that are alike, as a network's repeated blocks are, one is run through the phases.
* Random states are in a GPU's host memory, so that saving them costs nothing.
* Nothing has a value: that a stage, or a part of it, gives the same when it runs again is taken
  on trust.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from chainstay.runtime.estimate.devices import DeviceModel
from chainstay.runtime.estimate.observer import WatchedPhase, watch
from chainstay.runtime.measures.boundary import Gradients
from chainstay.runtime.measures.clock import StageTime
from chainstay.runtime.measures.costs import ObservedStage, Subject, returned_tensors
from chainstay.runtime.measures.probe import StageMemory, StageProbe, leaves_of
from chainstay.runtime.measures.shared_bytes import LeafGradient, LeafUses
from chainstay.runtime.stage.chain_stage import likeness_of
from chainstay.runtime.stage.lineage import Lineage
from chainstay.runtime.stage.loss_stage import require_differentiable, require_number
from chainstay.runtime.stage.stage_errors import blaming, run_stage
from chainstay.runtime.stage.states import State, detached, is_among

_FORWARD, _BACKWARD = 2, 4
"""The phases of a `StageProbe` that a training step consists of."""


def estimate_stages(
    subject: Subject, device: DeviceModel, mode: FakeTensorMode
) -> tuple[list[ObservedStage], list[StageMemory]]:
    """Costs of every stage; call it under the stand-ins' mode, with gradients enabled.

    Raises:
        UnsupportedModelError: The loss gives something else than one number, the model
            integers, or a stage fails.
    """
    observed, states = _observe(subject)
    probed = _probe_all(subject, states, observed, device, mode)
    times = [time for _, time in probed]
    timed = [replace(seen, time=time) for seen, time in zip(observed, times, strict=True)]
    return timed, [memory for memory, _ in probed]


def _observe(subject: Subject) -> tuple[list[ObservedStage], list[State]]:
    """Run the chain once; return what is seen of every stage but its times, and its input."""
    held = (value for value in subject.shared if isinstance(value, torch.Tensor))
    observed, states = [], [subject.source]
    lineage = Lineage.beside(held, subject.device)
    lineage.add(subject.source)
    last = len(subject.model_stages) - 1
    for index, stage in enumerate(subject.stages):
        source = states[-1]
        output = run_stage(stage, index, source, subject.shared)
        if stage.is_loss:
            require_number(output[0])
        elif index == last:
            require_differentiable(output)
        lineage.add(output, source)
        written = stage.effects.written
        observed.append(
            ObservedStage(
                stage=stage,
                effects=stage.effects,
                leaves=tuple(leaf for leaf in leaves_of(output) if not is_among(leaf, source)),
                time=StageTime(0, 0),
                given=lineage.states[index],
                result=lineage.states[index + 1],
                environment_bytes=sum(subject.shared[position].nbytes for position in written),
            )
        )
        states.append(detached(output))
    return observed, states


def _probe_all(
    subject: Subject,
    states: Sequence[State],
    observed: Sequence[ObservedStage],
    device: DeviceModel,
    mode: FakeTensorMode,
) -> list[tuple[StageMemory, StageTime]]:
    """The last stage first: its gradients lie as the one below gets them."""
    known: dict[Hashable, tuple[StageMemory, StageTime]] = {}
    probed: list[tuple[StageMemory, StageTime]] = []
    held: list[tuple[LeafGradient, ...]] = [()] * len(subject.stages)
    leaves, returned = [seen.leaves for seen in observed], returned_tensors(observed)
    gradients: Gradients | None = None
    for index, stage in reversed(list(enumerate(subject.stages))):
        source = states[index]
        gradients = gradients and replace(gradients, held=returned[index + 1])
        uses = LeafUses.of(leaves, index, index, held, has_values=False)
        likeness = (
            likeness_of(stage.parts, source, subject.shared),
            gradients,
            tuple(map(uses.of_leaf, leaves[index])),
        )
        if likeness not in known:
            probe = StageProbe(
                stage=stage,
                shared=subject.shared,
                leaves=leaves[index],
                output_gradients=gradients,
                uses=uses,
            )
            with blaming(stage, index, source):
                phases = watch(probe.phases(source, subject.device), device, mode)
            known[likeness] = _probed(probe, phases, device)
        probed.append(known[likeness])
        memory, _ = known[likeness]
        gradients, held[index] = memory.input_gradients, memory.leaf_gradients
    return probed[::-1]


def _probed(
    probe: StageProbe, phases: Sequence[WatchedPhase], device: DeviceModel
) -> tuple[StageMemory, StageTime]:
    memory = probe.memory(phase.memory for phase in phases)
    # What makes the gradients that enter the backward, and their root, is the stage behind.
    waited = () if probe.uses is None else (leaf.nbytes for leaf in probe.uses.behind)
    made = (0, *(size for size in memory.output_gradients.sizes if size), *waited)
    filling = (device.kernel_ns(flops=0, throughput=1, moved_bytes=size) for size in made)
    forward, backward = phases[_FORWARD], phases[_BACKWARD]
    forward_time = device.stage_ns(kernels_ns=forward.kernels_ns, operators=forward.operators)
    backward_time = device.stage_ns(
        kernels_ns=max(backward.kernels_ns - sum(filling), 0),
        operators=max(backward.operators - len(made), 0),
    )
    return memory, StageTime(forward_time, backward_time, kept=forward_time)
