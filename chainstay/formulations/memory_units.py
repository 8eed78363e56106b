"""Units of memory that keep a solver's float arithmetic exact where it matters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from chainstay.profiles import ChainProfile

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
    return math.gcd(*sizes(profile)) or 1


def sizes(profile: ChainProfile) -> Iterator[int]:
    """Yield all sizes of a chain, in bytes."""
    yield from (profile.input_bytes, profile.input_gradient_bytes)
    for stage in profile.stages:
        yield from (stage.output_bytes, stage.gradient_bytes)
        yield from (run.overhead_bytes for run in stage.all_runs)
        for option in stage.all_options:
            yield from (option.saved_bytes, option.backward_overhead_bytes)
    for skip in profile.skips:
        yield from (skip.bytes, skip.gradient_bytes)


def most_bytes(profile: ChainProfile) -> int:
    """Return more bytes than any schedule without copies of one value uses at any time."""
    return profile.input_bytes + sum(
        stage.output_bytes
        + profile.gradient_bytes(i)
        + stage.gradient_bytes
        + max(option.saved_bytes for option in stage.all_options)
        + max(run.overhead_bytes for run in stage.all_runs)
        + max(option.backward_overhead_bytes for option in stage.all_options)
        for i, stage in enumerate(profile.stages)
    )


def enough_bytes(profile: ChainProfile) -> int:
    """Return bytes in which some schedule runs: one that keeps every stage, in little space."""
    needs = [0] * (len(profile) + 1)  # of the stages from i on
    for i, stage in reversed(list(enumerate(profile.stages))):
        needs[i] = min(
            sum(inner.output_bytes for inner in profile.stages[i : i + option.stages])
            + profile.gradient_bytes(i)
            + profile.gradient_bytes(i + option.stages)
            + option.saved_bytes
            + option.backward_overhead_bytes
            + max(run.overhead_bytes for run in option.runs)
            + needs[i + option.stages]
            for option in stage.all_options
        )
    return profile.input_bytes + needs[0]
