"""The forward of a module as a function of the module, whatever stands in its place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from types import MethodType
from typing import Any, Final

from torch import nn


def unbound_forward(module: nn.Module) -> Callable[..., Any]:
    """Return the module's own forward, which takes the module first.

    That is its class's, unless a library has put another in front of it (for mixed precision,
    say).
    """
    return _unbound(module, own_forward(module))


def stood_in_forward(module: nn.Module) -> Callable[..., Any]:
    """Return the forward that `stand_in_for` has replaced, whatever was put around that since."""
    return _unbound(module, vars(module).get(STOOD_IN_FOR))


def _unbound(module: nn.Module, own: Any) -> Callable[..., Any]:
    """Return a module's `own` forward, or that of its class, as a function of the module."""
    if own is None:
        return type(module).forward
    if isinstance(own, MethodType) and own.__self__ is module:
        return own.__func__
    if isinstance(own, partial) and own.args[:1] == (module,):  # as hooks of accelerate do
        function, others, keywords = own.func, own.args[1:], own.keywords

        def partly(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return function(self, *others, *args, **{**keywords, **kwargs})

        return update_wrapper(partly, own)

    def forward(_: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return own(*args, **kwargs)

    return update_wrapper(forward, own)


def own_forward(module: nn.Module) -> object | None:
    """Return a module's own attribute ``forward``, if it has one not by `stand_in_for`."""
    own = vars(module).get("forward")
    return vars(module).get(STOOD_IN_FOR) if is_stand_in(own) else own


def is_stand_in(forward: object) -> bool:
    """Whether this is a module's attribute ``forward`` by `stand_in_for`."""
    return hasattr(getattr(forward, "__func__", None), "stands_in")


def stand_in_for(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Let calls of `module` go to `forward`, which takes the module first."""
    own = own_forward(module)
    forward.stands_in = True  # type: ignore[attr-defined]  # functions take any attribute
    own_method = own if isinstance(own, MethodType) and own.__self__ is module else None
    # By its name a bound method is found again when it is unpickled.
    forward.__name__ = "forward" if own_method is None else own_method.__name__
    vars(module).pop(STOOD_IN_FOR, None)  # of a stand-in that somebody has removed
    if own is not None:
        vars(module)[STOOD_IN_FOR] = own  # in the module: a copy of it has one of its own there
    vars(module)["forward"] = MethodType(forward, module)


def restore_forward(module: nn.Module) -> None:
    """Give a module back the forward that it had before `stand_in_for`."""
    own = own_forward(module)
    vars(module).pop("forward", None)
    vars(module).pop(STOOD_IN_FOR, None)
    if own is not None:
        vars(module)["forward"] = own


STOOD_IN_FOR: Final = "_chainstay_forward"
"""The attribute of a module that holds its own attribute ``forward`` meanwhile."""
