"""What a stage reads besides its input: the same in every run between forward and backward.

A stage that is run again computes what it computed before only if it still holds the same
parameters with the same values, the same buffers (those that it changes itself are saved
and put back, see `environment`), the same training flags and settings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import nn

from chainstay.errors import PlanMismatchError
from chainstay.runtime.environment import Traits
from chainstay.runtime.settings import Settings, change_since, global_hooks, settings_of
from chainstay.runtime.stages import ChainStage, Place, tensor_at

__all__ = ["Binding", "version_of"]

Version = tuple[int, int]
"""How often a tensor was changed in place, and where it is."""

_OWN_MEMORY: Final = (torch.Tensor, nn.Parameter)
"""Other kinds may have none, or come and go."""


@dataclass(frozen=True, slots=True)
class Binding:
    """The tensors and flags of a stage when it ran first.

    Attributes:
        tensors: Its parameters and constant buffers: where they are, and their versions.
        training: Every module with its training flag.
        settings: Likewise, what else decides what it computes.
        hooks: How many hooks there are for all modules.
    """

    tensors: tuple[tuple[Place, torch.Tensor, Version], ...]
    training: tuple[tuple[nn.Module, bool], ...]
    settings: tuple[Settings, ...]
    hooks: int

    @classmethod
    def of(cls, stage: ChainStage, traits: Traits) -> Binding:
        """What `stage` holds now; buffers that it changes itself are left out."""
        changed = {(id(module), name) for module, name in traits.changed_buffers}
        modules = list(stage.modules())
        return cls(
            tuple(
                ((module, name), tensor, _whole_version_of(tensor))
                for module, name, tensor in stage.tensors()
                if (id(module), name) not in changed
            ),
            tuple([(module, module.training) for module in modules]),
            tuple([settings_of(module) for module in modules]),
            global_hooks(),
        )

    def require_unchanged(self, stage: ChainStage) -> None:
        """Refuse to run `stage` again if it is not what it was.

        Raises:
            PlanMismatchError: A parameter, buffer, module, flag or setting is another one now.
        """
        modules = list(stage.modules())
        if modules != [module for module, _ in self.training] or self.hooks != global_hooks():
            raise PlanMismatchError(
                f"a module of stage {stage.name} was replaced, or a hook for all modules added or "
                "removed, between forward and backward; run the backward first"
            )
        for module, before in zip(modules, self.settings, strict=True):
            if before != settings_of(module):
                raise PlanMismatchError(
                    f"stage {stage.name} was changed between forward and backward "
                    f"({change_since(module, before)}); run the backward first"
                )
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
            if _whole_version_of(tensor) != version:
                raise PlanMismatchError(
                    f"{place[1]} of stage {stage.name} was changed in place between forward and "
                    "backward; run the backward first"
                )


def _whole_version_of(tensor: torch.Tensor) -> Version:
    """Also tells whether it was given other memory, by way of ``tensor.data``."""
    if type(tensor) not in _OWN_MEMORY or torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # noqa: SLF001  # no public way
        return version_of(tensor), 0
    return version_of(tensor), tensor.data_ptr()


def version_of(tensor: torch.Tensor) -> int:
    """How often `tensor` was changed in place; inference tensors do not count it."""
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001  # documented
