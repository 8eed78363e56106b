"""Kernels that may draw random numbers from torch's generators.

A run on a sample does not tell: ``poisson`` draws nothing where a rate is 0, a leaky ``rrelu``
nothing for positive numbers, a branch that is not taken nothing at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch._ops import OpOverload

from chainstay.runtime.devices.kernel_watch import KernelCall, KernelWatch

_RATES: Final = ("dropout_p", "dropout")
"""Arguments with which, at 0, a kernel draws nothing."""
_MODES: Final = ("training", "train")
"""Arguments without which it draws nothing."""
_DRAWLESS: Final = ("flex_attention", "flex_attention_backward")
"""Higher-order operators that draw nothing, whatever graphs they take."""


def may_draw(kernel: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a kernel may draw random numbers when it is called like that.

    That does not depend on values of tensors: attention without dropout draws nothing.
    """
    if not isinstance(kernel, OpOverload):
        return (
            getattr(kernel, "__name__", "") not in _DRAWLESS
        )  # nothing is known of the graphs inside
    if torch.Tag.nondeterministic_seeded not in kernel.tags:
        return False
    parameters = kernel._schema.arguments  # noqa: SLF001  # what an operator says of itself
    given = {parameter.name: parameter.default_value for parameter in parameters}
    given |= dict(zip(given, args, strict=False)) | dict(kwargs)
    has_none = any(given.get(name, 1) == 0 for name in _RATES)
    return not has_none and all(given.get(name, True) for name in _MODES)


@dataclass
class DrawWatch(KernelWatch):
    """A context that sees whether a kernel runs that may draw.

    Attributes:
        seen: Whether one has; who wants to know it of the next operator sets it to false.
    """

    seen: bool = False

    def see(self, call: KernelCall) -> None:
        """Note whether the kernel may draw."""
        self.seen |= may_draw(call.kernel, call.args, call.kwargs)
