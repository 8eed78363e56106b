"""Functions that generated replays call besides the model's own operators."""

from __future__ import annotations

import torch

from chainstay.runtime.stage.states import changeable


def scratch(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return a copy that may be changed."""
    return None if tensor is None else tensor.detach().clone()


def blank(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return a tensor of any values that requires a gradient and may be changed in place."""
    state = (torch.empty_strided(size, stride, dtype=dtype, device=device, requires_grad=True),)
    (tensor,) = changeable(state, state)
    return tensor
