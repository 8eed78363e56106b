"""Units of memory that keep a solver's float arithmetic exact where it matters."""

from __future__ import annotations

import math
from typing import Final

from chainstay.profiles import ChainProfile

__all__ = ["memory_unit", "size_divisor"]

_WIDEST_BITS: Final = 10


def memory_unit(profile: ChainProfile, largest: int) -> float:
    """Return the bytes per unit of the memory rows; every size in units is exact in a float.

    The greatest common divisor of all sizes, times the least power of two that brings
    `largest` (in bytes) down to 2**10 units. Solver tolerances are absolute, so rows in
    plain bytes would be held to a millionth of a byte and rows relative to the budget
    would leak a thousand bytes in a GiB.
    """
    divisor = size_divisor(profile)
    shift = max(0, (largest // divisor).bit_length() - _WIDEST_BITS)
    return float(divisor) * 2.0**shift


def size_divisor(profile: ChainProfile) -> int:
    """Return the greatest common divisor of all sizes, in bytes (1 when all are 0)."""
    sizes = [profile.input_bytes, profile.input_gradient_bytes]
    for stage in profile.stages:
        sizes += [
            stage.output_bytes,
            stage.saved_bytes,
            stage.gradient_bytes,
            stage.forward_overhead_bytes,
            stage.backward_overhead_bytes,
        ]
    for skip in profile.skips:
        sizes += [skip.bytes, skip.gradient_bytes]
    return math.gcd(*sizes) or 1
