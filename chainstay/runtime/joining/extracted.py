"""A model as branches of stages that meet, and a tail behind them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from torch import nn

from chainstay.runtime.extraction.calling import CallSignature, OutputPlan
from chainstay.runtime.extraction.compiling import Program
from chainstay.runtime.extraction.likeness import Likeness
from chainstay.runtime.extraction.stage import GraphStage
from chainstay.runtime.states import State

__all__ = ["ExtractedJoin", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ExtractedJoin:
    """A model's forward, cut into branches that know nothing of each other, and a tail.

    Attributes:
        model: The user's.
        branches: The stages of each, in the order in which they run.
        tail: Its stages; none if the branches' outputs are the model's.
        inputs: Per branch, positions among the leaves of a call of those in its first state:
            inputs that require a gradient.
        widths: Per branch, how many tensors its last state has. All of them together, branch
            by branch, are the tail's first state.
        sums: Of each parameter or input that is used three times or more, the stages that use
            it, once per use, in the order in which plain training runs them backward.
        shared_inputs: Positions of leaves that all stages may read.
        prologue: Makes other values that all stages may read.
        call: What calls must be like.
        output: How the model's output is put together.
        likeness: What the model must be like.
    """

    model: nn.Module
    branches: tuple[tuple[GraphStage, ...], ...]
    tail: tuple[GraphStage, ...]
    inputs: tuple[tuple[int, ...], ...]
    widths: tuple[int, ...]
    sums: tuple[tuple[GraphStage, ...], ...]
    shared_inputs: tuple[int, ...]
    prologue: Program
    call: CallSignature
    output: OutputPlan
    likeness: Likeness

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        """All stages, branch by branch: what ``model(*args, **kwargs)`` gives, bit for bit.

        Raises:
            PlanMismatchError: The call or the model is not like it was at extraction.
        """
        self.likeness.require_unhooked()
        given, shared = self.begin(args, kwargs)
        met: State = ()
        for branch, state in zip(self.branches, self.split(given), strict=True):
            met += _run(branch, state, shared)
        return self.finish(_run(self.tail, met, shared), shared)

    def begin(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[State, State]:
        """The first states of all branches in one, and the shared values of a call.

        Raises:
            PlanMismatchError: The call or the model is not like it was at extraction.
        """
        self.likeness.require_kept()
        leaves = self.call.leaves_of(args, kwargs)
        inputs = tuple(leaves[position] for position in self.shared_inputs)
        shared = inputs + self.prologue((), inputs)
        return tuple(leaves[position] for branch in self.inputs for position in branch), shared

    def split(self, given: State) -> tuple[State, ...]:
        """The first state of each branch."""
        return cut(given, map(len, self.inputs))

    def finish(self, state: State, shared: State) -> Any:  # noqa: ANN401  # the model's own
        """The model's output from the last state."""
        return self.output.build(state, shared)


def _run(stages: Iterable[GraphStage], state: State, shared: State) -> State:
    for stage in stages:
        state = stage(state, shared)
    return state


def cut(state: State, widths: Iterable[int]) -> tuple[State, ...]:
    """Parts of `state`, each so many tensors wide."""
    ends = accumulate(widths, initial=0)
    return tuple(state[start:end] for start, end in pairwise(ends))
