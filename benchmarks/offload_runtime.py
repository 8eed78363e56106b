"""What offloading plans promise and what steps take: the CPU double of the transfers' engine.

    OMP_NUM_THREADS=1 PYTHONPATH=.:examples python benchmarks/offload_runtime.py

Each network is measured; for several links and budgets between the least feasible one and what
plain training needs, the best heuristic plan runs on threads that copy at the link's pace. A
step's time is the least of several: what its thread computes, and how long it waits for
transfers; other work on the machine does not count. Copies compete
with the computation for one memory bus here, which no plan knows about; on a device they do not.
A plan takes the sum of the times of its stages as measured, and its waits. Without
transfers, a step is compared with the same sum, to show what measuring alone gets wrong.

Goal: steps within 10 % of the plan, peaks within the budget.

Prints what it writes to ``benchmarks/results/offload_runtime.md``.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch
from torch.nn import functional

from benchmarks.training import Task, cells, heading, machine, mebibytes, peak_bytes, step_of
from chainstay import Link, MeasuredChain, measure, solve_offload
from chainstay.runtime.transfers.copying import CopyingEngine
from models import gpt2, resnet50

RESULTS: Final = Path(__file__).parent / "results" / "offload_runtime.md"
TENTHS: Final = (0, 1, 2, 4, 6, 8)
COLUMNS: Final = (
    "network",
    "link",
    "budget",
    "peak",
    "moved",
    "plan ms",
    "step ms",
    "step / plan",
    "waited ms",
)


def tasks() -> Iterator[Task]:
    """The networks, small enough for a CPU."""
    torch.manual_seed(0)
    images, classes = torch.randn(8, 3, 96, 96), torch.randint(0, 1000, (8,))
    yield Task(
        "ResNet-50 (width 16)",
        resnet50(width=16),
        images,
        lambda scores: functional.cross_entropy(scores, classes),
    )
    tokens, following = torch.randint(0, 1000, (4, 128)), torch.randint(0, 1000, (512,))
    yield Task(
        "GPT-2 (width 192)",
        gpt2(blocks=8, width=192, heads=6, vocabulary=1000, context=128),
        tokens,
        lambda scores: functional.cross_entropy(scores.flatten(0, 1), following),
    )


def links() -> Iterator[tuple[str, Link]]:
    """One that keeps up with the computation, and one that does not."""
    for name, speed, duplex in (
        ("1 GB/s", 10**9, "half"),
        ("0.4 GB/s each way", 4 * 10**8, "full"),
    ):
        yield name, Link.from_bytes_per_second(speed, latency_ns=200_000, duplex=duplex)


def least_ms(step: Callable[[], None], repeats: int, engine: CopyingEngine | None = None) -> float:
    """What this thread computes, and how long it waits for `engine`."""
    step()
    times = []
    for _ in range(repeats):
        begin, waited = time.thread_time_ns(), engine.stalled if engine else 0.0
        step()
        elapsed = time.thread_time_ns() - begin
        times.append(elapsed + (engine.stalled - waited if engine else 0.0) * 1e9)
    return min(times) / 1e6


def rows(task: Task, measured: MeasuredChain, repeats: int) -> Iterator[str]:
    """One per link and budget, and one without transfers."""
    profile = measured.offload_profile
    plain, least = least_ms(step_of(task, task.model), repeats), profile.least_time / 1e6
    columns = ("", mebibytes(profile.peak_bytes), "", "0", f"{least:.1f}", f"{plain:.1f}")
    yield cells(task.name, *columns, f"{plain / least:.2f}", "0.0")
    for name, link in links():
        for tenths in TENTHS:
            spare = profile.peak_bytes - profile.required_bytes
            budget = profile.required_bytes + spare * tenths // 10
            solution = solve_offload(profile, budget, link=link, method="heuristics")
            engine = CopyingEngine(link)
            chain = measured.planned(solution, engine=engine)
            peak = peak_bytes(task, chain)
            took = least_ms(step_of(task, chain), repeats, engine)
            before = engine.stalled
            step_of(task, chain)()
            waited = (engine.stalled - before) * 1e3
            chain.close()
            plan = float(solution.makespan) / 1e6
            moved = str(solution.schedule).count("Oa")
            yield cells(
                task.name,
                name,
                mebibytes(budget),
                mebibytes(peak),
                str(moved),
                f"{plan:.1f}",
                f"{took:.1f}",
                f"{took / plan:.2f}",
                f"{waited:.1f}",
            )


def main() -> None:
    """See above."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15, help="timed steps of each plan")
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    lines = [f"# Offloading on the CPU double\n\n{machine(torch.device('cpu'))}\n"]
    lines += heading(*COLUMNS)
    for task in tasks():
        task.prepare()
        measured = measure(task.model, task.sample, loss=task.loss, repeats=repeats)
        lines += rows(task, measured, repeats)
    text = "\n".join(lines) + "\n"
    RESULTS.write_text(text)
    sys.stdout.write(text)


if __name__ == "__main__":
    main()
