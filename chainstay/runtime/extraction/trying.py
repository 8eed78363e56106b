"""A forward of the user's model that leaves no trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from weakref import WeakKeyDictionary

import torch
from torch import nn

from chainstay.runtime.extraction.untouched import attributes_kept
from chainstay.runtime.preserve import undisturbed
from chainstay.runtime.sharding import is_sharded, left_sharded

__all__ = ["trying"]

_WRITTEN: Final[WeakKeyDictionary[nn.Module, set[nn.Parameter]]] = WeakKeyDictionary()
"""Parameters that the forward of a model was seen to change; by model that was tried."""


@contextmanager
def trying(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Inside, `model` may run, gradients on; afterwards model and world are as they were."""
    with (
        left_sharded(model),
        undisturbed(model.modules(), device),
        _parameters_kept(model),
        attributes_kept(model),
        left_sharded(model),  # once more: whole parameters are attributes, too
        torch.enable_grad(),
    ):
        yield


@contextmanager
def _parameters_kept(model: nn.Module) -> Iterator[None]:
    """Put back parameters that a forward changes: moving averages, or what data initialises.

    Hardly any does. The first run holds copies of all of them in host memory to find out, later
    ones of those that were found. Shares of parameters (FSDP2) are not looked at.
    """
    known = set() if is_sharded(model) else _WRITTEN.get(model)
    watched = model.parameters() if known is None else known
    copies = [(each, each.detach().to("cpu", copy=True)) for each in watched]
    try:
        yield
    finally:
        written = _WRITTEN.setdefault(model, set())
        for parameter, copy in copies:
            if not torch.equal(parameter.detach().cpu(), copy):
                written.add(parameter)
                with torch.no_grad():
                    parameter.copy_(copy)
