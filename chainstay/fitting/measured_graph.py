"""A measured graph, and the costs of smaller graphs in proportion to its own."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import accumulate, islice
from math import ceil
from operator import add

from chainstay.fitting.strategies.joins import JoinAttempt
from chainstay.profiles import Skip
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.capture.trials.equivalence import OutputSample
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.measured import Measurement
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.staged_graph import StagedChain


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredGraph:
    """A graph that was measured.

    Attributes:
        staged: The graph as stages.
        costs: The costs of the stages.
        shapes: The shapes of its call, for people.
        family: A key that is equal for graphs that differ in sizes only.
        is_scaled: Whether the loss's costs are those of another call, in proportion.
        output: The model's output on the call at hand; ``None`` if the graph is not a model's.
        loss: The loss on that output, if it was traced to be measured.
        attempt: An attempt to plan its branches apart, if it has any.
    """

    staged: StagedChain
    costs: Measurement
    shapes: str
    family: Hashable
    is_scaled: bool
    output: OutputSample | None = None
    loss: ChainStage | None
    attempt: JoinAttempt | None = None

    @property
    def saved_bytes(self) -> int:
        """Bytes that its stages save together."""
        return sum(cost.saved_bytes for cost in self.costs.account.stages)

    def account_for(self, graph: GraphChain) -> Account | None:
        """Return the costs of a smaller graph; ``None`` if it is larger, or not cut alike.

        A stage costs what it did, in proportion to the bytes that it saves and passes on.
        """
        known, stages = self.staged.graph, self.staged.chain.stages
        if graph.cuts != known.cuts:
            return None
        passed_on = _shares(_passed_on(graph, stages), _passed_on(known, stages))
        sizes = _shares(_sizes(graph, stages), _sizes(known, stages))
        if max(*passed_on, *sizes) > 1:
            return None
        return _in_proportion(self.costs.account, sizes, passed_on)


def next_larger(graph: GraphChain, measured: Iterable[MeasuredGraph]) -> MeasuredGraph | None:
    """Return the smallest of the measured graphs that tell the costs of `graph`, or ``None``."""
    larger = (known for known in measured if known.account_for(graph) is not None)
    return min(larger, key=lambda known: known.saved_bytes, default=None)


def _passed_on(graph: GraphChain, stages: Sequence[ChainStage]) -> list[int]:
    """Return the bytes of the input of each of these stages, of which the last one is the loss."""
    places = accumulate((len(stage.parts) for stage in stages), initial=0)
    return [graph.boundary_bytes(place) for place in places]


def _sizes(graph: GraphChain, stages: Sequence[ChainStage]) -> list[int]:
    """Return the bytes that each stage saves and passes on; the loss has its input."""
    parts = iter(graph.stages)
    saved = [sum(part.saved_bytes for part in islice(parts, len(s.parts))) for s in stages]
    passed_on = _passed_on(graph, stages)
    return [*map(add, saved, passed_on[1:]), passed_on[-1]]


def _shares(own: Sequence[int], known: Sequence[int]) -> list[Fraction]:
    """Return how much of the known sizes these are; larger than 1 where only the known one is 0."""
    return [
        Fraction(size, before) if before else Fraction(1 + size)
        for size, before in zip(own, known, strict=True)
    ]


def _in_proportion(
    account: Account, sizes: Sequence[Fraction], passed_on: Sequence[Fraction]
) -> Account:
    """Return an account whose stages and their inputs have these shares of what they had.

    The loss passes on one number in any case.
    """
    stages = tuple(
        cost.scaled(share, passed)
        for cost, share, passed in zip(
            account.stages, sizes, (*passed_on[1:], Fraction(1)), strict=True
        )
    )

    def scaled(skip: Skip) -> Skip:
        least = min(passed_on[skip.first : skip.last + 1])  # it is part of all these states
        return replace(
            skip, bytes=int(skip.bytes * least), gradient_bytes=int(skip.gradient_bytes * least)
        )

    return replace(
        account,
        input_bytes=ceil(account.input_bytes * passed_on[0]),
        input_gradient_bytes=ceil(account.input_gradient_bytes * passed_on[0]),
        stages=stages,
        skips=tuple(map(scaled, account.skips)),
    )
