"""How fast HiGHS and CP-SAT prove an optimum of the exact program, and that it is the known one.

    .venv/bin/python -m benchmarks.solvers.formulations

First, chains of 20 random stages and a loss: cuts in the model, and the persistent optimum as
start and cutoff. Second, 20 stages of other shapes and at other budgets, the least feasible
one among them. (That every golden chain's optimum and least budget are found is what
`tests/agreement` asserts.)

Prints what it writes to ``benchmarks/results/formulations.md``; ends with status 1 when a
figure misses what we promise.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Final

from benchmarks import RESULTS
from benchmarks.solvers.chain_speed import (
    gpt_like,
    gpt_sub_blocks,
    resnet_like,
    share_of_plain_training,
)
from benchmarks.training import cells, heading
from chainstay import CPSAT, DP, MIP, ChainProfile, Claim, Family, Stage, least_budget, simulate

MIB: Final = 2**20
LIMIT_S: Final = 60.0
PROMISED_SECONDS: Final = {"MIP (HiGHS)": 30.0, "CP-SAT": 10.0}
SHARES: Final = (0.25, 0.4)

SOLVERS: Final[Mapping[str, MIP | CPSAT]] = {
    "MIP (HiGHS)": MIP(time_limit_s=LIMIT_S),
    "CP-SAT": CPSAT(time_limit_s=LIMIT_S),
}


def main() -> None:
    """Measure, print, write, judge."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    long_chains, misses = _long_chains()
    shapes = _shapes()
    verdict = ["", *(f"- **Missed:** {miss}" for miss in misses)] if misses else []
    text = "\n".join([*_heading(), "", *long_chains, "", *shapes, *verdict, ""])
    print(text)
    (RESULTS / "formulations.md").write_text(text, encoding="utf-8")
    sys.exit(bool(misses))


def random_chain(seed: int, stages: int = 20) -> ChainProfile:
    """Stages unlike each other, in bytes and ns, and a loss; forwards never need most memory.

    So the cuts are exact (`formulations.chain.exactness_conditions.are_sweep_cuts_exact`) and the
    optimum found is that of all schedules.
    """
    draw = random.Random(seed)  # noqa: S311 - reproducible, no secret
    input_bytes = draw.randint(1 * MIB, 64 * MIB)

    def stage() -> Stage:
        output, forward_time = draw.randint(1 * MIB, 64 * MIB), draw.randint(50_000, 5_000_000)
        overhead = draw.randint(0, 32 * MIB)
        return Stage(
            forward_time=forward_time,
            backward_time=int(forward_time * draw.uniform(1.5, 2.5)),
            output_bytes=output,
            saved_bytes=output + draw.randint(0, 128 * MIB),
            gradient_bytes=output,
            forward_overhead_bytes=min(overhead, draw.randint(0, 16 * MIB)),
            backward_overhead_bytes=overhead,
        )

    return ChainProfile(
        input_bytes=input_bytes,
        input_gradient_bytes=0,
        stages=(*(stage() for _ in range(stages)), Stage(name="loss")),
    )


def _long_chains(instances: int = 10) -> tuple[list[str], list[str]]:
    """Table of chains of 20 stages, and what it misses."""
    rows, misses = [], []
    for solver in SOLVERS:
        for share in SHARES:
            seconds, proved, faster = [], 0, 0
            for seed in range(instances):
                profile = random_chain(seed)
                budget = max(least_budget(profile), share_of_plain_training(profile, share))
                persistent = DP()(profile, budget)
                claim, wall = _timed(solver, profile, budget, persistent)
                seconds.append(wall)
                proved += claim.makespan == claim.lower_bound and claim.family is Family.ALL
                faster += claim.makespan < persistent.makespan
            median, worst = statistics.median(seconds), max(seconds)
            where = f"{share:.0%}"
            rows.append((solver, where, instances, _s(median), _s(worst), proved, faster))
            if median >= PROMISED_SECONDS[solver] or proved < instances:
                misses.append(f"{solver}, 20 stages, {where}: {median:.1f} s, {proved} proved")
    columns = ("solver", "budget", "instances", "median", "worst", "proved", "beat persistent")
    title = "## 20 random stages and a loss, at shares of plain training's memory, table1"
    return [title, "", *_table(columns, rows)], misses


def _timed(
    solver: str, profile: ChainProfile, budget: int, start_from: Claim
) -> tuple[Claim, float]:
    """A certified claim of Table 1 and the wall time it took, in seconds."""
    start = time.perf_counter()
    claim = SOLVERS[solver](profile, budget, hint=start_from.schedule)
    seconds = time.perf_counter() - start
    _require_valid(profile, budget, claim)
    return claim, seconds


def homogeneous(stages: int) -> ChainProfile:
    """All stages alike: many schedules are equally fast, and none can be told from the rest."""
    stage = Stage(
        forward_time=1, backward_time=2, output_bytes=10, saved_bytes=30, gradient_bytes=10
    )
    return ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(stage,) * stages)


SHAPES: Final[Mapping[str, Callable[[int], ChainProfile]]] = {
    "random": lambda stages: random_chain(0, stages),
    "ResNet-like": resnet_like,
    "GPT-like": gpt_like,
    "GPT sub-blocks": gpt_sub_blocks,
    "homogeneous": homogeneous,
}
BUDGETS: Final = (None, 0.15, 0.25, 0.6)
"""Shares of what plain training needs; ``None`` is the least budget of persistent schedules."""


def _shapes() -> list[str]:
    """Table of other chains: how long each solver takes, and what the persistent optimum loses."""
    rows = []
    for name, shape in SHAPES.items():
        profile = shape(20)
        for share in BUDGETS:
            least = least_budget(profile)
            budget = share_of_plain_training(profile, share) if share else least
            if budget < least:
                continue
            persistent = DP()(profile, budget)
            times, makespans = [], []
            for solver in SOLVERS:
                claim, seconds = _timed(solver, profile, budget, persistent)
                gap = (claim.makespan - claim.lower_bound) / claim.makespan
                times.append(f"{_s(seconds)}, gap {gap:.1%}" if gap else _s(seconds))
                makespans.append(claim.makespan)
            loss = persistent.makespan / min(makespans) - 1
            where = f"{share:.0%}" if share else "least feasible"
            rows.append((name, where, *times, f"{loss:.2%}"))
    columns = ("chain", "budget", *SOLVERS, "persistent is slower by")
    return ["## 20 stages of other shapes, table1", "", *_table(columns, rows)]


def _require_valid(profile: ChainProfile, budget: int, claim: Claim) -> None:
    replay = simulate(profile, claim.schedule, discards=claim.discards)
    assert replay.peak_bytes <= budget, "a schedule over the budget"
    assert replay.makespan == claim.makespan, "a makespan that the referee does not share"


def _heading() -> list[str]:
    packages = ", ".join(f"{name} {version(name)}" for name in ("highspy", "ortools", "pyomo"))
    machine = f"{platform.machine()}, one thread, {packages}, Python {platform.python_version()}"
    return [
        "# How fast the formulations prove an optimum",
        "",
        f"`python -m benchmarks.solvers.formulations`: wall times on {machine}.",
    ]


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s"


def _table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    return [*heading(*columns), *(cells(*map(str, row)) for row in rows)]


if __name__ == "__main__":
    main()
