"""Stages that are alike: the same operators on tensors that lie in memory alike.

Such stages cost the same, so that of a network's repeated blocks one need be looked at.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from chainstay.runtime.measures.boundary import Gradients
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.states import MemoryLayout, State, address_of

__all__ = ["likeness_of"]


def likeness_of(
    stage: ChainStage, state: State, shared: Sequence[Any], gradients: Gradients | None
) -> Hashable:
    """Return a key, equal for stages that cost the same.

    Args:
        stage: The stage.
        state: Its input.
        shared: What all stages may read.
        gradients: The gradients of its output.
    """
    texts = tuple(part.text for part in stage.parts)
    read = [shared[position] for part in stage.parts for position in part.reads]
    return texts, _places_of([*state, *read]), gradients


def _places_of(values: Iterable[Any]) -> tuple[Hashable, ...]:
    """Return numbers for tensors' layouts, the storages they share, and their gradients."""
    storages: dict[int, int] = {}
    objects: dict[int, int] = {}
    return tuple(
        (
            MemoryLayout.of(value),
            storages.setdefault(address_of(value), len(storages)),
            objects.setdefault(id(value), len(objects)),
            value.requires_grad,
            isinstance(value, nn.Parameter),
        )
        if isinstance(value, torch.Tensor)
        else (type(value), value)
        for value in values
    )
