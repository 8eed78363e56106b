"""Models that run by a plan: a captured graph, or the blocks of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from chainstay.profiles import ChainProfile, JoinProfile
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.execute.alternatives import Alternative
from chainstay.runtime.execute.block_executor import BlockSchedule
from chainstay.runtime.execute.executor import Executor
from chainstay.solution import Solution

__all__ = ["Planned", "PlannedBlocks", "PlannedGraph"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A model's forward by a plan.

    Attributes:
        solution: The plan, and how good it is.
        profile: What the stages cost.
        origin: A word to people on where the stages come from, if that needs saying.
        overheads: The bytes of each operation besides what is stored, where that was measured.
        plain_time: Time of plain training in ns; where there is none, that of `profile` comes
            close: there, stages that the plan runs again take longer.
        plain_peak: Peak of plain training in bytes, where that was measured.
        alternatives: The alternatives of the plan, itself included; empty where there was no
            choice.
    """

    solution: Solution
    profile: ChainProfile | JoinProfile
    origin: str = ""
    overheads: tuple[int, ...] | None = None
    plain_time: int | None = None
    plain_peak: int | None = None
    alternatives: tuple[Alternative, ...] = ()

    def close(self) -> None:
        """Let go of what the plan holds besides the model; it is not called again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGraph(Planned):
    """A captured graph by a plan.

    Attributes:
        chain: The graph as a chain, from the graph's inputs to the first state, and from the last
            one to its outputs.
        executor: Runs the stages.
        profile: What the chain costs.
    """

    chain: GraphChain
    executor: Executor
    profile: ChainProfile

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:  # noqa: ANN401  # tensors and numbers
        """Return the outputs of the graph."""
        state, shared = self.chain.begin(inputs)
        return self.chain.finish(self.executor(state, shared), shared)

    def close(self) -> None:
        """Stop transfers; see `Planned`."""
        self.executor.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBlocks(Planned):
    """The blocks of a model by a plan, called by the model's own forward.

    Attributes:
        schedule: Runs them.
        profile: What a step costs.
    """

    schedule: BlockSchedule
    profile: ChainProfile
