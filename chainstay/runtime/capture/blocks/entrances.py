"""Entrances of blocks, where whoever runs the model may take over the calls.

A block keeps its class and its hooks; in front of its forward stands a function that looks
whether somebody in this thread wants its calls, and otherwise runs the forward. Blocks compiled
with torch.compile are called as they are unless somebody does; their graphs are compiled with
the same settings then.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Final

import torch
from torch import nn

from chainstay.runtime.capture.trials.compiled_calls import CompiledCall, compiler_of, is_wrapped
from chainstay.runtime.capture.trials.dispatch_modes import is_transformed
from chainstay.runtime.capture.trials.model_forward import (
    is_stand_in,
    restore_forward,
    stand_in_for,
    unbound_forward,
)
from chainstay.runtime.devices.thread_value import ThreadValue

BlockHandler = Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], Any]
"""Takes a block and the arguments of its call; gives what the block would."""

block_handler: Final = ThreadValue[BlockHandler | None](None)
"""Whoever takes over a thread's calls of blocks while gradients are recorded."""


def open_entrance(block: nn.Module) -> None:
    """Let calls of `block` be handed over, not those of copies that the model's forward makes."""
    plain, block_ref = unbound_forward(block), weakref.ref(block)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return plain(self, *args, **kwargs)
        # A forward that was put around this one later is not part of the block.
        is_first = getattr(vars(self).get("forward"), "__func__", None) is forward
        is_handed = torch.is_grad_enabled() and block_ref() is self and not is_transformed()
        handler = block_handler.now if is_first and is_handed else None
        if handler is None:
            own = unbound_forward(self) if is_first else plain  # its class may be another by now
            return own(self, *args, **kwargs)
        with block_handler.set_to(None):  # what is in the block is part of it
            return handler(self, args, kwargs)

    update_wrapper(forward, plain)
    forward.is_entrance = True  # type: ignore[attr-defined]  # functions take any attribute
    stand_in_for(block, forward)
    compiled = vars(block).get("_compiled_call_impl")
    if compiled is not None and not isinstance(compiled, CompiledCall):
        vars(block)["_compiled_call_impl"] = _CallOrHandler(compiled, block)


def close_entrance(block: nn.Module) -> None:
    """Leave `block` as it was, if it has an entrance."""
    if not hasattr(getattr(vars(block).get("forward"), "__func__", None), "is_entrance"):
        return
    restore_forward(block)
    compiled = vars(block).get("_compiled_call_impl")
    if isinstance(compiled, _CallOrHandler):
        vars(block)["_compiled_call_impl"] = compiled.compiled


def close_entrances(model: nn.Module) -> None:
    """Leave all modules of a model as they were."""
    for module in model.modules():
        close_entrance(module)


@contextmanager
def entered(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Inside, calls of these blocks can be handed over."""
    blocks = list(blocks)
    new = [block for block in blocks if not is_stand_in(vars(block).get("forward"))]
    try:
        for block in new:
            open_entrance(block)
        yield
    finally:
        for block in new:
            close_entrance(block)


def run_plainly(block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run a block's own forward, not compiled, as a `BlockHandler` that does nothing else."""
    return traced_forward(block)(traced_module(block), *args, **kwargs)


def run_itself(block: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Run a block's own forward, compiled if the block is."""
    compiler, forward = compiler_of(block), traced_forward(block)
    run = forward if compiler is None else compiler(forward)
    return run(traced_module(block), *args, **kwargs)


def traced_module(block: nn.Module) -> nn.Module:
    """Return the module that is traced: where torch.compile has wrapped one, the one inside."""
    return block.get_submodule("_orig_mod") if is_wrapped(block) else block


def traced_forward(block: nn.Module) -> Callable[..., Any]:
    """Return the forward of `traced_module`, which is traced."""
    return unbound_forward(block) if traced_module(block) is block else _call


@dataclass(eq=False)
class _CallOrHandler(CompiledCall):
    """The call that ``block.compile()`` made, unless calls are handed over."""

    block: nn.Module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if block_handler.now is None or not torch.is_grad_enabled():
            return self.compiled(*args, **kwargs)
        return self.block._call_impl(*args, **kwargs)  # noqa: SLF001  # hooks, then the forward


def _call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return module(*args, **kwargs)
