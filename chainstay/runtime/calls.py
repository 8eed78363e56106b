"""How a call of a model becomes a chain's first state, and its last state the output."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from torch import nn

from chainstay.errors import PlanMismatchError
from chainstay.profiles import ChainProfile, JoinProfile
from chainstay.runtime.alternatives import Alternative
from chainstay.runtime.block_calls import BlockExecutor
from chainstay.runtime.executor import Executor
from chainstay.runtime.states import State
from chainstay.solution import Solution

__all__ = ["Ends", "Planned", "PlannedBlocks", "PlannedCall", "TensorEnds"]


class Ends(Protocol):
    """The two ends of a chain; an `ExtractedChain` has them."""

    def begin(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[State, State]:
        """The first state, and what all stages may read."""
        ...

    def finish(self, state: State, shared: State) -> Any:  # noqa: ANN401  # the model's own
        """The model's output from the last state."""
        ...


@dataclass(frozen=True, slots=True)
class TensorEnds:
    """The ends of a chain with one tensor in and one tensor out.

    Attributes:
        model: Whose children the stages are.
        children: They, by name.
    """

    model: nn.Module
    children: tuple[tuple[str, nn.Module | None], ...]

    @classmethod
    def of(cls, model: nn.Module) -> Self:
        """Those of `model` as it is."""
        return cls(model, tuple(model._modules.items()))  # noqa: SLF001  # one in two places, too

    def begin(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[State, State]:
        """As `Ends`.

        Raises:
            PlanMismatchError: A child of the model was replaced, added or removed.
        """
        if tuple(self.model._modules.items()) != self.children:  # noqa: SLF001  # likewise
            raise PlanMismatchError(
                f"a stage of this {type(self.model).__name__} was replaced, added or removed "
                "after planning; plan the model again (with fit: unfit and fit it)"
            )
        (activation,) = (*args, *kwargs.values())
        return (activation,), ()

    def finish(self, state: State, shared: State) -> Any:  # noqa: ANN401, ARG002  # as `Ends`
        """As `Ends`."""
        (activation,) = state
        return activation


class Planned(Protocol):
    """A model's forward by a plan."""

    @property
    def solution(self) -> Solution:
        """The plan, and how good it is."""
        ...

    @property
    def profile(self) -> ChainProfile | JoinProfile:
        """What the stages cost."""
        ...

    @property
    def origin(self) -> str:
        """For people: where the stages come from, if that needs saying."""
        ...

    @property
    def overheads(self) -> tuple[int, ...] | None:
        """What each operation needs besides what is stored, where that was measured."""
        ...

    @property
    def plain_time(self) -> int | None:
        """Of plain training, in ns; where there is none, that of `profile` comes close.

        In `profile`, stages that the plan runs again take longer.
        """
        ...

    @property
    def alternatives(self) -> tuple[Alternative, ...]:
        """What it was weighed against, itself included; empty where there was no choice."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        """What ``model(*args, **kwargs)`` gives."""
        ...

    def close(self) -> None:
        """Let go of what the plan holds besides the model; it is not called again."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedCall:
    """A model's forward by a plan.

    Attributes:
        ends: Of its chain.
        executor: Runs the chain.
        solution: The plan, and how good it is.
        profile: What the chain costs.
        origin: As `Planned`.
        overheads: As `Planned`.
        alternatives: As `Planned`.
        plain_time: As `Planned`.
    """

    ends: Ends
    executor: Executor
    solution: Solution
    profile: ChainProfile
    origin: str = ""
    overheads: tuple[int, ...] | None = None
    alternatives: tuple[Alternative, ...] = ()
    plain_time: int | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        """What ``model(*args, **kwargs)`` gives."""
        state, shared = self.ends.begin(args, kwargs)
        return self.ends.finish(self.executor(state, shared), shared)

    def close(self) -> None:
        """As `Planned`: transfers stop."""
        self.executor.close()


@dataclass(frozen=True, slots=True)
class PlannedBlocks:
    """A model's own forward, its blocks run by a plan.

    Attributes:
        forward: The model's own.
        executor: Runs the blocks.
        solution: The plan, and how good it is.
        profile: What a step costs.
        origin: As `Planned`.
        overheads: As `Planned`.
        alternatives: As `Planned`.
        plain_time: As `Planned`.
    """

    forward: Callable[..., Any]
    executor: BlockExecutor
    solution: Solution
    profile: ChainProfile
    origin: str
    overheads: tuple[int, ...] | None = None
    alternatives: tuple[Alternative, ...] = ()
    plain_time: int | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        """What ``model(*args, **kwargs)`` gives."""
        return self.executor(self.forward, args, kwargs)

    def close(self) -> None:
        """As `Planned`: there is nothing."""
