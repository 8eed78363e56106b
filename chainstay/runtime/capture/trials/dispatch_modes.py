"""Modes in which the user sees every operator (a counter of FLOPs, a tracker of memory).

TorchDynamo traces nothing while such a mode is active, and its guards fail then. So they are set
aside while it looks for a graph, and active again while the graph runs. Modes that may change
results are refused, as transforms of torch.func are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    is_in_torch_dispatch_mode,
)

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.devices.thread_value import ThreadValue

set_aside: Final = ThreadValue[tuple[TorchDispatchMode, ...]](())
"""The modes that are set aside."""


@contextmanager
def modes_set_aside() -> Iterator[None]:
    """Inside, no mode of the user's is active, but where `in_modes` says so."""
    if not is_in_torch_dispatch_mode(include_infra_modes=False):
        yield
        return
    active = [mode for mode in _get_current_dispatch_mode_stack() if not mode.is_infra_mode()]
    with set_aside.set_to((*set_aside.now, *active)), _switched(active, on=False):
        yield


@contextmanager
def without_modes() -> Iterator[None]:
    """Inside, no mode of the user's sees anything."""
    with modes_set_aside(), set_aside.set_to(()):
        yield


def in_modes(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """Call `function` in the modes that were set aside."""
    with _switched(set_aside.now, on=True), set_aside.set_to(()):
        return function(*args)


@contextmanager
def _switched(modes: Sequence[TorchDispatchMode], *, on: bool) -> Iterator[None]:
    """Inside, the innermost modes are active or not; what they do at their own end is not done."""
    _switch(modes, on=on)
    try:
        yield
    finally:
        _switch(modes, on=not on)


def _switch(modes: Sequence[TorchDispatchMode], *, on: bool) -> None:
    for mode in modes if on else reversed(modes):
        if on:
            TorchDispatchMode.__enter__(mode)
        else:
            TorchDispatchMode.__exit__(mode, None, None, None)


def is_transformed() -> bool:
    """Whether a transform of torch.func (grad, jvp, vmap) is on."""
    return torch._C._functorch.peek_interpreter_stack() is not None  # noqa: SLF001  # no public way


def require_no_transform(name: str) -> None:
    """Refuse what may change results, which a recomputation would miss; torch's own look on."""
    if forward_ad._current_level >= 0:  # noqa: SLF001  # no public way
        raise UnsupportedModelError(
            f"{name} is called in forward-mode AD (torch.func.jvp, torch.autograd.forward_ad), "
            "which no plan supports; call it under torch.no_grad(), or call "
            "chainstay.unfit(model)"
        )
    found = ""
    if is_transformed():
        found = "a transform of torch.func"
    elif torch._C._len_torch_dispatch_stack():  # noqa: SLF001  # likewise
        modes = map(type, _get_current_dispatch_mode_stack())
        names = [mode.__name__ for mode in modes if not mode.__module__.startswith("torch.")]
        found = f"the dispatch mode {names[0]}" if names else ""
    if found:
        raise UnsupportedModelError(
            f"{name} is called under {found}; what its plan runs again would not be under it: "
            "leave that out, or call chainstay.unfit(model)"
        )
