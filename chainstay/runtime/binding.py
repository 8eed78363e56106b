"""What a stage reads besides its input: the same in every run between forward and backward.

A stage that is run again computes what it computed before only if it still holds the same
parameters with the same values, the same buffers (those that it changes itself are saved
and put back, see `environment`) and the same training flags.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from chainstay.errors import PlanMismatchError
from chainstay.runtime.environment import Traits
from chainstay.runtime.stages import ChainStage

__all__ = ["Binding", "version_of"]


@dataclass(frozen=True, slots=True)
class Binding:
    """The tensors and flags of a stage when it ran first.

    Attributes:
        tensors: Its parameters and constant buffers by name, each with its version.
        training: Training flag of every module.
    """

    tensors: tuple[tuple[str, torch.Tensor, int], ...]
    training: tuple[bool, ...]

    @classmethod
    def of(cls, stage: ChainStage, traits: Traits) -> Binding:
        """What `stage` holds now."""
        tensors = tuple((name, tensor, version_of(tensor)) for name, tensor in _held(stage, traits))
        return cls(tensors, tuple(module.training for module in stage.modules()))

    def require_unchanged(self, stage: ChainStage, traits: Traits) -> None:
        """Refuse to run `stage` again if it is not what it was.

        Raises:
            PlanMismatchError: A parameter, buffer or training flag is another one now.
        """
        present = Binding.of(stage, traits)
        if present.training != self.training:
            raise PlanMismatchError(
                f"stage {stage.name} was switched between training and evaluation between "
                "forward and backward; run the backward first"
            )
        for (name, old, version), (_, new, present_version) in zip(
            self.tensors, present.tensors, strict=True
        ):
            if old is not new:
                raise PlanMismatchError(
                    f"{name} of stage {stage.name} was replaced between forward and backward; "
                    "keep it until the backward has run (with functional_call: take the "
                    "gradient of a function that calls it, or use the model itself)"
                )
            if version != present_version:
                raise PlanMismatchError(
                    f"{name} of stage {stage.name} was changed in place between forward and "
                    "backward; run the backward first"
                )


def version_of(tensor: torch.Tensor) -> int:
    """How often `tensor` was changed in place; inference tensors do not count it."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001  # documented


def _held(stage: ChainStage, traits: Traits) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters and the buffers that the stage does not change itself."""
    changed = {(id(module), name) for module, name in traits.changed_buffers}
    for module, name, tensor in stage.tensors():
        if (id(module), name) not in changed:
            yield name, tensor
