"""How fast recomputing and offloading together are solved, and how wide the bracket is.

    .venv/bin/python -m benchmarks.solvers.hybrid_speed [--stages 20 50 100] [--output FILE]

Three families of chains, three budgets (shares of what plain training needs), two links. Every
time is the median CPU time of one thread over the repeats (one beyond 50 stages), warm.
"plan" is the overhead of the best plan, as the referee counts it, and "bound" what none is
below, both as shares of the least time; "-" where nothing fits.
"""

from __future__ import annotations

import argparse
import itertools
import math
import resource
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.solvers.chain_speed import FAMILIES, share_of_plain_training
from chainstay.dp.hybrid import SlotPlan, bracket
from chainstay.profiles import ChainProfile, Link
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.validation.hybrid.fractional_transfers import fractional_makespan

BUDGETS = (0.15, 0.4, 0.65)
BANDWIDTHS = (3, 12)
CHAINS = ("random", "ResNet-like", "GPT-like")


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, nargs="+", default=[20, 50, 100])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--slots", type=int, default=100)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    small = FAMILIES["random"](8)
    bracket(small, share_of_plain_training(small, 0.4), Link(bandwidth=12), 100)  # compile
    lines = []
    for line in _lines(options):
        print(line, flush=True)
        lines.append(line)
    if options.output:
        title = f"# Recompute or offload: {options.slots} slots\n\n{__doc__.split(chr(10) * 2)[2]}"
        options.output.write_text(title.rstrip() + "\n\n" + "\n".join(lines) + "\n")


def _lines(options: argparse.Namespace) -> Iterator[str]:
    """A table in Markdown, and how time grows."""
    yield "| chain | stages | budget | bytes/ns | seconds | plan | bound | width | peak MiB |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|"
    times: dict[str, dict[int, list[float]]] = {}
    for name, stages in itertools.product(CHAINS, options.stages):
        profile = FAMILIES[name](stages)
        for share, bandwidth in itertools.product(BUDGETS, BANDWIDTHS):
            seconds, figures = _row(profile, share, bandwidth, options)
            times.setdefault(name, {}).setdefault(stages, []).append(seconds)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
            yield (
                f"| {name} | {stages} | {share} | {bandwidth} | {seconds:.2f} | {figures} "
                f"| {memory} |"
            )
    yield ""
    for name, by_stages in times.items():
        if len(by_stages) > 1:
            sizes = [math.log(stages) for stages in by_stages]
            medians = [math.log(statistics.median(durations)) for durations in by_stages.values()]
            exponent = statistics.linear_regression(sizes, medians).slope
            few, many = min(by_stages), max(by_stages)
            yield f"{name}: from {few} to {many} stages the median time grows as n^{exponent:.1f}."
            yield ""


def _row(
    profile: ChainProfile, share: float, bandwidth: int, options: argparse.Namespace
) -> tuple[float, str]:
    budget, link = share_of_plain_training(profile, share), Link(bandwidth=bandwidth)
    times = []
    for _ in range(options.repeats if len(profile) <= 50 else 1):
        start = time.thread_time()
        plans, bound = bracket(profile, budget, link, options.slots)
        times.append(time.thread_time() - start)
    seconds = statistics.median(times)
    if not plans:
        return seconds, "- | - | -"
    least = profile.least_time
    value = min(fractional_makespan(profile, _as_text(p), budget=budget, link=link) for p in plans)
    over, under = float(value) / least - 1, float(bound) / least - 1
    return seconds, f"{over:.3%} | {under:.3%} | {over - under:.3%}"


def _as_text(plan: SlotPlan) -> Schedule:
    kinds = {"a": OpKind.OFFLOAD_ACTIVATION, "b": OpKind.OFFLOAD_SAVED}
    moves = (Op(kinds[kind], i) for kind, i in sorted(plan.moved))
    return Schedule((*moves, *plan.ops))


if __name__ == "__main__":
    main()
