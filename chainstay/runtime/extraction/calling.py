"""What a plan promises about the call it was made for, and how outputs are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from chainstay.errors import PlanMismatchError
from chainstay.runtime.chain import TensorLayout
from chainstay.runtime.extraction.sources import Constant, ModelTensor
from chainstay.runtime.states import State

__all__ = ["CallSignature", "OutputPlan", "SharedLeaf", "StateLeaf", "TensorPromise"]


@dataclass(frozen=True, slots=True)
class TensorPromise:
    """What every call's tensor must be."""

    layout: TensorLayout
    requires_grad: bool

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorPromise:
        """What `tensor` is."""
        return cls(TensorLayout.of(tensor), tensor.requires_grad)

    def __str__(self) -> str:
        return f"{self.layout} {'with' if self.requires_grad else 'without'} gradient"


@dataclass(frozen=True, slots=True)
class CallSignature:
    """The arguments of the sample: how they nest, and what each leaf is.

    Attributes:
        keywords: Names of keyword arguments, in the order of the sample.
        spec: Of ``(args, kwargs)``.
        leaves: A `TensorPromise` per tensor; other leaves are what they are.
    """

    keywords: tuple[str, ...]
    spec: TreeSpec
    leaves: tuple[object, ...]

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallSignature:
        """The signature of a sample call."""
        leaves, spec = _flattened(args, kwargs)
        return cls(tuple(kwargs), spec, tuple(map(_promise, leaves)))

    @property
    def requires_grad(self) -> bool:
        """Whether any of the tensors does."""
        return any(isinstance(leaf, TensorPromise) and leaf.requires_grad for leaf in self.leaves)

    def leaves_of(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves of a call like the sample's.

        Raises:
            PlanMismatchError: It is not like that; the text names the leaf.
        """
        same_keywords = kwargs.keys() == set(self.keywords)
        names = self.keywords if same_keywords else tuple(kwargs)
        leaves, spec = _flattened(args, {name: kwargs[name] for name in names})
        if spec != self.spec:
            raise PlanMismatchError(
                f"the model is called with {len(args)} arguments and the keywords {names}, the "
                f"plan is for a call that nests like {self.spec}; call it like the sample, or "
                "extract it again"
            )
        for position, (leaf, promise) in enumerate(zip(leaves, self.leaves, strict=True)):
            self._require(position, leaf, promise)
        return leaves

    def _require(self, position: int, leaf: object, promise: object) -> None:
        present = _promise(leaf)
        if type(present) is not type(promise) or present != promise:
            raise PlanMismatchError(
                f"leaf {position} of the model's arguments is {present}, the plan is for "
                f"{promise}; extract the model again with such a sample"
            )


def _flattened(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Any], TreeSpec]:
    """All leaves of a call, and how they nest; tensors alone are not looked into."""
    leaves = [*args, *kwargs.values()]
    if all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return leaves, _flat_spec(len(args), tuple(kwargs))
    return tree_flatten((tuple(args), dict(kwargs)))


@cache
def _flat_spec(positional: int, keywords: tuple[str, ...]) -> TreeSpec:
    """Of a call whose arguments are leaves: torch takes longer for it than a small stage."""
    _, spec = tree_flatten(((None,) * positional, dict.fromkeys(keywords)))
    return spec


def _promise(leaf: object) -> object:
    return TensorPromise.of(leaf) if isinstance(leaf, torch.Tensor) else leaf


@dataclass(frozen=True, slots=True)
class StateLeaf:
    """A leaf of the output that is in the last state."""

    position: int


@dataclass(frozen=True, slots=True)
class SharedLeaf:
    """A leaf of the output that is a shared value."""

    position: int


@dataclass(frozen=True, slots=True)
class OutputPlan:
    """How the model's output is put together.

    Attributes:
        spec: How its leaves nest.
        leaves: Where each comes from; what is none of these is the leaf itself.
    """

    spec: TreeSpec
    leaves: tuple[StateLeaf | SharedLeaf | ModelTensor | Constant | object, ...]

    def build(self, state: State, shared: State) -> Any:  # noqa: ANN401  # whatever the model returns
        """The output from the last state and the shared values."""
        return tree_unflatten([self._leaf(leaf, state, shared) for leaf in self.leaves], self.spec)

    def _leaf(self, leaf: object, state: State, shared: State) -> object:
        match leaf:
            case StateLeaf(position):
                return state[position]
            case SharedLeaf(position):
                return shared[position]
            case ModelTensor() | Constant():
                return leaf.read()
            case _:
                return leaf
