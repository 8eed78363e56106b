"""A captured forward as branches of stages that meet, and a tail behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from chainstay.runtime.capture.cuts.chain import GraphStages
from chainstay.runtime.capture.cuts.programs import GraphStage
from chainstay.runtime.stage.states import State, cut


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GraphJoin(GraphStages):
    """A captured forward, cut into branches that know nothing of each other, and a tail.

    Its stages are those of all branches, branch by branch, and then those of the tail.

    Attributes:
        lengths: Per branch, how many stages it has.
        given: Per branch, positions of the graph's inputs that are in its first state: tensors
            whose gradients go on.
        widths: Per branch, how many tensors its last state has. All of them together, branch
            by branch, are the tail's first state.
        sums: For each parameter or input that is used three times or more, the stages that use
            it, once per use, in the order in which plain training runs them backward.
    """

    lengths: tuple[int, ...]
    given: tuple[tuple[int, ...], ...]
    widths: tuple[int, ...]
    sums: tuple[tuple[GraphStage, ...], ...]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run all stages, branch by branch, and return what the graph gives, bit for bit."""
        given, shared = self.begin(inputs)
        met: State = ()
        for branch, state in zip(self.branches, self.split(given), strict=True):
            met += _run(branch, state, shared)
        return self.finish(_run(self.tail, met, shared), shared)

    @property
    def layout(self) -> object:
        """The parts, and the names and sizes of their stages; see `GraphStages`."""
        stages = [(stage.name, stage.operators, stage.saved_bytes) for stage in self.stages]
        return self.lengths, self.given, self.widths, stages

    @property
    def branches(self) -> tuple[tuple[GraphStage, ...], ...]:
        """The stages of each branch, in the order in which they run."""
        ends = accumulate(self.lengths, initial=0)
        return tuple(self.stages[start:end] for start, end in pairwise(ends))

    @property
    def tail(self) -> tuple[GraphStage, ...]:
        """The stages behind the join; none if the branches' outputs are the model's."""
        return self.stages[sum(self.lengths) :]

    def split(self, given: State) -> tuple[State, ...]:
        """Return the first state of each branch."""
        return cut(given, map(len, self.given))


def _run(stages: Iterable[GraphStage], state: State, shared: Sequence[Any]) -> State:
    for stage in stages:
        state = stage(state, shared)
    return state
