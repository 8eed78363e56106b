"""How fast the persistent program is on chains with eight options a stage, and what options gain.

    .venv/bin/python -m benchmarks.solvers.option_speed [--stages 100 339] [--repeats 3]

Three families of chains, three budgets (shares of what plain training needs), each without options
and with eight a stage. Times are the least CPU time of one thread over the repeats, warm. GPT-like
blocks drop 2 to 14 of 17 units of what they save and recompute that for 1 to 80 percent of their
forward; random ones anything. The last line is the largest ratio of times for each length.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.solvers.chain_speed import gpt_like, noisy, random_chain, share_of_plain_training
from chainstay import DP, ChainProfile, RunCost, Stage, StageOption

BUDGETS = (0.2, 0.4, 0.6)
OPTIONS = 8
UNITS = 17
BLOCK_OPTIONS = ((2, 0.01), (4, 0.02), (6, 0.03), (8, 0.15), (10, 0.35), (12, 0.55), (14, 0.8))
"""Units of a GPT block's saved data that an option drops, and its recomputation in forwards."""


def dropping(stage: Stage, dropped: int, share: float) -> StageOption:
    """The option that drops so many bytes, and makes them again for a share of the forward."""
    return StageOption(
        saved_bytes=stage.saved_bytes - dropped,
        backward_overhead_bytes=stage.backward_overhead_bytes + dropped,
        first=RunCost(
            time=stage.forward_time,
            overhead_bytes=stage.forward_overhead_bytes,
            backward_time=stage.backward_time + int(share * stage.forward_time),
        ),
    )


def with_block_options(profile: ChainProfile) -> ChainProfile:
    """Every block gets the options of `BLOCK_OPTIONS`; embedding and head get none."""

    def block(stage: Stage) -> Stage:
        options = (
            dropping(stage, stage.saved_bytes * units // UNITS, share)
            for units, share in BLOCK_OPTIONS
        )
        return replace(stage, options=tuple(options))

    first, *blocks, last = profile.stages
    return replace(profile, stages=(first, *map(block, blocks), last))


def with_random_options(profile: ChainProfile, seed: int = 3) -> ChainProfile:
    """Every stage gets options that drop random shares for random shares of its forward."""
    draw = np.random.default_rng(seed)

    def drawn(stage: Stage) -> Stage:
        dropped = np.sort(draw.uniform(0, 1, OPTIONS - 1))
        shares = np.sort(draw.uniform(0, 1, OPTIONS - 1) ** 1.5)
        room = stage.saved_bytes - stage.output_bytes
        options = (
            dropping(stage, int(part * room), share)
            for part, share in zip(dropped.tolist(), shares.tolist(), strict=True)
        )
        return replace(stage, options=tuple(options))

    return replace(profile, stages=tuple(map(drawn, profile.stages)))


FAMILIES: dict[
    str, tuple[Callable[[int], ChainProfile], Callable[[ChainProfile], ChainProfile]]
] = {
    "GPT-like": (gpt_like, with_block_options),
    "GPT-like, noisy": (lambda stages: noisy(gpt_like(stages)), with_block_options),
    "random": (random_chain, with_random_options),
}


def measured(profile: ChainProfile, budget: int, repeats: int) -> tuple[float, int]:
    """Least CPU time of a solve in ms, and the makespan in ns."""
    makespan, times = DP()(profile, budget).makespan, []
    for _ in range(repeats):
        start = time.process_time()
        DP()(profile, budget)
        times.append(time.process_time() - start)
    return min(times) * 1e3, makespan


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, nargs="+", default=[100, 339])
    parser.add_argument("--repeats", type=int, default=3)
    settings = parser.parse_args()
    columns = ("stages", "chain", "budget", "1 option", "8 options", "ratio", "overhead", "with 8")
    table = Table(*columns, title="ms a solve, and overhead in percent of a plain step")
    ratios: dict[int, float] = {}
    for stages in settings.stages:
        for name, (family, with_options) in FAMILIES.items():
            plain = family(stages)
            for share in BUDGETS:
                budget = share_of_plain_training(plain, share)
                chains = (plain, with_options(plain))
                results = [measured(chain, budget, settings.repeats) for chain in chains]
                (one, alone), (eight, together) = results
                ratios[stages] = max(ratios.get(stages, 0), eight / one)
                table.add_row(
                    str(stages),
                    name,
                    f"{share:.0%}",
                    f"{one:.0f}",
                    f"{eight:.0f}",
                    f"{eight / one:.1f}",
                    *(f"{makespan / plain.plain_time - 1:.2%}" for makespan in (alone, together)),
                )
    console = Console()
    console.print(table)
    console.print("; ".join(f"{stages} stages: {ratio:.1f}" for stages, ratio in ratios.items()))


if __name__ == "__main__":
    main()
