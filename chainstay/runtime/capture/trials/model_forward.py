"""The forward of a module as a function of the module, whatever stands in its place."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, update_wrapper
from types import MethodType
from typing import Any

from torch import nn


def unbound_forward(module: nn.Module) -> Callable[..., Any]:
    """The module's own forward, which takes the module first.

    That is its class's, unless a library has put another in front of it (for mixed precision,
    say).
    """
    own: Any = own_forward(module)
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
    """The module's own attribute ``forward``, if it has one that is not by `stand_in_for`."""
    own = vars(module).get("forward")
    while is_stand_in(own):
        own = own.__func__.replaced  # type: ignore[union-attr]  # a bound method
    return own


def is_stand_in(forward: object) -> bool:
    """Whether this is a module's attribute ``forward`` by `stand_in_for`."""
    return hasattr(getattr(forward, "__func__", None), "replaced")


def stand_in_for(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Let calls of `module` go to `forward`, which takes the module first."""
    forward.replaced = own_forward(module)  # type: ignore[attr-defined]  # functions take any attribute
    forward.__name__ = "forward"  # by which a bound method is found again when it is unpickled
    vars(module)["forward"] = MethodType(forward, module)


def restore_forward(module: nn.Module) -> None:
    """End what `stand_in_for` began."""
    own = own_forward(module)
    vars(module).pop("forward", None)
    if own is not None:
        vars(module)["forward"] = own
