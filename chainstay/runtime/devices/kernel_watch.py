"""A look at kernels while they run, below autograd."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Self, cast

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class KernelCall(NamedTuple):
    """A kernel that has run, its arguments, and what it gave."""

    kernel: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    result: Any


@dataclass
class KernelWatch(TorchDispatchMode):
    """A context in which every kernel that runs is seen.

    What torch.compile has compiled runs as it was before: under a mode, TorchDynamo would mark its
    code as not to be compiled, for as long as the process lives.
    """

    supports_higher_order_operators = True

    _inside: ExitStack = field(default_factory=ExitStack, kw_only=True)

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it

    def __enter__(self) -> Self:
        if _IS_EARLY:
            for operator in torch._ops._higher_order_ops.values():  # noqa: SLF001  # no public way
                operator.python_key_table.setdefault(type(self), partial(_watched, operator))
        self._inside.enter_context(torch.compiler.set_stance("force_eager"))
        return cast("Self", super().__enter__())  # type: ignore[no-untyped-call]  # likewise

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]  # likewise
        self._inside.close()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self.see(KernelCall(func, args, kwargs, result))
        return result

    @abstractmethod
    def see(self, call: KernelCall) -> None:
        """Look at a kernel that has run."""


_IS_EARLY: Final = not hasattr(TorchDispatchMode, "supports_higher_order_operators")
"""Whether torch, as 2.6, wants a rule for each operator of higher order and each kind of mode."""


def _watched(operator: Callable[..., Any], mode: KernelWatch, *args: Any, **kwargs: Any) -> Any:
    return mode.__torch_dispatch__(operator, (), args, kwargs)
