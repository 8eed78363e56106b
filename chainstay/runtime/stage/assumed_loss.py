"""The memory of a loss that is not known: that of a cross-entropy of the model's output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple, Self

from chainstay.runtime.stage.states import MemoryLayout


class AssumedLoss(NamedTuple):
    """The bytes that a loss needs besides what it reads.

    Attributes:
        saved_bytes: From its forward to its backward: logarithms of probabilities.
        forward_bytes: While its forward runs: a copy in single precision of what has half.
        backward_bytes: While its backward runs, besides that gradient: those of the logarithms, and
            of that copy.
        gradient_bytes: The gradient of what it reads.
    """

    saved_bytes: int
    forward_bytes: int
    backward_bytes: int
    gradient_bytes: int

    @classmethod
    def of(cls, gradients: Iterable[MemoryLayout | None]) -> Self:
        """Return the bytes for the largest of a model's outputs, from the gradients of these.

        A number (no dimensions) is a loss itself.
        """
        sizes = (
            (gradient.size.numel(), gradient.dtype.itemsize)
            for gradient in gradients
            if gradient is not None and gradient.dtype.is_floating_point and gradient.size
        )
        elements, itemsize = max(sizes, default=(0, _SINGLE))
        if not elements:
            return cls(0, 0, 0, 0)
        given, whole = elements * itemsize, elements * max(itemsize, _SINGLE)
        if given == whole:
            return cls(whole + _NUMBERS, 0, whole, given)
        return cls(whole + _NUMBERS, whole, 2 * whole - given, given)


_SINGLE: Final = 4  # bytes; what has fewer is computed in as many
_NUMBERS: Final = 32  # bytes: the loss, its gradient, the sum of weights
OPERATOR: Final = "cross_entropy, assumed without loss="
"""The name of the operator that the loss is taken for, for people."""
NO_LOSS: Final = AssumedLoss(0, 0, 0, 0)
"""What is assumed of a loss that is measured, or in the model's output."""
