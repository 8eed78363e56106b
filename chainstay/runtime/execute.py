"""A model that trains by a plan: the same numbers, bit for bit, in less memory."""

from __future__ import annotations

import torch
from torch import nn

from chainstay.errors import PlanMismatchError, UnsupportedModelError
from chainstay.runtime.chain import Chain, TensorLayout
from chainstay.runtime.environment import Traits
from chainstay.runtime.liveness import plan_execution
from chainstay.runtime.mode import Mode
from chainstay.runtime.recompute import Run
from chainstay.schedule import Schedule

__all__ = ["PlannedChain"]


class PlannedChain(nn.Module):
    """A chain of stages that forgets and recomputes activations as a schedule says.

    Its output hangs on an ordinary autograd graph: ``backward``, ``autograd.grad``,
    ``retain_graph``, gradient accumulation and several forwards before a backward all work.
    The modules inside are the model's own objects under their own names, so that
    parameters are shared with the model and ``state_dict`` keys are the same. Without
    gradients (``torch.no_grad``, or nothing that requires any) it runs plainly.

    The plan's memory counts the input and the output as held until the step ends, so the
    usual loop (``output = planned(x)``, ``loss(output).backward()``) stays within it.

    A plan holds for the input's layout, the training flags and the autocast settings that
    it was measured with; in another mode, evaluate under ``torch.no_grad``.

    Args:
        chain: What to run; see `chainstay.runtime.measure`.
        traits: Of each stage, as found when it was measured.
        schedule: For the chain's stages and the loss, valid under free discards (so under
            any). Operations on the loss are the user's: the plan assumes that the loss
            follows the forward at once, and the loss's backward its forward.

    Raises:
        PlanMismatchError: The schedule is for another number of stages.
        InvalidScheduleError: An operation lacks what it needs.
        UnsupportedModelError: A stage has the name of an attribute of this class.
    """

    def __init__(self, chain: Chain, traits: tuple[Traits, ...], schedule: Schedule) -> None:
        super().__init__()
        self._chain = chain
        self._traits = traits
        self._plan = plan_execution(_matching(schedule, chain), len(chain.stages))
        self.training = chain.is_training
        for name, module in chain.children:
            if hasattr(self, name):
                raise UnsupportedModelError(
                    f"stage {name!r} has the name of an attribute of {type(self).__name__}; "
                    "give it another name"
                )
            self.add_module(name, module)

    # A traced plan gives silently wrong gradients.
    @torch.compiler.disable(recursive=True)  # type: ignore[untyped-decorator]
    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        """The model's output.

        Raises:
            PlanMismatchError: Gradients are wanted, and the input or the mode is not like
                that which the plan was measured with, so that its memory is not known; or
                a stage was replaced.
        """
        if not isinstance(activation, torch.Tensor):
            raise PlanMismatchError(
                f"the input is a {type(activation).__name__}, must be one tensor "
                f"{self._chain.layout}"
            )
        self._require_own_stages()
        if not self._wants_gradients(activation):
            for stage in self._chain.stages:
                activation = stage(activation)
            return activation
        self._require_as_measured(activation)
        stages = self._chain.stages
        return Run(stages, self._traits, self._plan, pending=len(stages) - 1).forward(activation)

    def _require_own_stages(self) -> None:
        if tuple(self._modules.items()) != self._chain.children:
            ours = dict(self._chain.children)
            changed = sorted(
                name
                for name in ours.keys() | self._modules.keys()
                if ours.get(name) is not self._modules.get(name)
            )
            raise PlanMismatchError(
                f"module {', '.join(changed)} was replaced, added or removed after planning; "
                "change the model itself, measure and plan again"
            )

    def _require_as_measured(self, activation: torch.Tensor) -> None:
        layout = TensorLayout.of(activation)
        if layout != self._chain.layout:
            raise PlanMismatchError(
                f"the plan was measured for an input {self._chain.layout}, got {layout}; "
                "measure and plan again with such a sample, or run it under torch.no_grad()"
            )
        if activation.is_inference():
            raise PlanMismatchError(
                "the input was made under torch.inference_mode(), so that autograd cannot save "
                "it; pass a clone of it made outside"
            )
        mode = Mode.now(self._chain.stages, activation.device)
        if mode != self._chain.mode:
            raise PlanMismatchError(
                "the plan was measured with "
                f"{self._chain.mode.difference(mode, self._chain.stages)}; measure and plan "
                "again in this mode, or run under torch.no_grad()"
            )

    def _wants_gradients(self, activation: torch.Tensor) -> bool:
        parts = (part for stage in self._chain.stages for part in stage.parts)
        has_functions = not all(isinstance(part, nn.Module) for part in parts)
        return torch.is_grad_enabled() and (
            activation.requires_grad
            or has_functions
            or any(parameter.requires_grad for parameter in self.parameters())
        )


def _matching(schedule: Schedule, chain: Chain) -> Schedule:
    """`schedule`, if it is for this chain and its loss."""
    planned = 1 + max((op.stage for op in schedule), default=-1)
    needed = len(chain.stages) + 1
    if planned != needed:
        raise PlanMismatchError(
            f"the schedule is for {planned} stages, the model has {needed} "
            f"({len(chain.stages)} and the loss); solve for the profile of this model"
        )
    return schedule
