"""Attention with dropout as GPUs do it: in one kernel.

Stand-ins are on the CPU, whose fused kernel has no dropout; with dropout the CPU makes the
whole matrix of attention weights, and saves it. On GPUs fused kernels draw the mask anew in
the backward. Without dropout both are alike: so dropout is left out for stand-ins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

import torch
from torch.overrides import TorchFunctionMode

from chainstay.runtime.estimating.devices import DeviceModel

__all__ = ["attention_as_on"]

_ATTENTION: Final = torch.ops.aten.scaled_dot_product_attention.default
_DROPOUT: Final = 4
"""Position of the dropout's rate among the operator's arguments."""


def attention_as_on(device: DeviceModel) -> AbstractContextManager[object]:
    """A context in which exported graphs do attention as `device` would."""
    return _WithoutDropout() if device.fuses_attention else nullcontext()


class _WithoutDropout(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  # what func returns
        kwargs = dict(kwargs or {})
        if func is _ATTENTION:
            kwargs.pop("dropout_p", None)
            args = (*args[:_DROPOUT], *(0.0 for _ in args[_DROPOUT:][:1]), *args[_DROPOUT + 1 :])
        return func(*args, **kwargs)
