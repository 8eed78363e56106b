"""Leaves require a gradient in a run again if they did when the stage ran first.

Between forward and backward, plain training does not care whether a parameter is frozen, or trained
again: autograd's graph is there. A stage that runs again then saves what it saved at first only
if its leaves require a gradient as they did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import RLock
from typing import Any, Final

import torch

SharedRead = tuple[int, object, bool]
"""Position of a shared value, what tells whether it has changed, whether it requires a gradient."""

_NOTHING: Final = nullcontext()
ALONE: Final = RLock()
"""Generators of random numbers belong to all threads, buffers and leaves to those of one model."""


def has_gradient(value: object) -> bool:
    """Whether `value` is a tensor that requires a gradient."""
    return getattr(value, "requires_grad", False) is True


def trained_as_before(
    reads: Iterable[Sequence[SharedRead]], shared: Sequence[Any]
) -> AbstractContextManager[object]:
    """Inside, the leaves among `shared` require a gradient as when these `reads` were noted."""
    changed: dict[int, torch.Tensor] = {}
    for noted in reads:
        for position, _, had_gradient in noted:
            value = shared[position]
            if had_gradient is not getattr(value, "requires_grad", False) and value.is_leaf:
                changed[id(value)] = value
    return _inverted(list(changed.values())) if changed else _NOTHING


@contextmanager
def _inverted(leaves: Sequence[torch.Tensor]) -> Iterator[None]:
    """Inside, these require a gradient if they do not, and the other way round."""
    with ALONE:
        _invert(leaves)
        try:
            yield
        finally:
            _invert(leaves)


def _invert(leaves: Sequence[torch.Tensor]) -> None:
    for leaf in leaves:
        leaf.requires_grad_(not leaf.requires_grad)
