"""The tensors of a model's output, also in objects that torch does not go through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

_CLOSED: Final = (torch.Tensor, nn.Module, ModuleType, type)
"""Objects that hold no part of an output."""


def output_leaves(output: object) -> list[Any]:
    """Return the leaves of an output, then the computed tensors in what torch takes for leaves.

    Dataclasses, distributions and subclasses of ``list``, say, are leaves to torch.
    """
    leaves = tree_leaves(output)
    return [*leaves, *_held_by(leaves)]


def _held_by(leaves: Sequence[object]) -> Iterator[torch.Tensor]:
    """Yield the distinct tensors with a graph that objects among `leaves` hold."""
    pending, seen = list(leaves), {id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
    for holder in pending:  # grows meanwhile
        if isinstance(holder, _CLOSED) or id(holder) in seen:
            continue
        seen.add(id(holder))
        for part in tree_leaves(_parts_of(holder)):
            if not isinstance(part, torch.Tensor):
                pending.append(part)
            elif part.grad_fn is not None and id(part) not in seen:
                seen.add(id(part))
                yield part


def _parts_of(holder: object) -> list[object]:
    if is_dataclass(holder):
        return [getattr(holder, field.name, None) for field in fields(holder)]
    if isinstance(holder, Mapping):
        return list(holder.values())
    if isinstance(holder, list | tuple | set):
        return list(holder)
    slots = (name for kind in type(holder).__mro__ for name in vars(kind).get("__slots__", ()))
    attributes = (getattr(holder, name, None) for name in slots)
    return [*getattr(holder, "__dict__", {}).values(), *attributes]
