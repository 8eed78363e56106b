"""Hooks on a model itself: calling the model runs them around its forward, planned or not.

So does what ``model.compile()`` made of its call.
"""

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
    """Inside, calling `model` is calling its forward; hooks of the modules in it stay."""
    held = {kind: getattr(model, kind) for kind in _KINDS}
    if "_compiled_call_impl" in vars(model):
        held["_compiled_call_impl"] = model._compiled_call_impl  # noqa: SLF001  # none is public
    try:
        for kind in held:
            setattr(model, kind, OrderedDict() if kind in _KINDS else None)
        yield
    finally:
        for kind, hooks in held.items():
            setattr(model, kind, hooks)
