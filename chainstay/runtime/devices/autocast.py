"""Autocast's settings: it halves what is saved, and adds copies of the weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chainstay.runtime.devices.device import default_device

__all__ = ["Autocast"]


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

    @classmethod
    def on_gpu(cls) -> Autocast | None:
        """Return the present settings for the accelerator, or for CUDA where none is here."""
        here = default_device()
        return cls.now(torch.device("cuda") if here.type == "cpu" else here)

    def __str__(self) -> str:
        return f"autocast to {self.dtype} with{'' if self.has_cache else 'out'} its cache"
