"""Tiny hybrid problems over links of all kinds."""

from __future__ import annotations

import random
from dataclasses import replace
from fractions import Fraction

from chainstay.problems.hybrid import HybridProblem
from chainstay.profiles import ChainProfile, Link, RunCost, Stage, StageOption

CHAIN = ChainProfile(
    input_bytes=10,
    input_gradient_bytes=0,
    stages=(
        Stage(forward_time=1, backward_time=2, output_bytes=5, saved_bytes=5),
        Stage(forward_time=3, backward_time=4, output_bytes=1, saved_bytes=2),
    ),
)
"""The shortest in which all can be moved and something be run again."""


def tiny_chain(draw: random.Random, stages: int) -> tuple[ChainProfile, Link]:
    """Sizes and times of one digit, and a link to the host."""
    sizes = [draw.randint(1, 4) for _ in range(stages + 1)]
    profile = ChainProfile(
        input_bytes=sizes[0],
        input_gradient_bytes=draw.choice([0, sizes[0]]),
        stages=tuple(
            Stage(
                forward_time=draw.randint(0, 4),
                backward_time=draw.randint(0, 5),
                output_bytes=size,
                saved_bytes=size + draw.randint(0, 4),
                gradient_bytes=size,
                forward_overhead_bytes=draw.randint(0, 2),
                backward_overhead_bytes=draw.randint(0, 2),
            )
            for size in sizes[1:]
        ),
    )
    bandwidths = [Fraction(1, 2), Fraction(1), Fraction(5, 3), Fraction(3)]
    return profile, Link(bandwidth=draw.choice(bandwidths))


def with_options(
    draw: random.Random, profile: ChainProfile, most: int, *, largest: int = 4
) -> ChainProfile:
    """Up to `most` options for each stage, its own included; some save less than its output."""

    def option(size: int, saved: int) -> StageOption:
        return StageOption(
            saved_bytes=draw.randint(draw.choice([0, size]), max(size, saved)),
            backward_overhead_bytes=draw.randint(0, largest),
            first=RunCost(
                time=draw.randint(0, 4),
                overhead_bytes=draw.randint(0, largest),
                backward_time=draw.randint(0, 6),
            ),
        )

    stages = tuple(
        replace(
            stage,
            options=tuple(
                option(stage.output_bytes, stage.saved_bytes)
                for _ in range(draw.randint(0, most - 1))
            ),
        )
        for stage in profile.stages
    )
    return replace(profile, stages=stages)


def some_budget(draw: random.Random, profile: ChainProfile, link: Link) -> int:
    """From the least feasible one on, up to all activations more."""
    sizes = sum(profile.activation_bytes(index) for index in range(len(profile) + 1))
    return HybridProblem(profile, 1, link).required_bytes + draw.randint(0, sizes)


def tiny(seed: int, stages: int = 2) -> HybridProblem:
    """Links of all kinds in turn: plain, limited, with latency, slow and limited."""
    draw = random.Random(seed)
    profile, plain = tiny_chain(draw, stages)
    link = (
        plain,
        replace(plain, capacity=draw.randint(1, 8)),
        replace(
            plain, duplex="full", latency=draw.choice([Fraction(0), Fraction(1), Fraction(1, 2)])
        ),
        Link(bandwidth=Fraction(plain.bandwidth) / 2, capacity=6),
    )[seed % 4]
    return HybridProblem(profile, some_budget(draw, profile, link), link)
