"""What a stage reads besides its input: the same in every run between forward and backward.

A stage that is run again computes what it computed before only if it still holds the same
parameters with the same values, the same buffers (those that it changes itself are saved
and put back, see `environment`) and the same training flags.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from chainstay.errors import PlanMismatchError
from chainstay.runtime.environment import Traits
from chainstay.runtime.stages import ChainStage, Place, tensor_at

__all__ = ["Binding", "version_of"]


@dataclass(frozen=True, slots=True)
class Binding:
    """The tensors and flags of a stage when it ran first.

    Attributes:
        tensors: Its parameters and constant buffers: where they are, and their versions.
        training: Every module with its training flag.
    """

    tensors: tuple[tuple[Place, torch.Tensor, int], ...]
    training: tuple[tuple[nn.Module, bool], ...]

    @classmethod
    def of(cls, stage: ChainStage, traits: Traits) -> Binding:
        """What `stage` holds now; buffers that it changes itself are left out."""
        changed = {(id(module), name) for module, name in traits.changed_buffers}
        return cls(
            tuple(
                ((module, name), tensor, version_of(tensor))
                for module, name, tensor in stage.tensors()
                if (id(module), name) not in changed
            ),
            tuple([(module, module.training) for module in stage.modules()]),
        )

    def require_unchanged(self, stage: ChainStage) -> None:
        """Refuse to run `stage` again if it is not what it was.

        Raises:
            PlanMismatchError: A parameter, buffer or training flag is another one now.
        """
        for module, training in self.training:
            if module.training != training:
                raise PlanMismatchError(
                    f"stage {stage.name} was switched between training and evaluation between "
                    "forward and backward; run the backward first"
                )
        for place, tensor, version in self.tensors:
            if tensor_at(place) is not tensor:
                raise PlanMismatchError(
                    f"{place[1]} of stage {stage.name} was replaced between forward and backward; "
                    "keep it until the backward has run (with functional_call: take the "
                    "gradient of a function that calls it, or use the model itself)"
                )
            if version_of(tensor) != version:
                raise PlanMismatchError(
                    f"{place[1]} of stage {stage.name} was changed in place between forward and "
                    "backward; run the backward first"
                )


def version_of(tensor: torch.Tensor) -> int:
    """How often `tensor` was changed in place; inference tensors do not count it."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001  # documented
