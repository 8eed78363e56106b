"""The code that TorchDynamo traces, and the state of tracing that it asks for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from torch._guards import TracingContext

from chainstay.runtime.capture.tracing import UnknownCallError


class _Tracing(threading.local):
    """The state of tracing in one thread."""

    active: bool = False
    is_sample: bool = False  # to plan a call that is not made


trace_state: Final = _Tracing()


@contextmanager
def sampling(*, wanted: bool) -> Iterator[None]:
    """Inside, graphs that need no plan are not run, if that is `wanted`."""
    trace_state.is_sample = wanted
    try:
        yield
    finally:
        trace_state.is_sample = False


def guarded_call(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], state: str
) -> Any:
    """Call `function` as traced code; run as it is, it refuses before it has done anything.

    What the traced code asks `state` for becomes a guard.
    """
    if not _is_traced() or state == "unknown":
        raise UnknownCallError
    return function(*args, **kwargs)


def _is_traced() -> bool:
    """True in traced code, where it was asked once; TorchDynamo keeps the answer."""
    # Where TorchDynamo is switched off, there is no context.
    return trace_state.active and TracingContext.try_get() is not None


_is_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001  # as assume_constant_result does, without importing torch._dynamo
