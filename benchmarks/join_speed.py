"""How long joins take to solve, and how much memory: medians, in processes of their own.

    python benchmarks/join_speed.py [--repeats 3]

Homogeneous joins: the whole curve, all numbers of slots in one run. Others: random towers of
0.1 to 1 ms and 1 to 40 MB a stage before a loss, at 40 % of what they save, both roundings.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from rich.console import Console
from rich.table import Table

from chainstay import DP, ChainProfile, JoinProfile, Stage, join_curve, solve_join

_MIB: Final = 1024  # getrusage counts KiB


class Case(NamedTuple):
    """What is solved, and the goal in seconds."""

    name: str
    run: Callable[[int], object]
    goal_s: float


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3, help="instances or runs of each case")
    repeats = parser.parse_args().repeats
    table = Table("join", "CPU s, median", "goal", "MiB in use", title="Solving joins")
    fresh = multiprocessing.get_context("spawn")
    for case in CASES:
        with fresh.Pool(1) as pool:  # else a case inherits what the one before used
            seconds, mebibytes = pool.apply(measure, (case, repeats))
        table.add_row(
            case.name, f"{statistics.median(seconds):.2f}", f"{case.goal_s:g}", f"{mebibytes:.0f}"
        )
    Console().print(table)


def measure(case: Case, repeats: int) -> tuple[list[float], float]:
    """CPU seconds of each repeat once warm, and the most memory this process ever used."""
    case.run(0)
    seconds = []
    for seed in range(repeats):
        start = time.process_time()
        case.run(seed)
        seconds.append(time.process_time() - start)
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _MIB


def curve(lengths: tuple[int, ...], _seed: int) -> object:
    """All numbers of slots of a homogeneous join."""
    return join_curve(
        JoinProfile.homogeneous(lengths, forward_time=1, backward_time=1, turn_time=1)
    )


def towers(lengths: tuple[int, ...], slots: int, seed: int) -> object:
    """A random join on so many slots."""
    draw = random.Random(seed)  # noqa: S311 - reproducible, no secret
    branches = tuple(tower(draw, length) for length in lengths)
    joined = JoinProfile(branches=branches)
    loss = ChainProfile(
        input_bytes=joined.output_bytes,
        input_gradient_bytes=joined.output_gradient_bytes,
        stages=(Stage(forward_time=200_000, backward_time=400_000, saved_bytes=10**6),),
    )
    saved = sum(stage.saved_bytes for branch in branches for stage in branch.stages)
    join = JoinProfile(branches=branches, tail=loss)
    return solve_join(join, saved * 2 // 5, DP(slots=slots))


def tower(draw: random.Random, length: int) -> ChainProfile:
    """Stages of random sizes and times."""
    stages = []
    for _ in range(length):
        output, forward_time = draw.randint(10**6, 10**7), draw.randint(10**5, 10**6)
        stages.append(
            Stage(
                forward_time=forward_time,
                backward_time=2 * forward_time,
                output_bytes=output,
                saved_bytes=output + draw.randint(0, 3 * 10**7),
                gradient_bytes=output,
                forward_overhead_bytes=draw.randint(0, 10**6),
                backward_overhead_bytes=draw.randint(0, 10**6),
            )
        )
    return ChainProfile(input_bytes=10**6, input_gradient_bytes=0, stages=tuple(stages))


CASES: Final = (
    Case("SNN L = 15 (30, 30, 30), c = 7 to 93", partial(curve, (30, 30, 30)), 1),
    Case("CM (50, 250), c = 5 to 302", partial(curve, (50, 250)), 3),
    Case("towers of 50 and 50 stages, 500 slots", partial(towers, (50, 50), 500), 1),
    Case("towers of 30, 30, 30 stages, 300 slots", partial(towers, (30, 30, 30), 300), 10),
)


if __name__ == "__main__":
    main()
