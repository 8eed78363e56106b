"""Modes in which the user sees every operator (a counter of FLOPs, a tracker of memory).

TorchDynamo traces nothing while such a mode is active, and its guards fail then. So they are set
aside while it looks for a graph, and active again while the graph runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_in_torch_dispatch_mode,
)

from chainstay.errors import UnsupportedModelError

__all__ = ["in_modes", "modes_set_aside", "require_no_transform", "without_modes"]

_thread = threading.local()


@contextmanager
def modes_set_aside() -> Iterator[None]:
    """Inside, no mode of the user's is active, but where `in_modes` says so."""
    if not is_in_torch_dispatch_mode(include_infra_modes=False):
        yield
        return
    before = _set_aside()
    active = [mode for mode in _get_current_dispatch_mode_stack() if not mode.is_infra_mode()]
    _thread.modes = (*before, *active)
    try:
        with _left(active):
            yield
    finally:
        _thread.modes = before


@contextmanager
def without_modes() -> Iterator[None]:
    """Inside, no mode of the user's sees anything."""
    with modes_set_aside():
        hidden = _set_aside()
        _thread.modes = ()
        try:
            yield
        finally:
            _thread.modes = hidden


def in_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, run in the modes that were set aside."""

    def run(*args: Any) -> Any:  # noqa: ANN401  # whatever the function takes and gives
        modes = _set_aside()
        if not modes:
            return function(*args)
        _thread.modes = ()
        try:
            with _entered(modes):
                return function(*args)
        finally:
            _thread.modes = modes

    return run


def require_no_transform(name: str) -> None:
    """Refuse what may change results while the model runs: what a plan runs again is not changed.

    Modes of torch itself only look on.

    Raises:
        UnsupportedModelError: There is something of the kind.
    """
    found = ""
    if torch._C._functorch.peek_interpreter_stack() is not None:  # noqa: SLF001  # no public way
        found = "a transform of torch.func"
    elif torch._C._len_torch_dispatch_stack():  # noqa: SLF001  # likewise
        modes = map(type, _get_current_dispatch_mode_stack())
        names = [mode.__name__ for mode in modes if not mode.__module__.startswith("torch.")]
        found = f"the dispatch mode {names[0]}" if names else ""
    if found:
        raise UnsupportedModelError(
            f"{name} is called under {found}, which what its plan runs again would miss; leave "
            "that out, or call chainstay.unfit(model)"
        )


def _set_aside() -> tuple[TorchDispatchMode, ...]:
    return getattr(_thread, "modes", ())


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
