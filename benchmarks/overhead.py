"""What the runtime itself costs per stage: chains of 64 stages with next to nothing to compute.

    OMP_NUM_THREADS=1 PYTHONPATH=.:examples python benchmarks/overhead.py

Each chain takes its step four ways, in turns: plainly; by a plan that keeps everything; by one
that keeps the input of every stage and makes the rest again; and with non-reentrant
``torch.utils.checkpoint.checkpoint`` around every stage, which does the same. What a way takes
above the plain step, divided by 64, is its cost per stage; for the last two that includes the
stage's second forward. Once the chain is a `torch.nn.Sequential` under ``measure(...).planned``,
once the same stages are in a module of the user's under ``chainstay.fit``, which runs exported
operators instead of modules. Times are the thread's own, the least and the median of many steps,
each behind two of its own kind, so that what other ways leave in the caches does not count.

Goals: kept stages below 5 us each, recomputed ones no more than torch's.

Prints what it writes to ``benchmarks/results/overhead.md``.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from benchmarks.training import Forward, Task, cells, heading, interleaved_times, machine
from chainstay import Op, OpKind, Schedule, fit, measure
from chainstay.runtime.calls import PlannedCall
from chainstay.runtime.executor import Executor
from chainstay.runtime.fitted import Fitted

RESULTS: Final = Path(__file__).parent / "results" / "overhead.md"
STAGES: Final = 64
WIDTH: Final = 8
COLUMNS: Final = (
    "stage",
    "front",
    "plain",
    "kept",
    "recomputed",
    "torch checkpoint",
    "recomputed / torch's",
    "medians: kept",
    "recomputed / torch's",
)


class Residual(nn.Module):
    """A normalisation and two linear layers beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, WIDTH)
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """The sum."""
        total: torch.Tensor = hidden + self.down(torch.tanh(self.up(self.norm(hidden))))
        return total


class Stack(nn.Module):
    """A model of the user's that is no `torch.nn.Sequential`."""

    def __init__(self, stages: nn.Sequential) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """All stages in order."""
        for stage in self.stages:
            hidden = stage(hidden)
        return hidden


KINDS: Final[dict[str, Callable[[], nn.Module]]] = {
    "tanh": nn.Tanh,
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "linear, tanh": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()),
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "dropout": lambda: nn.Dropout(0.1),
    "residual": Residual,
}


def main() -> None:
    """Run, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60, help="timed steps of each kind")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "# What the runtime costs per stage, in us",
        "",
        f"`{' '.join(['python', *sys.argv])}` on {machine(torch.device('cpu'))}; see its text.",
        "",
        *heading(*COLUMNS),
    ]
    print("\n".join(lines))
    for name, build in KINDS.items():
        for front, prepare in (("planned", _planned), ("fit", _fitted)):
            torch.manual_seed(0)
            model = nn.Sequential(*(build() for _ in range(STAGES)))
            sample = torch.randn(4, WIDTH, requires_grad=True)
            task = Task(name, model, sample, torch.Tensor.sum)
            task.prepare()
            line = _row(task, front, prepare(task), options.rounds)
            print(line, flush=True)
            lines.append(line)
    RESULTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def keep_inputs(stages: int) -> Schedule:
    """Every stage but the loss runs twice, the second time just before its backward."""
    last = stages - 1
    ops = [Op(OpKind.FORWARD_KEEP_INPUT, stage) for stage in range(last)]
    for stage in reversed(range(stages)):
        ops += [Op(OpKind.FORWARD_KEEP_ALL, stage), Op(OpKind.BACKWARD, stage)]
    return Schedule(tuple(ops))


Forwards = dict[str, Forward]


def _planned(task: Task) -> Forwards:
    """A plain chain, planned."""
    measured = measure(task.model, task.sample, loss=task.loss, repeats=1)
    stages = len(measured.profile)

    def checkpointed(hidden: torch.Tensor) -> torch.Tensor:
        for stage in task.model:
            hidden = checkpoint(stage, hidden, use_reentrant=False)
        return hidden

    return {
        "plain": task.model,
        "kept": measured.planned(Schedule.keep_all(stages)),
        "recomputed": measured.planned(keep_inputs(stages)),
        "torch": checkpointed,
    }


def _fitted(task: Task) -> Forwards:
    """The same stages in a model that is fitted."""
    plain = Stack(task.model)
    kept, recomputed = copy.deepcopy(plain), copy.deepcopy(plain)
    for model in (kept, recomputed):
        fit(model, (task.sample,), budget=1.0, loss=task.loss, repeats=1)
    fitted = recomputed.chainstay
    assert isinstance(fitted, Fitted)
    ((number, (situation, call)),) = fitted._plans.items()  # noqa: SLF001  # fit would not choose it
    assert isinstance(call, PlannedCall)
    executor = Executor(
        call.executor._chain,  # noqa: SLF001  # likewise
        call.executor._traits,  # noqa: SLF001  # likewise
        keep_inputs(len(call.profile)),
    )
    fitted._plans[number] = (situation, replace(call, executor=executor))  # noqa: SLF001  # likewise
    checkpointed = _planned(task)["torch"]
    return {"plain": plain, "kept": kept, "recomputed": recomputed, "torch": checkpointed}


def _row(task: Task, front: str, forwards: Forwards, rounds: int) -> str:
    times = interleaved_times(task, forwards, rounds, warm_up=2)
    least = {name: each.least / STAGES / 1e3 for name, each in times.items()}
    usual = {name: each.median / STAGES / 1e3 for name, each in times.items()}
    kept, recomputed, torchs = (
        least[name] - least["plain"] for name in ("kept", "recomputed", "torch")
    )
    medians = [usual[name] - usual["plain"] for name in ("kept", "recomputed", "torch")]
    return cells(
        task.name,
        front,
        f"{least['plain']:.1f}",
        f"{kept:+.1f}",
        f"{recomputed:+.1f}",
        f"{torchs:+.1f}",
        f"{recomputed / torchs:.2f}",
        f"{medians[0]:+.1f}",
        f"{medians[1] / medians[2]:.2f}",
    )


if __name__ == "__main__":
    main()
