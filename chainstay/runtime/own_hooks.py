"""Hooks on a model itself: calling the model runs them around its forward, planned or not."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from torch import nn

__all__ = ["own_hooks_aside"]

_KINDS: Final = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


@contextmanager
def own_hooks_aside(model: nn.Module) -> Iterator[None]:
    """Inside, `model` has no hooks of its own; those of the modules in it stay."""
    held = {kind: getattr(model, kind) for kind in _KINDS}
    try:
        for kind in _KINDS:
            setattr(model, kind, OrderedDict())
        yield
    finally:
        for kind, hooks in held.items():
            setattr(model, kind, hooks)
