"""The mode a model is in: its training flags and autocast. A plan holds in one mode only.

Dropout saves a mask when training and hands its input on when evaluating; autocast halves
what is saved and adds copies of the weights. Both change what a plan needs, and where the
chain may be cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from chainstay.runtime.stages import ChainStage

__all__ = ["Autocast", "Mode", "Titled", "titled_modules"]


@dataclass(frozen=True, slots=True)
class Autocast:
    """Autocast's settings where it is on.

    Attributes:
        dtype: The low precision.
        has_cache: Whether it keeps its copies of the weights until it ends.
    """

    dtype: torch.dtype
    has_cache: bool

    @classmethod
    def now(cls, device: torch.device) -> Autocast | None:
        """The present settings for `device`; ``None`` where autocast is off."""
        if not torch.is_autocast_enabled(device.type):
            return None
        return cls(torch.get_autocast_dtype(device.type), torch.is_autocast_cache_enabled())

    def __str__(self) -> str:
        return f"autocast to {self.dtype} with{'' if self.has_cache else 'out'} its cache"


Titled = tuple[str, nn.Module]
"""What messages call a module, and the module."""


@dataclass(frozen=True, slots=True)
class Mode:
    """What a plan promises about the model's mode, beside the layout of its input.

    Attributes:
        training: Training flag of every module that matters, in order.
        autocast: ``None`` where it is off.
    """

    training: tuple[bool, ...]
    autocast: Autocast | None

    @classmethod
    def now(cls, modules: Iterable[Titled], device: torch.device) -> Mode:
        """The mode that `modules` would run in at present."""
        return cls(tuple([module.training for _, module in modules]), Autocast.now(device))

    def is_now(self, modules: Iterable[nn.Module], device: torch.device) -> bool:
        """Whether `now` would give the same; this is asked in every step."""
        training = tuple([module.training for module in modules])
        return training == self.training and Autocast.now(device) == self.autocast

    def difference(self, present: Mode, modules: Iterable[Titled]) -> str:
        """For people: the first thing in which `present` differs, and how it was here."""
        if self.autocast != present.autocast:
            return f"{self.autocast or 'no autocast'}, got {present.autocast or 'no autocast'}"
        flags = zip(self.training, present.training, modules, strict=True)
        title, flag = next((title, old) for old, new, (title, _) in flags if old != new)
        modes = ("training", "evaluation") if flag else ("evaluation", "training")
        return f"{title} in {modes[0]} mode, it is in {modes[1]} mode"


def titled_modules(stages: Iterable[ChainStage]) -> tuple[Titled, ...]:
    """All modules whose training flags `stages` obey."""
    return tuple(
        (f"the {type(module).__name__} in stage {index} ({stage.name})", module)
        for index, stage in enumerate(stages)
        for module in stage.modules()
    )
