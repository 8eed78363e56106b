"""The mode a model is in: its training flags and autocast. A plan holds in one mode only.

Dropout saves a mask when training and hands its input on when evaluating; autocast halves
what is saved and adds copies of the weights. Both change what a plan needs, and where the
chain may be cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from chainstay.runtime.stages import ChainStage

__all__ = ["Autocast", "Mode"]


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


@dataclass(frozen=True, slots=True)
class Mode:
    """What a plan promises about the model's mode, beside the layout of its input.

    Attributes:
        training: Training flag of every module of every stage, in order.
        autocast: ``None`` where it is off.
    """

    training: tuple[bool, ...]
    autocast: Autocast | None

    @classmethod
    def now(cls, stages: Sequence[ChainStage], device: torch.device) -> Mode:
        """The mode that `stages` would run in at present."""
        flags = (module.training for stage in stages for module in stage.modules())
        return cls(tuple(flags), Autocast.now(device))

    def difference(self, present: Mode, stages: Sequence[ChainStage]) -> str:
        """For people: the first thing in which `present` differs, and how it was here."""
        if self.autocast != present.autocast:
            return f"{self.autocast or 'no autocast'}, got {present.autocast or 'no autocast'}"
        owners = [
            f"the {type(module).__name__} in stage {index} ({stage.name})"
            for index, stage in enumerate(stages)
            for module in stage.modules()
        ]
        flags = zip(self.training, present.training, owners, strict=True)
        owner, flag = next((owner, old) for old, new, owner in flags if old != new)
        modes = ("training", "evaluation") if flag else ("evaluation", "training")
        return f"{owner} in {modes[0]} mode, it is in {modes[1]} mode"
