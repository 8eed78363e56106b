"""The code that TorchDynamo traces, and the state of tracing that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from torch._guards import TracingContext

from chainstay.runtime.capture.tracing import UnknownCallError
from chainstay.runtime.devices.thread_value import ThreadValue

is_tracing: Final = ThreadValue(value=False)
"""Whether TorchDynamo is asked for new graphs."""

is_sample: Final = ThreadValue(value=False)
"""Whether a call is to be planned and is not made: graphs that need no plan are not run."""


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
    return is_tracing.now and TracingContext.try_get() is not None


_is_traced._dynamo_marked_constant = True  # type: ignore[attr-defined]  # noqa: SLF001  # as assume_constant_result does, without importing torch._dynamo
