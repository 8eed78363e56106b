"""How fast the two exact formulations prove an optimum, and that it is the known one.

    make bench        (or: PYTHONPATH=.:tests python benchmarks/formulations.py)

First, chains of 20 random stages and a loss: cuts in the model, and the persistent optimum as
start and cutoff. Second, 20 stages of other shapes and at other budgets, the least feasible
one among them. Last, the golden chains whose gradients are no larger than their activations:
optimum and least budget under every rule for discards, against those of the exhaustive search
that made the file, with 60 s for each solve.

Prints what it writes to ``benchmarks/results/formulations.md``; ends with status 1 when a
figure misses what we promise.
"""

from __future__ import annotations

import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Final

from benchmarks.solver_speed import gpt_like, gpt_sub_blocks, resnet_like, share_of_plain_training
from chainstay import (
    CPSAT,
    DP,
    MIP,
    ChainProfile,
    Claim,
    Discards,
    Family,
    InfeasibleBudgetError,
    SolverLimitError,
    Stage,
    least_budget,
    simulate,
)
from chainstay.formulations.chain import claims
from chainstay.formulations.cpsat import chain_claims as cpsat_claims
from golden_chains import GOLDEN, GoldenChain

RESULTS: Final = Path(__file__).parent / "results" / "formulations.md"
MIB: Final = 2**20
LIMIT_S: Final = 60.0
PROMISED_SECONDS: Final = {"MIP (HiGHS)": 30.0, "CP-SAT": 10.0}
PROMISED_SHARE: Final = 0.95
SHARES: Final = (0.25, 0.4)

LeastBudget = Callable[[ChainProfile, Discards], int]


@dataclass(frozen=True)
class Solver:
    """One of the two formulations: its name, its method and its least budget."""

    name: str
    method: Callable[[Discards], MIP | CPSAT]
    least_budget: LeastBudget


SOLVERS: Final = (
    Solver(
        "MIP (HiGHS)",
        lambda rules: MIP(time_limit_s=LIMIT_S, discards=rules),
        claims.minimum_budget,
    ),
    Solver(
        "CP-SAT",
        lambda rules: CPSAT(time_limit_s=LIMIT_S, discards=rules),
        cpsat_claims.minimum_budget,
    ),
)


def main() -> None:
    """Measure, print, write, judge."""
    long_chains, misses = _long_chains()
    shapes = _shapes()
    golden, more_misses = _golden_chains()
    misses += more_misses
    verdict = ["", *(f"- **Missed:** {miss}" for miss in misses)] if misses else []
    text = "\n".join([*_heading(), "", *long_chains, "", *shapes, "", *golden, *verdict, ""])
    print(text)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(text, encoding="utf-8")
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
            rows.append((solver.name, where, instances, _s(median), _s(worst), proved, faster))
            if median >= PROMISED_SECONDS[solver.name] or proved < instances:
                misses.append(f"{solver.name}, 20 stages, {where}: {median:.1f} s, {proved} proved")
    heading = ("solver", "budget", "instances", "median", "worst", "proved", "beat persistent")
    title = "## 20 random stages and a loss, at shares of plain training's memory, table1"
    return [title, "", *_table(heading, rows)], misses


def _timed(
    solver: Solver, profile: ChainProfile, budget: int, start_from: Claim
) -> tuple[Claim, float]:
    """A certified claim of Table 1 and the wall time it took, in seconds."""
    start = time.perf_counter()
    claim = solver.method(Discards.TABLE1)(profile, budget, hint=start_from.schedule)
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
            cells, makespans = [], []
            for solver in SOLVERS:
                claim, seconds = _timed(solver, profile, budget, persistent)
                gap = (claim.makespan - claim.lower_bound) / claim.makespan
                cells.append(f"{_s(seconds)}, gap {gap:.1%}" if gap else _s(seconds))
                makespans.append(claim.makespan)
            loss = persistent.makespan / min(makespans) - 1
            where = f"{share:.0%}" if share else "least feasible"
            rows.append((name, where, *cells, f"{loss:.2%}"))
    heading = ("chain", "budget", *(solver.name for solver in SOLVERS), "persistent is slower by")
    return ["## 20 stages of other shapes, table1", "", *_table(heading, rows)]


