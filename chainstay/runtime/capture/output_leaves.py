"""The tensors of a model's output or arguments, also in objects that torch does not go through."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import islice
from numbers import Number
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

_CLOSED: Final = (torch.Tensor, nn.Module, ModuleType, type)
"""Objects that hold no part of an output."""

_PLAIN: Final = (Number, str, Enum, type(None))
"""What may decide which blocks are called, and with how much; NumPy's numbers are among these."""

_MOST_HOLDERS: Final = 256
"""Objects among arguments that are looked into: a data set may be there."""


def output_leaves(output: object) -> list[Any]:
    """Return the leaves of an output, then the computed tensors in what torch takes for leaves.

    Dataclasses, distributions and subclasses of ``list``, say, are leaves to torch.
    """
    leaves = tree_leaves(output)
    return [*leaves, *(tensor for tensor in _held_by(leaves) if tensor.grad_fn is not None)]


def argument_tensors(arguments: object) -> list[torch.Tensor]:
    """Return the tensors among arguments, then those that objects among them hold.

    Parameters that an object holds are left out, and what is behind very many objects.
    """
    leaves = tree_leaves(arguments)
    held = _held_by(leaves, most=_MOST_HOLDERS)
    own = (leaf for leaf in leaves if isinstance(leaf, torch.Tensor))
    return [*own, *(tensor for tensor in held if not isinstance(tensor, nn.Parameter))]


def argument_numbers(arguments: object) -> tuple[Hashable, ...]:
    """Return the numbers, texts and flags among arguments, then those that objects hold."""
    pending, found, seen = tree_leaves(arguments), list[Hashable](), set[int]()
    for value in islice(pending, _MOST_HOLDERS):  # grows meanwhile
        if isinstance(value, _PLAIN):
            found.append(value)
        elif isinstance(value, slice | range):
            found.append(str(value))
        elif not isinstance(value, _CLOSED) and id(value) not in seen:
            seen.add(id(value))
            pending += tree_leaves(_parts_of(value))
    return tuple(found)


def _held_by(leaves: Sequence[object], most: int | None = None) -> Iterator[torch.Tensor]:
    """Yield the distinct tensors that objects among `leaves` hold; `most` are looked into."""
    pending, seen = list(leaves), {id(leaf) for leaf in leaves if isinstance(leaf, torch.Tensor)}
    for holder in islice(pending, most):  # grows meanwhile
        if isinstance(holder, _CLOSED) or id(holder) in seen:
            continue
        seen.add(id(holder))
        for part in tree_leaves(_parts_of(holder)):
            if not isinstance(part, torch.Tensor):
                pending.append(part)
            elif id(part) not in seen:
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
