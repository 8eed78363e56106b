"""Functions that generated code calls besides the model's own operators."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from chainstay.runtime.execute.environment import (
    RandomStates,
    random_states,
    restore_random_states,
)
from chainstay.runtime.stage.states import changeable

__all__ = [
    "blank",
    "draw_from",
    "draw_on",
    "hook",
    "mark",
    "scratch",
    "stash",
    "stash_random",
    "unhook",
]


class ForwardRun(Protocol):
    """A forward with an option as its operators see it.

    Attributes:
        stashes: What it sets aside.
    """

    stashes: list[Any]

    def hook(self, number: int) -> None:
        """Drop from now on what the option drops; saved tensor `number` is next."""
        ...

    def unhook(self, number: int) -> None:
        """Let everything stay from now on, before saved tensor `number`."""
        ...


class ReplayCapture(Protocol):
    """A replay as its operators see it.

    Attributes:
        present: The states of generators that have been replaced.
    """

    present: RandomStates

    def begin(self, mark: int) -> None:
        """An operator begins, or with -1 ends."""
        ...


def hook(run: ForwardRun, number: int) -> None:
    """Begin operators of whose saved tensors, the first of which is `number`, some are dropped."""
    run.hook(number)


def unhook(run: ForwardRun, number: int) -> None:
    """End these operators; the next saved tensor is `number`."""
    run.unhook(number)


def stash(run: ForwardRun, index: int, value: Any) -> None:
    """Set a value aside: without the graph that made it, or it would be held in a circle."""
    run.stashes[index] = value.detach() if isinstance(value, torch.Tensor) else value


def stash_random(run: ForwardRun, index: int, device: torch.device, kinds: tuple[str, ...]) -> None:
    """Set aside the states of the generators that the next operator draws from."""
    states = random_states(device)
    run.stashes[index] = tuple(state for state in states if state[0].type in kinds)


def scratch(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Return a copy that may be changed."""
    return None if tensor is None else tensor.detach().clone()


def blank(
    size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return a tensor of any values that requires a gradient and may be changed in place."""
    state = (torch.empty_strided(size, stride, dtype=dtype, device=device, requires_grad=True),)
    (tensor,) = changeable(state, state)
    return tensor


def mark(capture: ReplayCapture, number: int) -> None:
    """Tell which operator saves what comes next: that of a mark, or with -1 none of interest."""
    capture.begin(number)


def draw_from(capture: ReplayCapture, states: RandomStates) -> None:
    """Put generators into these states until `draw_on`."""
    capture.present = tuple(
        (device, state)
        for device, state in random_states(states[-1][0])
        if device in [drawn_from for drawn_from, _ in states]
    )
    restore_random_states(states)


def draw_on(capture: ReplayCapture) -> None:
    """Put back the generators."""
    restore_random_states(capture.present)
    capture.present = ()
