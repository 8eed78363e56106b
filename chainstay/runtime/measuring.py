"""The front of measuring: a model and a sample in, a `MeasuredChain` out."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from chainstay.errors import PlanMismatchError, UnsupportedModelError
from chainstay.offloading import OffloadSolution
from chainstay.runtime.costs import Subject
from chainstay.runtime.execute import PlannedChain
from chainstay.runtime.executor import matching
from chainstay.runtime.fusing import fuse_stages
from chainstay.runtime.measurement import (
    Measurement,
    measure_subject,
    measuring,
    require_loss,
    require_repeats,
)
from chainstay.runtime.memory import require_measurable
from chainstay.runtime.mode import titled_modules
from chainstay.runtime.progress import progress_bar
from chainstay.runtime.stages import ChainStage, Children, Model, TensorPart, split_model
from chainstay.runtime.states import detached
from chainstay.runtime.transfers import Engine, Transport, engine_for, program_of
from chainstay.schedule import Schedule
from chainstay.solution import Solution

__all__ = ["MeasuredChain", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredChain(Measurement):
    """A model and what it costs.

    Attributes:
        chain: The model as stages, some of its own fused.
        account: Costs of ``len(stages) + 1`` stages; the last one is the loss.
        traits: How each stage's forward touches the world, one per stage.
        children: The model's modules under their own names.
    """

    children: Children

    @property
    def stages(self) -> tuple[ChainStage, ...]:
        """The stages that a schedule speaks about, the loss excluded."""
        return self.chain.stages

    def planned(
        self,
        plan: Schedule | Solution,
        *,
        engine: Engine | None = None,
        host_budget: int | None = None,
    ) -> PlannedChain:
        """The model as a module that trains by `plan`; see `PlannedChain`.

        Args:
            plan: Made under any discards: ``"table1"``, ``"tape"`` or ``"free"``; or what
                `chainstay.solve_offload` makes of `offload_profile`, or
                `chainstay.solve_hybrid` of `movable_profile`.
            engine: Makes the transfers of such a plan; by default, that of the device.
            host_budget: Of the default engine: bytes of host memory, ``None`` for no limit.

        Raises:
            PlanMismatchError: The plan is for another number of stages, or no plan.
            HostBudgetError: What is away at once needs more host memory.
            InvalidScheduleError: An operation of the plan lacks what it needs.
            UnsupportedModelError: A stage has the name of an attribute of `PlannedChain`.
        """
        schedule: object = plan.schedule if isinstance(plan, Solution) else plan
        if not isinstance(schedule, Schedule):
            raise PlanMismatchError(
                f"the plan is a {type(plan).__name__}, must be a Schedule or a Solution; "
                "get one from chainstay.solve_measured(measured, budget)"
            )
        transport = None
        if isinstance(plan, OffloadSolution):
            engine = engine or engine_for(
                self.chain.device, link=plan.link, host_budget=host_budget
            )
            schedule = matching(program_of(plan), self.chain)
            transport = Transport.of(plan, self.profile, self.overheads_for(schedule), engine)
        return PlannedChain(self.chain, self.children, self.traits, schedule, transport)


def measure(  # noqa: PLR0913  # all but the model and the sample have defaults
    model: Model,
    sample: torch.Tensor,
    *,
    loss: Callable[[torch.Tensor], torch.Tensor] | None = None,
    repeats: int = 5,
    progress: bool = True,
    cache: str | os.PathLike[str] | None = None,
) -> MeasuredChain:
    """Measure time and memory of every stage of `model` on `sample`.

    The model is run for real, stage by stage, and left as it was: parameters, gradients,
    buffers, training flags and random states, even when a stage fails. Hooks that the
    user registered on modules or parameters do run. The plan holds for the mode (training
    flags, autocast) that the model is in now.

    Args:
        model: A `torch.nn.Sequential`, or a list or tuple of stages, each tensor in,
            tensor out.
        sample: An input like those to come: same shape, type, device and ``requires_grad``.
        loss: From the output to a scalar; holds its targets itself. Measured as the last
            stage. Without it the last stage is free, and the loss's memory is yours to add.
        repeats: The least number of times that each stage is timed, after one that warms up;
            it goes on until the time of a step is known to 2 %, up to four times as often.
        progress: Show a bar on stderr, if that is a terminal and it takes over a second.
        cache: A directory for what was measured, one JSON file per model, call and machine;
            what is found there is not measured again. By default there is none.

    Raises:
        UnsupportedModelError: The model is not such a chain; the text names the stage.
        ValueError: `repeats` is no whole number or less than 1.

    Complexity:
        About ``repeats + 6`` steps of plain training, with one stage's graph at a time.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.Linear(4, 1))
        >>> measured = measure(model, torch.zeros(2, 8), loss=torch.Tensor.mean)
        >>> [(stage.name, stage.output_bytes) for stage in measured.profile.stages]
        [('Linear0', 32), ('Linear1', 8), ('loss', 4)]
    """
    require_repeats(repeats)
    single = split_model(model)
    _require_sample(sample)
    _require_one_device(single, sample)
    require_measurable(sample.device)
    require_loss(loss)
    source = detached((sample,))
    modules = _modules_of(single, loss)
    with progress_bar(wanted=progress) as bar, measuring(modules, sample.device):
        stages = fuse_stages(single, source)
        subject = Subject(
            stages=stages if loss is None else (*stages, _loss_stage(loss)),
            source=source,
            shared=(),
            device=sample.device,
            progress=bar,
        )
        measurement = measure_subject(subject, titled_modules(stages), repeats, cache)
    return MeasuredChain(
        chain=measurement.chain,
        children=Children.of(model),
        account=measurement.account,
        traits=measurement.traits,
    )


def _loss_stage(loss: Callable[[torch.Tensor], torch.Tensor]) -> ChainStage:
    return ChainStage("loss", (TensorPart(loss),), is_loss=True)


def _modules_of(stages: Sequence[ChainStage], loss: object) -> list[nn.Module]:
    """Every module that measuring runs, the loss's included."""
    modules = [module for stage in stages for module in stage.modules()]
    return modules + list(loss.modules()) if isinstance(loss, nn.Module) else modules


def _require_sample(sample: object) -> None:
    if not isinstance(sample, torch.Tensor):
        raise UnsupportedModelError(
            f"the sample is a {type(sample).__name__}, must be one tensor; pack several inputs "
            "into one, or close the stages over those that stay the same"
        )
    if sample.layout != torch.strided:
        raise UnsupportedModelError(
            f"the sample's layout is {sample.layout}, must be torch.strided; make it dense "
            "with .to_dense()"
        )
    if sample.is_inference() or torch.is_inference_mode_enabled():
        raise UnsupportedModelError(
            "the sample or this call is under torch.inference_mode(), where no gradient can be "
            "measured; call outside, with a sample made outside"
        )


def _require_one_device(stages: tuple[ChainStage, ...], sample: torch.Tensor) -> None:
    for index, stage in enumerate(stages):
        for module in stage.modules():
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                if tensor.device != sample.device:
                    raise UnsupportedModelError(
                        f"the sample is on {sample.device}, but stage {index} ({stage.name}) has "
                        f"parameters or buffers on {tensor.device}; move both to one device"
                    )
