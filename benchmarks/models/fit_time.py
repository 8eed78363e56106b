"""Where the time of `fit` goes, in plain steps of the model, for nine networks.

A second thread looks at the stack of the one that fits 200 times a second; a look counts for the
work that the innermost known function belongs to. Times are those of the thread itself, so that
other processes matter less. A network is fitted once, at 60 % of plain training's peak, with all
defaults. The last column is one more step, on a smaller batch or shorter sentence, which is
planned by the costs of the larger.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Final

import torch

import chainstay
from benchmarks.models.options import NETWORKS, OTHERS, Case, case_of
from benchmarks.training import cells, heading, machine

__all__ = ["main"]

_WORK: Final = {
    "chainstay/planning/": "solve",
    "chainstay/runtime/options/": "options",
    "chainstay/runtime/measures/option_costs": "options",
    "chainstay/runtime/measures/clock": "times",
    "chainstay/runtime/measures/": "memory",
    "chainstay/runtime/devices/memory": "memory",
    "chainstay/runtime/capture/": "capture",
    "torch/_dynamo/": "capture",
}
"""The beginning of a file's path, and the work that it does; the first that fits counts."""
_COLUMNS: Final = ("capture", "memory", "times", "options", "solve", "the rest")
_RUNS: Final = "/chainstay/runtime/capture/cuts/programs.py"
"""What runs a stage; that counts for whoever wants it to run."""
_ALL: Final = (*NETWORKS, *OTHERS)
_PAUSE_S: Final = 0.005


def work_of(frame: FrameType | None) -> str:
    """Return the work that the innermost known function of a stack belongs to."""
    while frame is not None:
        path = frame.f_code.co_filename
        for beginning, work in _WORK.items():
            if f"/{beginning}" in path and not path.endswith(_RUNS):
                return work
        frame = frame.f_back
    return "the rest"


def observed(function: Callable[[], object]) -> tuple[Counter[str], float]:
    """Run a function; return how often it was seen at each kind of work, and its own seconds."""
    seen: Counter[str] = Counter()
    done = threading.Event()
    observing = threading.get_ident()

    def look() -> None:
        while not done.wait(_PAUSE_S):
            seen[work_of(sys._current_frames().get(observing))] += 1  # noqa: SLF001  # documented

    observer = threading.Thread(target=look)
    observer.start()
    start = time.thread_time()
    try:
        function()
    finally:
        done.set()
        observer.join()
    return seen, time.thread_time() - start


def row_of(name: str, budget: str) -> str:
    """Return the row of a network."""
    case = case_of(name)
    plain = []
    for _ in range(4):
        start = time.thread_time()
        case.step(case.model)
        plain.append(time.thread_time() - start)
    step = min(plain[1:])
    seen, seconds = observed(
        lambda: chainstay.fit(
            case.model, case.args, case.kwargs, budget=budget, loss=case.loss, progress=False
        )
    )
    looks = max(seen.total(), 1)
    parts = [f"{seen[work] / looks * seconds / step:.1f}" for work in _COLUMNS]
    smaller = smaller_call(case)
    _, more = observed(lambda: smaller.step(smaller.model))
    times = (f"{step * 1e3:.0f}", f"{seconds:.1f}", f"{seconds / step:.1f}")
    return cells(name, *times, *parts, f"{more / step:.1f}")


def smaller_call(case: Case) -> Case:
    """Return the same with a quarter less of the batch, or of a single sentence."""

    def smaller(tensor: torch.Tensor) -> torch.Tensor:
        dimension = 0 if len(tensor) > 1 else 1
        size = tensor.shape[dimension]
        return tensor.narrow(dimension, 0, size - max(size // 4, 1)).clone()

    kwargs = {name: smaller(tensor) for name, tensor in case.kwargs.items()}
    return replace(case, args=tuple(map(smaller, case.args)), kwargs=kwargs)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--networks", nargs="*", choices=_ALL, default=_ALL)
    parser.add_argument("--budget", default="60%", help="bytes, or a share of plain training")
    parser.add_argument("--output", type=Path, help="a file for the table")
    given = parser.parse_args()
    torch.set_num_threads(1)
    head = heading("network", "a plain step, ms", "fit, s", "fit, steps", *_COLUMNS, "smaller call")
    lines = [machine(torch.device("cpu")), f"Budget: {given.budget}.", "", *head]
    print(*lines, sep="\n", flush=True)
    for name in given.networks:
        lines.append(row_of(name, given.budget))
        print(lines[-1], flush=True)
        if given.output is not None:
            given.output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
