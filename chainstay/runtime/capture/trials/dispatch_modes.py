"""Modes in which the user sees every operator (a counter of FLOPs, a tracker of memory).

TorchDynamo traces nothing while such a mode is active, and its guards fail then. So they are set
aside while it looks for a graph, and active again while the graph runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_in_torch_dispatch_mode,
)


class _SetAside(threading.local):
    """The modes of a thread that are set aside."""

    modes: tuple[TorchDispatchMode, ...] = ()


set_aside: Final = _SetAside()


@contextmanager
def modes_set_aside() -> Iterator[None]:
    """Inside, no mode of the user's is active, but where `in_modes` says so."""
    if not is_in_torch_dispatch_mode(include_infra_modes=False):
        yield
        return
    before = set_aside.modes
    active = [mode for mode in _get_current_dispatch_mode_stack() if not mode.is_infra_mode()]
    set_aside.modes = (*before, *active)
    try:
        with _left(active):
            yield
    finally:
        set_aside.modes = before


@contextmanager
def without_modes() -> Iterator[None]:
    """Inside, no mode of the user's sees anything."""
    with modes_set_aside():
        hidden = set_aside.modes
        set_aside.modes = ()
        try:
            yield
        finally:
            set_aside.modes = hidden


def in_modes(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:  # noqa: ANN401  # whatever the function gives
    """Call `function` in the modes that were set aside."""
    modes, set_aside.modes = set_aside.modes, ()
    try:
        with _entered(modes):
            return function(*args)
    finally:
        set_aside.modes = modes


@contextmanager
def _left(modes: Sequence[TorchDispatchMode]) -> Iterator[None]:
    """Inside, the innermost modes are not active; what they do at their own end is not done."""
    _leave(modes)
    try:
        yield
    finally:
        _enter(modes)


@contextmanager
def _entered(modes: Sequence[TorchDispatchMode]) -> Iterator[None]:
    _enter(modes)
    try:
        yield
    finally:
        _leave(modes)


def _enter(modes: Sequence[TorchDispatchMode]) -> None:
    for mode in modes:
        TorchDispatchMode.__enter__(mode)


def _leave(modes: Sequence[TorchDispatchMode]) -> None:
    for mode in reversed(modes):
        TorchDispatchMode.__exit__(mode, None, None, None)
