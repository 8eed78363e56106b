"""Keys and values that language models keep for generating: none in training.

The models of ``transformers`` keep them unless told otherwise, in training, too, where nobody
reads them. Under their own gradient checkpointing they turn that off; so does a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

__all__ = ["caches_off"]


@contextmanager
def caches_off(model: nn.Module) -> Iterator[None]:
    """Inside, a `model` in training keeps nothing for generating unless a call asks for it."""
    found: dict[int, Any] = {}
    if model.training:
        configs = (getattr(module, "config", None) for module in model.modules())
        found = {id(each): each for each in configs if getattr(each, "use_cache", None) is True}
    for config in found.values():
        config.use_cache = False
    try:
        yield
    finally:
        for config in found.values():
            config.use_cache = True
