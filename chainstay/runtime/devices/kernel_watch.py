"""A look at kernels while they run, below autograd."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any, Final, NamedTuple, Self, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class KernelCall(NamedTuple):
    """A kernel that has run, its arguments, and what it gave."""

    kernel: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any


@dataclass(slots=True)
class _Uncompiled:
    """Keeps torch.compile from running what it has compiled, as long as anybody asks for that.

    torch has one stance for all threads. Were it set and put back by each that asks, two whose
    times overlap would leave the stance of the first one for good.
    """

    lock: Lock = field(default_factory=Lock)
    asking: int = 0
    stance: ExitStack = field(default_factory=ExitStack)

    def begin(self) -> None:
        """Ask for it."""
        with self.lock:
            if not self.asking:
                self.stance.enter_context(torch.compiler.set_stance("force_eager"))
            self.asking += 1

    def end(self) -> None:
        """Ask for it no longer."""
        with self.lock:
            self.asking -= 1
            if not self.asking:
                self.stance.close()


_uncompiled: Final = _Uncompiled()


@dataclass
class KernelWatch(TorchDispatchMode):
    """A context in which every kernel that runs is seen.

    What torch.compile has compiled runs as it was before: under a mode, TorchDynamo would mark its
    code as not to be compiled, for as long as the process lives.
    """

    supports_higher_order_operators = True

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it

    def __enter__(self) -> Self:
        if _IS_EARLY:
            for operator in torch._ops._higher_order_ops.values():  # noqa: SLF001  # no public way
                operator.python_key_table.setdefault(type(self), partial(_watched, operator))
        _uncompiled.begin()
        return cast("Self", super().__enter__())  # type: ignore[no-untyped-call]  # likewise

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # likewise
        _uncompiled.end()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = self.run(func, args, kwargs)
        self.see(KernelCall(func, args, kwargs, result))
        return result

    def run(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """Run a kernel, or return what takes the place of its result."""
        return func(*args, **kwargs)

    def see(self, call: KernelCall) -> None:
        """Look at a kernel that has run."""


_IS_EARLY: Final = not hasattr(TorchDispatchMode, "supports_higher_order_operators")
"""Whether torch, as 2.6, wants a rule for each operator of higher order and each kind of mode."""


def _watched(operator: Callable[..., Any], mode: KernelWatch, *args: Any, **kwargs: Any) -> Any:
    return mode.__torch_dispatch__(operator, (), args, kwargs)
