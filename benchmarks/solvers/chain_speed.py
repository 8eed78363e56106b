"""How fast the exact dynamic programs are, and what a table of memory slots loses.

    .venv/bin/python -m benchmarks.solvers.chain_speed [--stages 339] [--repeats 3] [--no-table]

Six families of chains, four budgets (shares of what plain training needs). Every time is
the median CPU time of one thread over the repeats, warm. "slots" is the textbook table on
500 memory slots: its time over ours, and how much overhead it adds, in percent of ours.
Then long chains, the least feasible budget, weak persistence, and the first call of a
fresh process (wall time, imports included).
"""

from __future__ import annotations

import argparse
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from chainstay import DP, ChainProfile, Schedule, Stage, least_budget, simulate

MIB = 2**20


def random_chain(stages: int, seed: int = 0) -> ChainProfile:
    """Nothing is like anything else: the hardest for step functions."""
    draw = np.random.default_rng(seed)
    output = draw.integers(1 * MIB, 64 * MIB, stages)
    forward = draw.integers(50_000, 5_000_000, stages)
    return _chain(
        output=output,
        saved=output + draw.integers(0, 128 * MIB, stages),
        forward=forward,
        backward=(forward * draw.uniform(1.5, 2.5, stages)).astype(np.int64),
        forward_overhead=draw.integers(0, 16 * MIB, stages),
        backward_overhead=draw.integers(0, 32 * MIB, stages),
    )


def resnet_like(stages: int, seed: int = 0) -> ChainProfile:
    """Four resolutions, bottleneck blocks; outputs halve where the resolution does."""
    draw = np.random.default_rng(seed)
    step = np.arange(stages) * 4 // stages
    output = (96 * MIB) >> step
    saved = 3 * output
    saved[np.diff(step, prepend=-1) > 0] += 32 * MIB
    forward = (1_500_000 * draw.uniform(0.9, 1.1, stages)).astype(np.int64)
    return _chain(
        output=output,
        saved=saved,
        forward=forward,
        backward=2 * forward + draw.integers(0, 50_000, stages),
        forward_overhead=output // 4,
        backward_overhead=output // 2,
    )


def gpt_like(stages: int, seed: int = 0) -> ChainProfile:
    """Equal blocks between an embedding and a head with a large vocabulary."""
    draw = np.random.default_rng(seed)
    output = np.full(stages, 24 * MIB)
    saved = 17 * output
    forward = (4_000_000 * draw.uniform(0.97, 1.03, stages)).astype(np.int64)
    saved[0], forward[0] = 2 * output[0], 200_000
    saved[-1], forward[-1], output[-1] = 400 * MIB, 6_000_000, 4
    return _chain(
        output=output,
        saved=saved,
        forward=forward,
        backward=2 * forward + draw.integers(0, 50_000, stages),
        forward_overhead=np.full(stages, 12 * MIB),
        backward_overhead=np.full(stages, 24 * MIB),
    )


def gpt_sub_blocks(stages: int, seed: int = 0) -> ChainProfile:
    """The same blocks cut into attention (large saved data), its sum, MLP and its sum."""
    draw = np.random.default_rng(seed)
    part = np.arange(stages) % 4
    output = np.full(stages, 24 * MIB)
    saved = np.array([7, 1, 9, 1])[part] * output
    forward = np.array([1_700_000, 60_000, 2_200_000, 60_000])[part]
    forward = (forward * draw.uniform(0.97, 1.03, stages)).astype(np.int64)
    return _chain(
        output=output,
        saved=saved,
        forward=forward,
        backward=2 * forward + draw.integers(0, 50_000, stages),
        forward_overhead=np.array([12, 0, 12, 0])[part] * MIB,
        backward_overhead=np.array([24, 0, 24, 0])[part] * MIB,
    )


def noisy(profile: ChainProfile, seed: int = 1) -> ChainProfile:
    """Every size off by up to 3 per cent, as measured ones are: no two sums are alike."""
    draw = np.random.default_rng(seed)

    def near(size: int) -> int:
        return round(size * draw.uniform(0.97, 1.03))

    def perturbed(stage: Stage) -> Stage:
        output = near(stage.output_bytes)
        return replace(
            stage,
            output_bytes=output,
            saved_bytes=max(output, near(stage.saved_bytes)),
            gradient_bytes=output,
            forward_overhead_bytes=near(stage.forward_overhead_bytes),
            backward_overhead_bytes=near(stage.backward_overhead_bytes),
        )

    return replace(profile, stages=tuple(map(perturbed, profile.stages)))


