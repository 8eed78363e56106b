"""A model that trains by a plan: the same numbers, bit for bit, in less memory."""

from __future__ import annotations

import torch
from torch import nn

from chainstay.errors import PlanMismatchError
from chainstay.runtime.environment import Traits
from chainstay.runtime.liveness import plan_execution
from chainstay.runtime.recompute import Run
from chainstay.runtime.stages import Chain, TensorLayout
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

    A stage that is a plain function must not own buffers or draw from generators of its
    own: nobody could put them back when it runs again.

    Args:
        chain: What to run; see `chainstay.runtime.measure`.
        traits: Of each stage, as found when it was measured.
        schedule: For the chain's stages and the loss. Operations on the loss are the
            user's: the plan assumes that the loss follows the forward at once.

    Raises:
        PlanMismatchError: The schedule is for another number of stages.
        InvalidScheduleError: An operation lacks what it needs.
        UnsupportedModelError: The schedule drops an input whose saved data stays.
    """

    def __init__(self, chain: Chain, traits: tuple[Traits, ...], schedule: Schedule) -> None:
        super().__init__()
        for name, module in chain.children:
            self.add_module(name, module)
        self._chain = chain
        self._traits = traits
        self._plan = plan_execution(_matching(schedule, chain), len(chain.stages))

    # A traced plan gives silently wrong gradients.
    @torch.compiler.disable(recursive=True)  # type: ignore[untyped-decorator]
    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        """The model's output.

        Raises:
            PlanMismatchError: Gradients are wanted, and the input is not like the sample
                that the plan was measured with, so that its memory is not known.
        """
        if not self._wants_gradients(activation):
            for stage in self._chain.stages:
                activation = stage(activation)
            return activation
        layout = TensorLayout.of(activation)
        if layout != self._chain.layout:
            raise PlanMismatchError(
                f"the plan was measured for an input {self._chain.layout}, got {layout}; "
                "measure and plan again with such a sample, or run it under torch.no_grad()"
            )
        stages = self._chain.stages
        return Run(stages, self._traits, self._plan, pending=len(stages) - 1).forward(activation)

    def _wants_gradients(self, activation: torch.Tensor) -> bool:
        has_functions = len(self._chain.children) == 0
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
