"""A model that trains by a plan: the same numbers, bit for bit, in less memory."""

from __future__ import annotations

import torch
from torch import nn

from chainstay.errors import PlanMismatchError, UnsupportedModelError
from chainstay.runtime.chain import Chain
from chainstay.runtime.environment import Traits
from chainstay.runtime.executor import Executor
from chainstay.runtime.stages import Children
from chainstay.runtime.states import State
from chainstay.runtime.transfers.transport import Transport
from chainstay.schedule import Schedule

__all__ = ["PlannedChain"]


class PlannedChain(nn.Module):
    """A chain of stages that forgets, recomputes or offloads activations as a schedule says.

    Its output hangs on an ordinary autograd graph: ``backward``, ``autograd.grad``,
    ``retain_graph``, gradient accumulation and several forwards before a backward all work.
    The modules inside are the model's own objects under their own names, so that
    parameters are shared with the model and ``state_dict`` keys are the same. Without
    gradients (``torch.no_grad``, or nothing that requires any) it runs plainly.

    The plan's memory counts the input and the output as held until the step ends, so the
    usual loop (``output = planned(x)``, ``loss(output).backward()``) stays within it.

    A plan holds for the input's layout, the training flags and the autocast settings that
    it was measured with; in another mode, evaluate under ``torch.no_grad``.

    With `transport`, `close` stops its transfers and lets host memory go; without a call, that
    happens with the chain's end.

    Args:
        chain: What to run; see `chainstay.runtime.measure`.
        children: The model's modules under their own names.
        traits: Of each stage, as found when it was measured.
        schedule: As for `Executor`.
        transport: Likewise.

    Raises:
        PlanMismatchError: The schedule is for another number of stages.
        InvalidScheduleError: An operation lacks what it needs.
        UnsupportedModelError: A stage has the name of an attribute of this class.
    """

    def __init__(
        self,
        chain: Chain,
        children: Children,
        traits: tuple[Traits, ...],
        schedule: Schedule,
        transport: Transport | None = None,
    ) -> None:
        super().__init__()
        self._chain = chain
        self._children = children
        self._executor = Executor(chain, traits, schedule, transport)
        self.training = children.is_training
        for name, module in children.named:
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
                f"{self._chain.layouts[0]}"
            )
        self._require_own_stages()
        state: State = (activation,)
        if self._wants_gradients(activation):
            state = self._executor(state)
        else:
            for stage in self._chain.stages:
                state = stage(state)
        return state[0]

    def close(self) -> None:
        """Stop transfers and let host memory go; nothing is trained after that."""
        self._executor.close()

    def _require_own_stages(self) -> None:
        if tuple(self._modules.items()) != self._children.named:
            ours = dict(self._children.named)
            changed = sorted(
                name
                for name in ours.keys() | self._modules.keys()
                if ours.get(name) is not self._modules.get(name)
            )
            raise PlanMismatchError(
                f"module {', '.join(changed)} was replaced, added or removed after planning; "
                "change the model itself, measure and plan again"
            )

    def _wants_gradients(self, activation: torch.Tensor) -> bool:
        return torch.is_grad_enabled() and (
            activation.requires_grad
            or self._children.has_functions
            or any(parameter.requires_grad for parameter in self.parameters())
        )