@dataclass(frozen=True)
class Finding:
    """What a solver made of a golden chain; `None` for an optimum means that nothing fits.

    Attributes:
        optimum: Makespan of its schedule, in ns.
        required: The least budget it named when nothing fitted, in bytes.
        is_proved: Whether it ended in time.
        seconds: Wall time.
    """

    optimum: int | None
    required: int | None
    is_proved: bool
    seconds: float


def _golden_chains() -> tuple[list[str], list[str]]:
    """Table of the golden chains, and what it misses."""
    chains = [golden for golden in GOLDEN if golden.has_small_gradients]
    rows, misses = [], []
    for solver in SOLVERS:
        for rules in Discards:
            found = [_find(solver, golden, rules) for golden in chains]
            seconds = [finding.seconds for finding in found]
            proved = sum(finding.is_proved for finding in found)
            equal = sum(f.optimum == g.optimum[rules] for f, g in zip(found, chains, strict=True))
            least = sum(_has_least_budget(solver, golden, rules) for golden in chains)
            where = f"{solver.name}, {rules}"
            misses += [f"{where}: {text}" for text in _broken_promises(found, chains, rules)]
            if rules is not Discards.FREE and proved < PROMISED_SHARE * len(chains):
                misses.append(f"{where}: proved {proved} of {len(chains)}")
            if least < len(chains):
                misses.append(f"{where}: {least} least budgets of {len(chains)}")
            median, worst = _s(statistics.median(seconds)), _s(max(seconds))
            rows.append((solver.name, rules, len(chains), median, worst, proved, equal, least))
    sizes = sorted(golden.stages for golden in chains)
    title = f"## {len(chains)} golden chains with δ ≤ a, {sizes[0]} to {sizes[-1]} stages"
    heading = ("solver", "discards", "instances", "median", "worst", "proved", "= optimum")
    return [title, "", *_table((*heading, "= least budget"), rows)], misses


def _find(solver: Solver, golden: GoldenChain, rules: Discards) -> Finding:
    """Ask without a hint, so that nothing but the model leads to the answer."""
    optimum, required, is_proved = None, None, True
    start = time.perf_counter()
    try:
        claim = solver.method(rules)(golden.profile, golden.budget)
        _require_valid(golden.profile, golden.budget, claim)
        optimum, is_proved = claim.makespan, claim.makespan == claim.lower_bound
    except InfeasibleBudgetError as error:
        required = error.required
    except SolverLimitError:
        is_proved = False
    return Finding(optimum, required, is_proved, time.perf_counter() - start)


def _has_least_budget(solver: Solver, golden: GoldenChain, rules: Discards) -> bool:
    try:
        return solver.least_budget(golden.profile, rules) == golden.min_budget[rules]
    except SolverLimitError:
        return False


def _broken_promises(
    found: Sequence[Finding], chains: Sequence[GoldenChain], rules: Discards
) -> Iterator[str]:
    """Answers that are not the file's: proved ones that differ, free ones outside its range."""
    for finding, golden in zip(found, chains, strict=True):
        known = golden.optimum[rules]
        if finding.required is not None and finding.required != golden.min_budget[rules]:
            yield f"{golden.name} needs {golden.min_budget[rules]}, not {finding.required}"
        if not finding.is_proved or finding.optimum == known:
            continue
        tape = golden.optimum[Discards.TAPE]
        is_free_in_range = (
            rules is Discards.FREE
            and known is not None
            and finding.optimum is not None
            and known <= finding.optimum <= (finding.optimum if tape is None else tape)
        )
        if not is_free_in_range:
            yield f"{golden.name} has the optimum {known}, not {finding.optimum}"


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
        f"`make bench`: wall times on {machine}.",
    ]


def _s(seconds: float) -> str:
    return f"{seconds:.2f} s"


def _table(heading: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """A table in Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return [f"| {' | '.join(map(str, line))} |" for line in lines]


if __name__ == "__main__":
    main()
