"""Attention with dropout as GPUs do it: in one kernel.

Stand-ins are on the CPU, whose fused kernel has no dropout; with dropout the CPU makes the
whole matrix of attention weights, and saves it. On GPUs fused kernels draw the mask anew in
the backward. Without dropout both are alike: so dropout is left out for stand-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from torch.nn import functional
from torch.overrides import TorchFunctionMode

from chainstay.runtime.estimate.devices import DeviceModel

_RATES: Final = {
    functional.scaled_dot_product_attention: 4,
    functional.multi_head_attention_forward: 10,
}
"""Functions that do attention, and the position of the dropout's rate among their arguments."""


def attention_as_on(device: DeviceModel) -> AbstractContextManager[object]:
    """A context in which captured graphs do attention as `device` would."""
    return _WithoutDropout() if device.fuses_attention else nullcontext()


class _WithoutDropout(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        rate = _RATES.get(func)
        is_whole = func is functional.multi_head_attention_forward
        gives_weights = is_whole and kwargs.get("need_weights", True)  # the caller wants them
        if rate is not None and not gives_weights:
            kwargs.pop("dropout_p", None)
            args = (*args[:rate], *(0.0 for _ in args[rate:][:1]), *args[rate + 1 :])
        return func(*args, **kwargs)
