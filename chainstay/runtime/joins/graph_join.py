"""A captured forward as branches of stages that meet, and a tail behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from chainstay.runtime.capture.cuts.chain import Position, counted_among, leaf_at
from chainstay.runtime.capture.cuts.programs import GraphStage, Program
from chainstay.runtime.capture.cuts.values import SharedValue
from chainstay.runtime.capture.graph_inputs import GraphInput
from chainstay.runtime.stage.states import State, cut


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphJoin:
    """A captured forward, cut into branches that know nothing of each other, and a tail.

    Attributes:
        name: The model's name, for messages.
        branches: The stages of each, in the order in which they run.
        tail: Its stages; none if the branches' outputs are the model's.
        given: Per branch, positions of the graph's inputs that are in its first state: tensors
            whose gradients go on.
        widths: Per branch, how many tensors its last state has. All of them together, branch
            by branch, are the tail's first state.
        sums: For each parameter or input that is used three times or more, the stages that use
            it, once per use, in the order in which plain training runs them backward.
        inputs: The graph's inputs, its constants included.
        constants: Tensors behind the inputs of a call.
        shared: The values that all stages may read.
        prologue: Makes those of them that are no inputs.
        output: Where each output is found; what is no `Position` is the output itself.
    """

    name: str
    branches: tuple[tuple[GraphStage, ...], ...]
    tail: tuple[GraphStage, ...]
    given: tuple[tuple[int, ...], ...]
    widths: tuple[int, ...]
    sums: tuple[tuple[GraphStage, ...], ...]
    inputs: tuple[GraphInput, ...]
    constants: tuple[torch.Tensor, ...]
    shared: tuple[SharedValue, ...]
    prologue: Program
    output: tuple[Position | object, ...]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:  # noqa: ANN401  # tensors and numbers
        """All stages, branch by branch: what the graph gives, bit for bit."""
        given, shared = self.begin(inputs)
        met: State = ()
        for branch, state in zip(self.branches, self.split(given), strict=True):
            met += _run(branch, state, shared)
        return self.finish(_run(self.tail, met, shared), shared)

    @property
    def stages(self) -> tuple[GraphStage, ...]:
        """All stages, branch by branch and then the tail."""
        return (*(stage for branch in self.branches for stage in branch), *self.tail)

    @property
    def state_inputs(self) -> tuple[int, ...]:
        """Positions of the inputs in first states."""
        return tuple(position for branch in self.given for position in branch)

    def begin(self, inputs: Sequence[Any]) -> tuple[State, tuple[Any, ...]]:
        """The first states of all branches in one, and the shared values."""
        given = (*inputs, *self.constants)
        return tuple([given[p] for p in self.state_inputs]), given + self.prologue((), given)

    def split(self, given: State) -> tuple[State, ...]:
        """The first state of each branch."""
        return cut(given, map(len, self.given))

    def finish(self, state: State, shared: Sequence[Any]) -> tuple[Any, ...]:
        """The graph's outputs from the last state."""
        return tuple([leaf_at(leaf, state, shared) for leaf in self.output])

    def counted(self, shared: Sequence[Any]) -> tuple[torch.Tensor, ...]:
        """Return the shared tensors that a step's memory counts."""
        return counted_among(shared, self.inputs)


def _run(stages: Iterable[GraphStage], state: State, shared: Sequence[Any]) -> State:
    for stage in stages:
        state = stage(state, shared)
    return state
