"""A model's forward, stopped at each of its blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch
from torch import nn

from chainstay.errors import PlanMismatchError
from chainstay.runtime.binding import version_of
from chainstay.runtime.extraction.recording import taken_over
from chainstay.runtime.extraction.templates import Template
from chainstay.runtime.states import State

__all__ = ["BlockRunner", "OnCall", "Stop", "drive"]

OnCall = Callable[[], Any]
"""What the model's call of a block does; gives what the block returns."""

BlockRunner = Callable[[int, OnCall, State, State], tuple[Any, State]]
"""Runs a block for the first time, given its number, its call, its state, what its segment
shares so far; gives what the model is to get, and the next state."""


class Stop(Protocol):
    """A block where the forward stops; a `BlockStage` is one."""

    @property
    def name(self) -> str:
        """Of the block."""
        ...

    @property
    def block(self) -> nn.Module:
        """The module."""
        ...

    @property
    def inputs(self) -> Template:
        """Its arguments."""
        ...


@contextmanager
def drive(stops: Sequence[Stop], starts: Sequence[int], runner: BlockRunner) -> Iterator[None]:
    """While this lasts, the model's calls of its blocks go to `runner`; for one forward.

    Args:
        stops: In the order of the calls.
        starts: Those of them in front of which the model does something of its own.
        runner: Called for one after another.

    Raises:
        PlanMismatchError: The blocks are not called as they were on the sample.
    """
    driver = _Driver(stops, frozenset(starts), runner)
    with taken_over({stop.block: partial(driver.call, stop.block) for stop in stops}):
        yield
    if driver.following != len(stops):
        raise PlanMismatchError(
            f"the model does not call {stops[driver.following].name}, which the plan is for; call "
            "it like the sample, or fit it again"
        )


@dataclass(slots=True)
class _Driver:
    """One forward of the model, from block to block."""

    stops: Sequence[Stop]
    starts: frozenset[int]
    runner: BlockRunner
    following: int = 0
    state: State = ()
    versions: tuple[int, ...] = ()
    shared: list[torch.Tensor] = field(default_factory=list)

    def call(
        self,
        block: nn.Module,
        forward: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Any:  # noqa: ANN401  # the block's own
        """What the model gets when it calls `block`."""
        index = self.following
        if index == len(self.stops) or self.stops[index].block is not block:
            name = next(stop.name for stop in self.stops if stop.block is block)
            raise PlanMismatchError(
                f"the model calls {name} out of turn; the plan is for blocks called one after "
                "another as on the sample"
            )
        stop = self.stops[index]
        arguments = (args, dict(sorted(kwargs.items())))
        state, shared = stop.inputs.tensors_of(arguments, stop.name)
        if index in self.starts:
            self.state, self.shared = tuple(state.values()), []
        elif not self._are_known(state):
            raise PlanMismatchError(
                f"{stop.name} is called with tensors that are neither what the block before "
                "returned, unchanged, nor inputs of the first block; fit the model again"
            )
        self._share(shared, stop.name)
        call = partial(forward, *args, **kwargs)
        result, self.state = self.runner(index, call, self.state, tuple(self.shared))
        self.versions = tuple(map(version_of, self.state))
        self.following += 1
        return result

    def _are_known(self, given: Mapping[int, torch.Tensor]) -> bool:
        return all(
            self.state[position] is tensor and self.versions[position] == version_of(tensor)
            for position, tensor in given.items()
        )

    def _share(self, given: Mapping[int, torch.Tensor], name: str) -> None:
        for position, tensor in given.items():
            if position == len(self.shared):
                self.shared.append(tensor)
            elif self.shared[position] is not tensor:
                raise PlanMismatchError(
                    f"{name} is called with another mask or the like than the blocks before it, "
                    "unlike on the sample; fit the model again"
                )
