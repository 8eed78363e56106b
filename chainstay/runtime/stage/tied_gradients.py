"""Gradients of tied weights, summed in place.

Autograd sums the gradients of a weight that several stages use, one after another. It adds to the
sum in place only where nothing else knows the sum's memory; the gradient that a linear layer
gives its weight is a view, to which it adds out of place. Of a language model whose head and
embedding are one weight, that is a third copy of the gradient at the end of the backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, TypeAlias

import torch

from chainstay.runtime.stage.states import State

_LEAST_BYTES: Final = 2**20
"""Smaller gradients are left as they are: looking for where they are made takes longer."""

_Gradients: TypeAlias = tuple[torch.Tensor | None, ...]


def add_in_place(output: State, state: State, shared: Sequence[Any]) -> None:
    """Let autograd add in place to gradients that a stage sends to large leaves, with equal bits.

    What made its `state` is not touched; `shared` are values that stages before it read, too.
    """
    leaves = {id(leaf) for leaf in shared if _is_large_leaf(leaf)}
    if not leaves or not torch.is_grad_enabled():
        return
    seen = {tensor.grad_fn for tensor in state}
    pending = [tensor.grad_fn for tensor in output]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for index, (below, _) in enumerate(node.next_functions):
            if below is not None and id(getattr(below, "variable", None)) in leaves:
                node.register_hook(partial(_without_base, index))
            else:
                pending.append(below)


def _is_large_leaf(value: object) -> bool:
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and isinstance(value, torch.Tensor)
        and value.is_leaf
        and value.requires_grad
        and value.nbytes >= _LEAST_BYTES
        and value.is_contiguous()
    )


def _without_base(index: int, made: _Gradients, given: _Gradients) -> _Gradients | None:  # noqa: ARG001  # autograd calls it so
    """Return what a node has made with gradient `index` as a tensor of its own in its memory.

    The storage itself is not asked for: Python's object for it would count as a second owner.
    """
    gradient = made[index]
    if gradient is None or type(gradient) is not torch.Tensor or torch.is_grad_enabled():
        return None
    base = gradient._base  # noqa: SLF001  # there is no public way to ask
    if base is None or base.numel() != gradient.numel() or not gradient.is_contiguous():
        return None
    own = torch.empty(0, dtype=gradient.dtype, device=gradient.device)
    own.set_(gradient)  # type: ignore[call-overload]  # torch's stubs lack tensors here
    return (*made[:index], own, *made[index + 1 :])
