"""Refusals, by name, of what cannot be estimated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.capture.tracing import NoFullGraphError

_NO_FAKE_KERNEL: Final = re.compile(r"no fake impl registered for <?(?:CustomOpDef\()?([\w:.]+)")
_DECIDES: Final = re.compile(r"data-dependent branching|generic_jump", re.IGNORECASE)
"""What TorchDynamo says of a branch on a tensor, in one version or another."""


@contextmanager
def told_by_name(model: str) -> Iterator[None]:
    """Say of failures that stand-ins bring about which operator it was, and what to do.

    Raises:
        UnsupportedModelError: A value decided, or an operator says nothing of its results; or
            the model has no full graph.
    """
    try:
        yield
    except Exception as error:
        text = next(filter(None, map(_told, _causes(error))), None)
        if text is None and isinstance(error, NoFullGraphError):
            text = f"{error}; check that it takes these arguments, or measure it where it can run"
        if text is None:
            raise
        raise UnsupportedModelError(f"{model} cannot be estimated: {text}") from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _told(cause: BaseException) -> str | None:
    """Return what went wrong, in words, if stand-ins are to blame."""
    match cause:
        case DataDependentOutputException() | DynamicOutputShapeException():
            return (
                f"what it does depends on values, which {cause.func} asks for; keep them tensors "
                "(torch.where, torch.cond), or measure it where it can run"
            )
        case UnsupportedOperatorException():
            return _without_fake_kernel(str(cause.func))
        case NoFullGraphError() if _DECIDES.search(str(cause)):
            return (
                "it decides by the values of a tensor; write that with torch.where or "
                "torch.cond, or measure it where it can run"
            )
    found = _NO_FAKE_KERNEL.search(str(cause))
    return None if found is None else _without_fake_kernel(found[1])


def _without_fake_kernel(operator: str) -> str:
    return (
        f"the operator {operator} has no fake kernel, which tells the shape of its result; "
        "register one with torch.library.register_fake"
    )
