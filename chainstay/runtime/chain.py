"""A model ready to be planned, with all that a plan for it promises to hold for."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from chainstay.runtime.mode import Mode, Titled
from chainstay.runtime.stages import ChainStage

__all__ = ["Chain", "TensorLayout"]


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """What a plan promises about its input: it was measured for exactly this."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorLayout:
        """The layout of `tensor`."""
        return cls(tensor.shape, tensor.dtype, tensor.device)

    def __str__(self) -> str:
        return f"{tuple(self.shape)} {self.dtype} on {self.device}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A model ready to be planned.

    Attributes:
        stages: What a schedule speaks about, the loss excluded.
        layouts: Of the first stage's input that everything was measured with.
        device: Where it was measured.
        mode: In which everything was measured.
        modules: Those whose mode matters.
    """

    stages: tuple[ChainStage, ...]
    layouts: tuple[TensorLayout, ...]
    device: torch.device
    mode: Mode
    modules: tuple[Titled, ...]
