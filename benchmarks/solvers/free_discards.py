"""What free discards gain over the optimum of Table 1, and how near they come to any optimum.

    .venv/bin/python -m benchmarks.solvers.free_discards [--instances 4000] [--measure]

Random chains of up to six stages: how often each program's makespan is the
exhaustive optimum under free discards, and how much of the gap between that optimum and the
one with an autograd tape it closes. Then long chains and measured networks: overhead over
the time of plain training, and the bound that no schedule of any kind can beat. The
profiles of the networks are stored in ``benchmarks/profiles``; ``--measure`` makes them anew
on this machine.

Prints what it writes to ``benchmarks/results/free_discards.md``.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Final

from benchmarks import PROFILES, RESULTS
from benchmarks.solvers.chain_speed import FAMILIES, share_of_plain_training
from chainstay import DP, ChainProfile, InfeasibleBudgetError, simulate, unrestricted_bound
from chainstay.solution import Method
from chainstay.validation import search
from chainstay.verify.chain_instances import random_chain

SMALL: Final = 6
STAGES: Final = (20, 100, 339)
LONGEST_WEAK: Final = 100
SHARES: Final = (0.25, 0.4, 0.55, 0.7)
PROGRAMS: Final[dict[str, Method]] = {
    "persistent": DP(),
    "weakly persistent": DP(persistence="weak"),
    "free, persistent": DP(discards="free"),
}
Small = Iterable[tuple[ChainProfile, int]]


def main() -> None:
    """Compute, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--instances", type=int, default=4000, help="random small chains")
    parser.add_argument("--measure", action="store_true", help="measure the networks anew")
    options = parser.parse_args()
    if options.measure:
        _measure()
    machine = f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    lines = [
        "# Free discards: gains and gaps",
        "",
        f"`python -m benchmarks.solvers.free_discards {' '.join(sys.argv[1:])}` on {machine}.",
        *_small("Random chains", _random(options.instances)),
        *_large("Long chains", _long()),
        *_large("Measured networks", _networks()),
    ]
    (RESULTS / "free_discards.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))


def _small(title: str, instances: Small) -> Iterator[str]:
    """How often each program finds the exhaustive optimum, and what of the gap it closes."""
    found, gained, closable, count = dict.fromkeys(PROGRAMS, 0), dict.fromkeys(PROGRAMS, 0.0), 0, 0
    for profile, budget in instances:
        try:
            tape = search.optimum(profile, budget, discards="tape").makespan
            makespans = {
                name: method(profile, budget).makespan for name, method in PROGRAMS.items()
            }
        except InfeasibleBudgetError:
            continue
        free = search.optimum(profile, budget, discards="free").makespan
        count += 1
        closable += tape > free
        for name, makespan in makespans.items():
            found[name] += makespan == free
            gained[name] += (tape - makespan) / (tape - free) if tape > free else 0.0
    columns = ("program", "optimal with free discards", "gap from tape to free closed")
    yield from _heading(f"{title}, up to {SMALL} stages: {count} feasible for all", columns)
    for name in PROGRAMS:
        yield _cells(name, f"{found[name] / count:.2%}", f"{gained[name] / max(1, closable):.1%}")


def _random(instances: int) -> Small:
    for number in range(instances):
        instance = random_chain(1, number)
        if len(instance.profile) <= SMALL:
            yield instance.profile, instance.budget


def _large(title: str, chains: Iterable[tuple[str, ChainProfile]]) -> Iterator[str]:
    """Overheads in percent of plain training, and the share of the gap to the bound closed."""
    programs = ("table 1", "weak", "free")
    columns = ("chain", "stages", "budget", *programs, "bound for all", "gap closed", "seconds")
    yield from _heading(f"{title}: time above plain training, seconds of `free`", columns)
    for name, profile in chains:
        for share in SHARES:
            budget = share_of_plain_training(profile, share)
            try:
                yield _large_row(name, profile, budget, share)
            except InfeasibleBudgetError:
                yield _cells(name, str(len(profile)), f"{share:.0%}", "infeasible", *[""] * 5)


def _large_row(name: str, profile: ChainProfile, budget: int, share: float) -> str:
    makespans: list[int | None] = []
    seconds = 0.0
    for program, method in PROGRAMS.items():
        if "weak" in program and len(profile) > LONGEST_WEAK:
            makespans.append(None)
            continue
        start = time.process_time()
        claim = method(profile, budget)
        if program == "free, persistent":
            seconds = time.process_time() - start
        replay = simulate(profile, claim.schedule, discards=claim.discards)
        if replay.makespan != claim.makespan or replay.peak_bytes > budget:
            raise AssertionError(f"{name} at {budget}: {method} claims {claim.makespan}")
        makespans.append(claim.makespan)
    bound, least = unrestricted_bound(profile, budget), profile.least_time
    table1, best = makespans[0], min(filter(None, makespans))
    assert table1 is not None
    closed = (table1 - best) / (table1 - bound) if table1 > bound else 1.0
    overheads = ["" if m is None else f"{m / least - 1:.2%}" for m in (*makespans, bound)]
    stages = str(len(profile))
    return _cells(name, stages, f"{share:.0%}", *overheads, f"{closed:.0%}", f"{seconds:.2f}")


def _long() -> Iterator[tuple[str, ChainProfile]]:
    for name, family in FAMILIES.items():
        for stages in STAGES:
            yield name, family(stages)


def _networks() -> Iterator[tuple[str, ChainProfile]]:
    for file in sorted(PROFILES.glob("*.json")):
        yield file.stem, ChainProfile.from_json(file.read_text(encoding="utf-8"))


def _measure() -> None:
    """Measure the demonstration's networks on this machine's CPU."""
    import torch  # noqa: PLC0415  # the rest runs without it

    from chainstay import measure  # noqa: PLC0415
    from demo import tasks  # noqa: PLC0415

    torch.set_num_threads(1)
    PROFILES.mkdir(exist_ok=True)
    for file, task in zip(("resnet50", "gpt2"), tasks(torch.device("cpu")), strict=True):
        profile = measure(task.model, task.sample, loss=task.loss).profile
        (PROFILES / f"{file}.json").write_text(profile.to_json(), encoding="utf-8")


def _heading(title: str, columns: tuple[str, ...]) -> Iterator[str]:
    yield from ("", f"## {title}", "", _cells(*columns))
    yield _cells("---", *["---:"] * (len(columns) - 1))


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
