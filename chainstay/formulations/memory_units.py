"""Sizes of a chain: their unit, and bounds on what its schedules use."""

from __future__ import annotations

import math
from collections.abc import Iterator

from chainstay.profiles import ChainProfile


def size_divisor(profile: ChainProfile) -> int:
    """Return the greatest common divisor of all sizes, in bytes (1 when all are 0)."""
    return math.gcd(*sizes(profile)) or 1


def sizes(profile: ChainProfile) -> Iterator[int]:
    """Yield all sizes of a chain, in bytes."""
    yield from (profile.input_bytes, profile.input_gradient_bytes)
    for stage in profile.stages:
        yield from (stage.output_bytes, stage.gradient_bytes)
        yield from (stage.environment_bytes, stage.random_bytes)
        yield from (run.overhead_bytes for run in stage.all_runs)
        for option in stage.all_options:
            yield from (option.saved_bytes, option.backward_overhead_bytes)
    for skip in profile.skips:
        yield from (skip.bytes, skip.gradient_bytes)


def most_bytes(profile: ChainProfile) -> int:
    """Return more bytes than any schedule without copies of one value uses at any time."""
    return profile.input_bytes + sum(
        stage.output_bytes
        + stage.environment_bytes
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
