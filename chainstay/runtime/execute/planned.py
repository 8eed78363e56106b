"""Models that run by a plan: a captured graph, or the blocks of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from chainstay.profiles import ChainProfile, JoinProfile
from chainstay.runtime.capture.cuts.chain import GraphChain
from chainstay.runtime.execute.alternatives import Alternative
from chainstay.runtime.execute.block_executor import BlockSchedule
from chainstay.runtime.execute.executor import Executor
from chainstay.solution import Solution

__all__ = ["Planned", "PlannedBlocks", "PlannedGraph"]


class Planned(Protocol):
    """A model's forward by a plan."""

    @property
    def solution(self) -> Solution:
        """The plan, and how good it is."""
        ...

    @property
    def profile(self) -> ChainProfile | JoinProfile:
        """The costs of the stages."""
        ...

    @property
    def origin(self) -> str:
        """A word to people on where the stages come from, if that needs saying."""
        ...

    @property
    def overheads(self) -> tuple[int, ...] | None:
        """The bytes of each operation besides what is stored, or ``None`` where not measured."""
        ...

    @property
    def plain_time(self) -> int | None:
        """Time of plain training in ns; where there is none, that of `profile` comes close.

        In `profile`, stages that the plan runs again take longer.
        """
        ...

    @property
    def plain_peak(self) -> int | None:
        """Peak of plain training in bytes, where that was measured."""
        ...

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """The alternatives of the plan, itself included; empty where there was no choice."""
        ...

    def close(self) -> None:
        """Let go of what the plan holds besides the model; it is not called again."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedGraph:
    """A captured graph by a plan; see `Planned`.

    Attributes:
        chain: The graph as a chain, from the graph's inputs to the first state, and from the last
            one to its outputs.
        executor: Runs the stages.
        solution: The plan, and how good it is.
        profile: What the chain costs.
        origin: See `Planned`.
        overheads: See `Planned`.
        alternatives: See `Planned`.
        plain_time: See `Planned`.
        plain_peak: See `Planned`.
    """

    chain: GraphChain
    executor: Executor
    solution: Solution
    profile: ChainProfile
    origin: str = ""
    overheads: tuple[int, ...] | None = None
    alternatives: tuple[Alternative, ...] = ()
    plain_time: int | None = None
    plain_peak: int | None = None

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:  # noqa: ANN401  # tensors and numbers
        """Return the outputs of the graph."""
        state, shared = self.chain.begin(inputs)
        return self.chain.finish(self.executor(state, shared), shared)

    def close(self) -> None:
        """Stop transfers; see `Planned`."""
        self.executor.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBlocks:
    """The blocks of a model by a plan, called by the model's own forward; see `Planned`.

    Attributes:
        schedule: Runs them.
        solution: The plan, and how good it is.
        profile: What a step costs.
        origin: See `Planned`.
        overheads: See `Planned`.
        plain_time: See `Planned`.
        plain_peak: See `Planned`.
        alternatives: See `Planned`.
    """

    schedule: BlockSchedule
    solution: Solution
    profile: ChainProfile
    origin: str = ""
    overheads: tuple[int, ...] | None = None
    plain_time: int | None = None
    plain_peak: int | None = None
    alternatives: tuple[Alternative, ...] = ()

    def close(self) -> None:
        """Close nothing: blocks hold no engine; see `Planned`."""
