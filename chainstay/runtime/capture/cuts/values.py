"""States between stages of a chain: the tensors that cross its cuts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A tensor that crosses one cut or several; cut i lies in front of stage i.

    The same tensor object is in the state at every cut from `first_cut` to `last_cut`, so
    keeping several of these states costs its memory once.

    Attributes:
        name: The name of the operator or input that makes it.
        shape: The shape of the tensor.
        dtype: The type of the tensor's elements.
        device: The device of the tensor.
        storage: Number of the storage it lies in; values with equal numbers share memory.
        storage_bytes: The bytes of that storage.
        requires_grad: Whether it has a gradient.
        is_external: The model or the caller holds its storage anyway.
        first_cut: The first cut that it crosses; 0 for inputs of the model.
        last_cut: The last cut that it crosses; the number of stages for outputs of the model.
    """

    name: str
    shape: torch.Size
    dtype: torch.dtype
    device: torch.device
    storage: int
    storage_bytes: int
    requires_grad: bool
    is_external: bool
    first_cut: int
    last_cut: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedValue:
    """A tensor that needs no gradient and is there for every stage.

    Attributes:
        name: The name of the operator or input that makes it.
        storage_bytes: The bytes of the storage it lies in.
        elements: Numbers in it, if it is an input; of values made from inputs 0.
        is_external: The model or the caller holds its storage anyway.
    """

    name: str
    storage_bytes: int
    elements: int
    is_external: bool


def distinct_bytes(values: Iterable[Value]) -> int:
    """Bytes of the storages of `values`, each counted once, external ones left out."""
    return sum(
        {each.storage: each.storage_bytes for each in values if not each.is_external}.values()
    )
