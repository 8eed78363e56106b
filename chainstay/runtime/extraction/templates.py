"""How a block's arguments, or what it returns, nest; with slots where tensors belong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from chainstay.errors import PlanMismatchError
from chainstay.runtime.states import State

__all__ = ["SharedSlot", "StateSlot", "Template"]


@dataclass(frozen=True, slots=True)
class StateSlot:
    """Where a tensor of the state belongs."""

    position: int


@dataclass(frozen=True, slots=True)
class SharedSlot:
    """Where a shared tensor belongs."""

    position: int


@dataclass(frozen=True, slots=True)
class Template:
    """Arguments or an output, with slots where tensors belong.

    Attributes:
        leaves: Slots, and what is no tensor.
        spec: How they nest.
    """

    leaves: tuple[object, ...]
    spec: TreeSpec

    def filled(self, state: State, shared: State) -> Any:  # noqa: ANN401  # nested as `spec` says
        """With tensors in all slots."""
        return tree_unflatten([_filled(leaf, state, shared) for leaf in self.leaves], self.spec)

    def tensors_of(
        self, value: object, name: str
    ) -> tuple[Mapping[int, torch.Tensor], Mapping[int, torch.Tensor]]:
        """The tensors that `value` has in slots of the state and of shared values, in order.

        Raises:
            PlanMismatchError: It does not nest like this, or its other leaves differ.
        """
        leaves, spec = tree_flatten(value)
        if spec != self.spec:
            raise PlanMismatchError(
                f"{name} is called with, or returns, {spec}, the plan is for {self.spec}; "
                "fit the model again with such a sample"
            )
        state: dict[int, torch.Tensor] = {}
        shared: dict[int, torch.Tensor] = {}
        for leaf, place in zip(leaves, self.leaves, strict=True):
            match place, leaf:
                case StateSlot(position), torch.Tensor():
                    state[position] = leaf
                case SharedSlot(position), torch.Tensor():
                    shared[position] = leaf
                case _ if type(leaf) is not type(place) or leaf != place:
                    raise PlanMismatchError(
                        f"{name} gets or returns {_told(leaf)}, the plan is for {_told(place)}; "
                        f"{_remedy(leaf)}"
                    )
        return dict(sorted(state.items())), dict(sorted(shared.items()))


def _filled(leaf: object, state: State, shared: State) -> object:
    match leaf:
        case StateSlot(position):
            return state[position]
        case SharedSlot(position):
            return shared[position]
        case _:
            return leaf


def _told(leaf: object) -> str:
    if leaf is None or isinstance(leaf, bool | int | float | str):
        return repr(leaf)
    if isinstance(leaf, torch.Tensor | StateSlot | SharedSlot):
        return "a tensor"
    return f"an object of type {type(leaf).__name__}"


def _remedy(leaf: object) -> str:
    if type(leaf).__name__.endswith("Cache"):
        return (
            "what is kept for generating is not for training: call the model with use_cache=False"
        )
    return "fit the model again with such a sample"
