"""Modules that torch.compile has compiled, in place or by a module around them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import nn

from chainstay.errors import UnsupportedModelError


@dataclass(eq=False)
class CompiledCall:
    """Stands in a module for the call that ``module.compile()`` made of it.

    Attributes:
        compiled: That call.
    """

    compiled: Callable[..., Any]


@dataclass(eq=False)
class PlainCall(CompiledCall):
    """The call of the same module without what was compiled."""

    module: nn.Module

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the module's hooks and forward."""
        return self.module._call_impl(*args, **kwargs)  # noqa: SLF001  # as Module.__call__ does


def is_wrapped(module: nn.Module) -> bool:
    """Whether `module` is what ``torch.compile(module)`` puts around another one."""
    return "dynamo_ctx" in vars(module)


def compiled_call(module: nn.Module) -> Any:
    """Return what ``module.compile()`` made, or ``None``, whatever stands in its place."""
    compiled = vars(module).get("_compiled_call_impl")
    return compiled.compiled if isinstance(compiled, CompiledCall) else compiled


def compiler_of(module: nn.Module) -> Callable[..., Any] | None:
    """Return the compiler that torch.compile made of its settings, if it has compiled `module`."""
    if is_wrapped(module):
        context: Callable[..., Any] = vars(module)["dynamo_ctx"]
        return context
    compiled = compiled_call(module)
    if compiled is None:
        return None
    cells = dict(zip(compiled.__code__.co_freevars, compiled.__closure__ or (), strict=True))
    found: Callable[..., Any] = cells["self"].cell_contents
    return found


def require_uncompiled_inside(block: nn.Module) -> None:
    """Refuse a block that is traced without what torch.compile has made of modules in it.

    Raises:
        UnsupportedModelError: It has such modules, and is not compiled itself.
    """
    if compiler_of(block) is not None:
        return
    for name, module in block.named_modules():
        if compiler_of(module) is not None:
            raise UnsupportedModelError(
                f"its {name} is compiled by torch.compile, which no graph of the block has in it; "
                "compile the block as one instead (block.compile())"
            )


def outside_compiled(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules of `model` that are not inside of a compiled one.

    What is inside of one is part of its code, and nobody sees it being called.
    """
    yield model
    if compiler_of(model) is None:
        for child in model.children():
            yield from outside_compiled(child)
