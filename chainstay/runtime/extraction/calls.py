"""Checks of a sample call, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from chainstay.errors import UnsupportedModelError

__all__ = ["device_of", "require_module_and_tuple"]


def require_module_and_tuple(model: object, sample_args: object) -> None:
    """Refuse what cannot be called as a model is.

    Raises:
        UnsupportedModelError: The model is no module, or the arguments are no tuple.
    """
    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"the model is a {type(model).__name__}, must be a torch.nn.Module; wrap a function "
            "in a module that registers what it trains"
        )
    if not isinstance(sample_args, tuple):
        raise UnsupportedModelError(
            f"sample_args is a {type(sample_args).__name__}, must be a tuple of the model's "
            "positional arguments; for one argument write (x,)"
        )


def device_of(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    """Where the model is; the sample must be there, too.

    Raises:
        UnsupportedModelError: The sample is elsewhere, or there is no tensor at all.
    """
    held = [*model.parameters(), *model.buffers()]
    given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if not given:
        raise UnsupportedModelError(
            "the sample call has no tensor; pass the arguments of one call of the model"
        )
    devices = dict.fromkeys(tensor.device for tensor in held) or {given[0].device: None}
    for tensor in given:
        if tensor.device not in devices and tensor.dim() > 0:
            raise UnsupportedModelError(
                f"the sample has a tensor on {tensor.device}, but the model is on "
                f"{next(iter(devices))}; move both to one device"
            )
    return next(iter(devices))
