"""The front of measuring: a model and a sample in, a `MeasuredChain` out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import nn

from chainstay.errors import PlanMismatchError, UnsupportedModelError
from chainstay.profiles import ChainProfile
from chainstay.runtime.chain import Chain, TensorLayout
from chainstay.runtime.costs import assemble_profile, observe_chain, trace_chain
from chainstay.runtime.environment import Traits
from chainstay.runtime.execute import PlannedChain
from chainstay.runtime.fusing import fuse_stages
from chainstay.runtime.memory import require_measurable
from chainstay.runtime.mode import Mode
from chainstay.runtime.preserve import undisturbed
from chainstay.runtime.stages import (
    ChainStage,
    Model,
    children_of,
    split_model,
)
from chainstay.schedule import Schedule
from chainstay.solution import Solution

__all__ = ["MeasuredChain", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredChain:
    """A model and what it costs.

    Attributes:
        chain: The model as stages, some of its own fused.
        profile: Costs of ``len(stages) + 1`` stages; the last one is the loss.
        traits: How each stage's forward touches the world, one per stage.
    """

    chain: Chain
    profile: ChainProfile
    traits: tuple[Traits, ...]

    @property
    def stages(self) -> tuple[ChainStage, ...]:
        """The stages that a schedule speaks about, the loss excluded."""
        return self.chain.stages

    def planned(self, plan: Schedule | Solution) -> PlannedChain:
        """The model as a module that trains by `plan`; see `PlannedChain`.

        Args:
            plan: Made under any discards: ``"table1"``, ``"tape"`` or ``"free"``.

        Raises:
            PlanMismatchError: The plan is for another number of stages, or no plan.
            InvalidScheduleError: An operation of the plan lacks what it needs.
            UnsupportedModelError: A stage has the name of an attribute of `PlannedChain`.
        """
        schedule: object = plan.schedule if isinstance(plan, Solution) else plan
        if not isinstance(schedule, Schedule):
            raise PlanMismatchError(
                f"the plan is a {type(plan).__name__}, must be a Schedule or a Solution; "
                "get one from chainstay.solve_chain(measured.profile, budget)"
            )
        return PlannedChain(self.chain, self.traits, schedule)


def measure(
    model: Model,
    sample: torch.Tensor,
    *,
    loss: Callable[[torch.Tensor], torch.Tensor] | None = None,
    repeats: int = 5,
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
        repeats: Timed runs of each stage, after one that warms up; the least time counts.

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
    _require_repeats(repeats)
    single = split_model(model)
    _require_sample(sample)
    _require_one_device(single, sample)
    require_measurable(sample.device)
    _require_callable(loss)
    mode = Mode.now(single, sample.device)
    source = sample.detach().requires_grad_(sample.requires_grad)
    with (
        undisturbed(_modules_of(single, loss), sample.device),
        _current(sample.device),
        torch.enable_grad(),
    ):
        stages = fuse_stages(single, source)
        loss_stage = ChainStage("loss", (loss,), is_loss=True) if loss is not None else None
        observed = observe_chain(stages, loss_stage, source, repeats)
        memories = trace_chain(observed, source)
    chain = Chain(
        children=children_of(model),
        stages=stages,
        layout=TensorLayout.of(sample),
        mode=mode,
        is_training=model.training if isinstance(model, nn.Sequential) else any(mode.training),
    )
    return MeasuredChain(
        chain=chain,
        profile=assemble_profile(observed, memories, source, mode.autocast),
        traits=tuple(each.traits for each in observed if not each.stage.is_loss),
    )


def _modules_of(stages: Sequence[ChainStage], loss: object) -> list[nn.Module]:
    """Every module that measuring runs, the loss's included."""
    modules = [module for stage in stages for module in stage.modules()]
    return modules + list(loss.modules()) if isinstance(loss, nn.Module) else modules


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Makes a CUDA device the current one, whose stream is timed."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _require_repeats(repeats: object) -> None:
    if not isinstance(repeats, int) or repeats < 1:
        raise ValueError(f"repeats is {repeats!r}, must be a whole number, at least 1")


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


def _require_callable(loss: object) -> None:
    if isinstance(loss, type):
        raise UnsupportedModelError(
            f"the loss is the class {loss.__name__}, must be a function or an instance; write "
            f"lambda output: {loss.__name__}()(output, targets)"
        )
    if loss is not None and not callable(loss):
        raise UnsupportedModelError(
            f"the loss is a {type(loss).__name__}, must be callable: from the model's output "
            "to one number"
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