def _chain(**columns: NDArray[np.int64]) -> ChainProfile:
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    stages = [dict(zip(columns, row, strict=True)) for row in rows]
    return ChainProfile(
        input_bytes=24 * MIB,
        input_gradient_bytes=0,
        stages=tuple(
            Stage(
                forward_time=stage["forward"],
                backward_time=stage["backward"],
                output_bytes=stage["output"],
                saved_bytes=stage["saved"],
                gradient_bytes=stage["output"],
                forward_overhead_bytes=stage["forward_overhead"],
                backward_overhead_bytes=stage["backward_overhead"],
            )
            for stage in stages
        ),
    )


FAMILIES: dict[str, Callable[[int], ChainProfile]] = {
    "random": random_chain,
    "ResNet-like": resnet_like,
    "GPT-like": gpt_like,
    "GPT sub-blocks": gpt_sub_blocks,
    "GPT-like, noisy": lambda stages: noisy(gpt_like(stages)),
    "GPT sub-blocks, noisy": lambda stages: noisy(gpt_sub_blocks(stages)),
}
WEAK = DP(persistence="weak")
BUDGETS = (0.15, 0.25, 0.4, 0.7)
NEWCOMER = """
import sys, time
start = time.perf_counter()
from benchmarks.solvers.chain_speed import FAMILIES, share_of_plain_training
from chainstay import DP
chain = FAMILIES[sys.argv[1]](int(sys.argv[2]))
DP()(chain, share_of_plain_training(chain, 0.4))
print(time.perf_counter() - start)
"""


def share_of_plain_training(profile: ChainProfile, share: float) -> int:
    """A budget, in bytes."""
    return int(share * simulate(profile, Schedule.keep_all(len(profile))).peak_bytes)


def seconds(call: Callable[[], object], repeats: int) -> float:
    """Median CPU time of `call`."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times)


def row(profile: ChainProfile, budget: int, method: DP, repeats: int) -> tuple[float, float]:
    """Seconds, and overhead as a share of the least time."""
    claim = method(profile, budget)
    return (
        seconds(lambda: method(profile, budget), repeats),
        claim.makespan / profile.least_time - 1,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, default=339)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-table", action="store_true", help="leave the 500 slots out")
    options = parser.parse_args()
    for method in (DP(), WEAK):  # load the compiled code
        method(random_chain(100), share_of_plain_training(random_chain(100), 0.5))
    console = Console()
    console.print(_families(options))
    console.print(f"peak resident memory so far: {_resident_mib()} MiB")
    console.print(_singles(options))


def _families(options: argparse.Namespace) -> Table:
    table = Table(title=f"{options.stages} stages")
    headings = ("chain", "budget", "exact", "overhead", "500 slots", "time", "lost")
    for heading in headings:
        table.add_column(heading, justify="left" if heading == "chain" else "right")
    for name, family in FAMILIES.items():
        profile = family(options.stages)
        for share in BUDGETS:
            budget = share_of_plain_training(profile, share)
            exact, overhead = row(profile, budget, DP(), options.repeats)
            cells: tuple[str, ...] = ("", "", "")
            if not options.no_table and share == 0.4:
                slots, worse = row(profile, budget, DP(slots=500), 1)
                lost = f"{worse / overhead - 1:.1%}"
                cells = (f"{slots:.1f} s", f"{slots / exact:.0f}x", lost)
            table.add_row(name, f"{share}", f"{exact:.3f} s", f"{overhead:.4f}", *cells)
    return table


def _singles(options: argparse.Namespace) -> Table:
    table = Table("what", "stages", "seconds", title="single figures")

    def add(what: str, stages: int, figure: float) -> None:
        table.add_row(what, str(stages), f"{figure:.3f}")

    long = resnet_like(1000)
    budget = share_of_plain_training(long, 0.4)
    add("ResNet-like at 0.4", 1000, seconds(lambda: DP()(long, budget), options.repeats))
    gpt = gpt_like(options.stages)
    least = least_budget(gpt)
    add("GPT-like at its least budget", len(gpt), seconds(lambda: DP()(gpt, least), 1))
    for name, family in FAMILIES.items():
        for stages in (50, 100, options.stages):
            chain = family(stages)
            limit = share_of_plain_training(chain, 0.4)
            repeats = options.repeats if stages <= 100 else 1
            figure = seconds(partial(WEAK, chain, limit), repeats)
            add(f"weakly persistent, {name} at 0.4", stages, figure)
    for stages in (20, 60, 100):
        add("first call of a process, random", stages, _first_call("random", stages))
    return table


def _first_call(family: str, stages: int) -> float:
    command = [sys.executable, "-c", NEWCOMER, family, str(stages)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  # our own words
    return float(done.stdout)


def _resident_mib() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    main()
