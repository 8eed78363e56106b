"""A forward of the user's model that leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from chainstay.runtime.extraction.untouched import attributes_kept
from chainstay.runtime.preserve import undisturbed
from chainstay.runtime.sharding import left_sharded

__all__ = ["trying"]


@contextmanager
def trying(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Inside, `model` may run, gradients on; afterwards model and world are as they were."""
    with (
        left_sharded(model),
        undisturbed(model.modules(), device),
        attributes_kept(model),
        left_sharded(model),  # once more: whole parameters are attributes, too
        torch.enable_grad(),
    ):
        yield
