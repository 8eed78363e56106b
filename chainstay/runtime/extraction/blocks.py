"""Blocks of a model as stages, while the model's own forward goes on calling them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.table import Table
from torch import nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from chainstay.errors import PlanMismatchError
from chainstay.runtime.binding import version_of
from chainstay.runtime.extraction.listing import StageRow, as_table, as_text
from chainstay.runtime.extraction.values import Value, distinct_bytes
from chainstay.runtime.stages import Place
from chainstay.runtime.states import State

__all__ = ["BlockStage", "InterceptedChain", "SharedSlot", "StateSlot", "Template"]

FirstRun = Callable[[int, State, State], State]
"""Runs a stage, given by its number, on a state and the shared values; gives the next state."""


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

    def state_of(self, value: object, name: str) -> tuple[State, State]:
        """The tensors that `value` has in slots of the state and of shared values.

        Raises:
            PlanMismatchError: It does not nest like this, or its other leaves differ.
        """
        leaves, spec = tree_flatten(value)
        if spec != self.spec:
            raise PlanMismatchError(
                f"{name} is called with, or returns, {spec}, the plan is for {self.spec}; "
                "intercept the model again with such a sample"
            )
        state: dict[int, torch.Tensor] = {}
        shared: dict[int, torch.Tensor] = {}
        for leaf, place in zip(leaves, self.leaves, strict=True):
            match place:
                case StateSlot(position):
                    state[position] = leaf
                case SharedSlot(position):
                    shared[position] = leaf
                case _ if type(leaf) is not type(place) or leaf != place:
                    raise PlanMismatchError(
                        f"{name} gets or returns {leaf}, the plan is for {place}; "
                        "intercept the model again with such a sample"
                    )
        return (
            tuple(state[position] for position in sorted(state)),
            tuple(shared[position] for position in sorted(shared)),
        )


def _filled(leaf: object, state: State, shared: State) -> object:
    match leaf:
        case StateSlot(position):
            return state[position]
        case SharedSlot(position):
            return shared[position]
        case _:
            return leaf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BlockStage:
    """A block, called as the model calls it, its hooks included; a `stages.Part`.

    Attributes:
        name: Path of the block in the model.
        block: The user's module.
        forward: What calling it does: its hooks and its forward, compiled if it is.
        inputs: Its arguments and keyword arguments.
        output: What it returns.
    """

    name: str
    block: nn.Module
    forward: Callable[..., Any]
    inputs: Template
    output: Template

    def __call__(self, state: State, shared: State) -> State:
        """The next state."""
        args, kwargs = self.inputs.filled(state, shared)
        return self.output.state_of(self.forward(*args, **kwargs), self.name)[0]

    def modules(self) -> Iterator[nn.Module]:
        """Modules whose training flags it obeys."""
        return self.block.modules()

    def places(self) -> Iterator[Place]:
        """Where it reads parameters and buffers."""
        for module in self.modules():
            for name, _ in module.named_parameters(recurse=False, remove_duplicate=False):
                yield module, name
            for name, _ in module.named_buffers(recurse=False, remove_duplicate=False):
                yield module, name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InterceptedChain:
    """The repeated blocks of a model as stages; what is around them runs as ever.

    Attributes:
        model: The user's.
        stages: Its blocks, in the order of their calls.
        boundaries: The values of each state; the last one has what the last block returns.
    """

    model: nn.Module
    stages: tuple[BlockStage, ...]
    boundaries: tuple[tuple[Value, ...], ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        """The model's forward, its blocks run as stages."""
        with self.driven(lambda index, state, shared: self.stages[index](state, shared)):
            return self.model(*args, **kwargs)

    @contextmanager
    def driven(self, first_run: FirstRun) -> Iterator[None]:
        """While this lasts, the model's calls of its blocks go to `first_run`.

        Raises:
            PlanMismatchError: On a call, if the blocks no longer form the chain they did.
        """
        drive = _Drive(self.stages, first_run)
        # Where Module.__call__ looks first; made for compiled modules, kept if there is one.
        before = [stage.block._compiled_call_impl for stage in self.stages]  # noqa: SLF001
        try:
            for index, stage in enumerate(self.stages):
                stage.block._compiled_call_impl = partial(drive.call, index)  # noqa: SLF001
            yield
        finally:
            for stage, compiled in zip(self.stages, before, strict=True):
                stage.block._compiled_call_impl = compiled  # noqa: SLF001

    def boundary_bytes(self, cut: int) -> int:
        """What keeping state `cut` alone takes."""
        return distinct_bytes(self.boundaries[cut])

    def table(self) -> Table:
        """The stages for people, to be printed by rich."""
        rows = [
            StageRow(
                name=stage.name,
                operators=None,
                parameters=sum(parameter.numel() for parameter in stage.block.parameters()),
                tensors=len(self.boundaries[index + 1]),
                boundary_bytes=self.boundary_bytes(index + 1),
                saved_bytes=None,
            )
            for index, stage in enumerate(self.stages)
        ]
        return as_table(type(self.model).__name__, rows)

    def __str__(self) -> str:
        return as_text(self.table())


@dataclass(slots=True)
class _Drive:
    """One forward of the model, from block to block."""

    stages: Sequence[BlockStage]
    first_run: FirstRun
    state: State = ()
    shared: State = ()
    versions: tuple[int, ...] = ()
    following: int = 0

    def call(self, index: int, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the block's own
        """What the model gets when it calls block `index`."""
        stage = self.stages[index]
        if index != self.following:
            raise PlanMismatchError(
                f"the model calls {stage.name} out of turn; the plan is for blocks called one "
                "after another, each once"
            )
        state, shared = stage.inputs.state_of((args, _sorted(kwargs)), stage.name)
        if index == 0:
            self.state, self.shared = state, shared
        elif not (
            _are_same(state, self.state)
            and _versions(state) == self.versions
            and _are_shared(stage, shared, self.shared)
        ):
            raise PlanMismatchError(
                f"{stage.name} is called with tensors that are neither what the block before "
                "returned, unchanged, nor inputs of the first block; intercept the model again"
            )
        self.state = self.first_run(index, self.state, self.shared)
        self.versions = _versions(self.state)
        self.following = (index + 1) % len(self.stages)
        return stage.output.filled(self.state, self.shared)


def _versions(state: State) -> tuple[int, ...]:
    return tuple(map(version_of, state))


def _sorted(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(kwargs.items()))


def _are_same(state: State, expected: State) -> bool:
    return len(state) == len(expected) and all(
        old is new for old, new in zip(state, expected, strict=True)
    )


def _are_shared(stage: BlockStage, given: State, shared: State) -> bool:
    positions = sorted(
        {leaf.position for leaf in stage.inputs.leaves if isinstance(leaf, SharedSlot)}
    )
    return _are_same(given, tuple(shared[position] for position in positions))
