"""A model ready to be planned, with all that a plan for it promises to hold for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from chainstay.runtime.mode import Mode
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
        children: The model's modules under their own names, so that a planned model has
            the same ``state_dict`` keys.
        stages: What a schedule speaks about, the loss excluded.
        layout: Of the input that everything was measured with.
        mode: In which everything was measured.
        is_training: The model's own training flag, which its stages need not share.
    """

    children: tuple[tuple[str, nn.Module], ...]
    stages: tuple[ChainStage, ...]
    layout: TensorLayout
    mode: Mode
    is_training: bool
