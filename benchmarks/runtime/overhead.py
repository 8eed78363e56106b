"""What the runtime itself costs per stage: chains of 64 stages with next to nothing to compute.

    .venv/bin/python -m benchmarks.runtime.overhead [--output benchmarks/results/overhead.md]

Each chain takes its step four ways, in turns: plainly; by a plan that keeps everything; by one
that keeps the input of every stage and makes the rest again; and with non-reentrant
``torch.utils.checkpoint.checkpoint`` around every stage, which does the same. What a way takes
above the plain step beside it, divided by 64, is its cost per stage: the median over all rounds
of these differences, each step behind two of its own kind, so that what other ways leave in the
caches does not count. For kept stages the forward is shown by itself, too. For the last two ways
the cost includes the stage's second forward. Once the chain is a `torch.nn.Sequential` under
``measure(...).planned``, once the same stages are in a module of the user's under
``chainstay.fit``, which runs the captured graph's operators instead of modules. Times are the
thread's own.

Then the two networks of the demo take their step plainly and fitted at a budget of 100 %, in
turns: the median of the ratios of neighbours.

Goals: kept stages below 5 us each, recomputed ones no more than torch's, fitted steps of the
demo's networks at most 2 % above plain ones.

About five minutes on a quiet machine. Exits with 1 if a goal is missed.
"""

from __future__ import annotations

import argparse
import copy
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import demo
from benchmarks.training import Forward, Task, cells, heading, keep_memory, machine, twin
from chainstay import Op, OpKind, Schedule, fit, measure
from chainstay.fitting.measured import measure_model
from chainstay.fitting.planner import PlannerSettings
from chainstay.runtime.execute.executor import Executor
from chainstay.runtime.stage.staged_graph import PlannedGraph

STAGES: Final = 64
WIDTH: Final = 8
KEPT_GOAL_US: Final = 5.0
WHOLE_GOAL: Final = 1.02
COLUMNS: Final = (
    "stage",
    "front",
    "plain",
    "kept",
    "its forward",
    "recomputed",
    "torch checkpoint",
    "recomputed / torch's",
)
WHOLE_COLUMNS: Final = ("network", "plain step", "fitted at 100 %", "ratio", "rounds")


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


@dataclass(frozen=True)
class Row:
    """Costs per stage in us: of plain steps, and of others above those."""

    stage: str
    front: str
    plain: float
    kept: float
    kept_forward: float
    recomputed: float
    torch: float

    @property
    def is_missed(self) -> bool:
        """Whether a goal is."""
        return self.kept >= KEPT_GOAL_US or self.recomputed > self.torch

    def __str__(self) -> str:
        costs = (self.kept, self.kept_forward, self.recomputed, self.torch)
        return cells(
            self.stage,
            self.front,
            f"{self.plain:.1f}",
            *(f"{cost:+.1f}" for cost in costs),
            f"{self.recomputed / self.torch:.2f}",
        )


@dataclass(frozen=True)
class WholeRow:
    """Steps of a network in ns, each pair one behind the other."""

    network: str
    plain: list[int]
    fitted: list[int]

    @property
    def ratio(self) -> float:
        """Of neighbours, usually."""
        return median(own / plain for own, plain in zip(self.fitted, self.plain, strict=True))

    @property
    def is_missed(self) -> bool:
        """Whether the goal is."""
        return self.ratio > WHOLE_GOAL

    def __str__(self) -> str:
        steps = (f"{median(times) / 1e6:.1f} ms" for times in (self.plain, self.fitted))
        return cells(self.network, *steps, f"{self.ratio:.3f}", str(len(self.plain)))


def main() -> int:
    """Run, print and store."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=60, help="most timed steps of each kind")
    parser.add_argument("--seconds", type=float, default=12, help="for each row's steps")
    parser.add_argument("--whole-seconds", type=float, default=60, help="for each network's steps")
    parser.add_argument("--output", type=Path, help="where to write the table")
    options = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    command = " ".join(["python -m benchmarks.runtime.overhead", *sys.argv[1:]])
    lines = [
        "# What the runtime costs per stage, in us",
        "",
        f"`{command}` on {machine(torch.device('cpu'))}; see its text.",
        f"The load is {os.getloadavg()[0]:.1f}.",
        "",
        *heading(*COLUMNS),
    ]
    print("\n".join(lines))
    rows: list[Row] = []
    for name, build in KINDS.items():
        for front, prepare in (("planned", _planned), ("fit", _fitted)):
            torch.manual_seed(0)
            model = nn.Sequential(*(build() for _ in range(STAGES)))
            sample = torch.randn(4, WIDTH, requires_grad=True)
            task = Task(name, model, sample, torch.Tensor.sum)
            task.prepare()
            rows.append(_row(task, front, prepare(task), options.rounds, options.seconds))
            print(rows[-1], flush=True)
    lines += [*map(str, rows), "", *heading(*WHOLE_COLUMNS)]
    print("\n".join(lines[-3:]))
    wholes: list[WholeRow] = []
    for network in demo.tasks(torch.device("cpu")):
        wholes.append(_whole(network, options.whole_seconds))
        print(wholes[-1], flush=True)
    lines += [*map(str, wholes), "", _verdict(rows, wholes)]
    print(lines[-1])
    if options.output is not None:
        options.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return any(row.is_missed for row in rows) or any(row.is_missed for row in wholes)


def _verdict(rows: list[Row], wholes: list[WholeRow]) -> str:
    missed = [f"{row.stage} ({row.front})" for row in rows if row.is_missed]
    missed += [row.network for row in wholes if row.is_missed]
    return (
        f"Verdict: {'missed by ' + ', '.join(missed) if missed else 'all met'}; kept stages cost "
        f"at most {max(row.kept for row in rows):.1f} us, recomputed ones at most "
        f"{max(row.recomputed / row.torch for row in rows):.2f} of torch's; a fitted step that "
        f"recomputes nothing takes at most {max(row.ratio for row in wholes):.3f} of a plain one."
    )


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
    fit(kept, (task.sample,), budget=1.0, loss=task.loss, repeats=1, progress=False)
    settings = PlannerSettings(loss=task.loss, repeats=1, progress=False)
    measured = measure_model(recomputed, (task.sample,), {}, settings)
    planned = measured.planned(measured.solve("100%"))
    assert isinstance(planned, PlannedGraph)
    assert measured.staged is not None
    schedule = keep_inputs(len(planned.profile))  # fit would not choose it
    executor = Executor(measured.staged.chain, schedule)
    measured.fitted.use(replace(planned, executor=executor))
    measured.fitted.install(recomputed)
    checkpointed = _planned(task)["torch"]
    return {"plain": plain, "kept": kept, "recomputed": recomputed, "torch": checkpointed}


def _row(task: Task, front: str, forwards: Forwards, rounds: int, seconds: float) -> Row:
    runs: dict[str, list[tuple[int, ...]]] = {name: [] for name in forwards}
    begin = time.monotonic()
    for turn in range(rounds):
        if turn >= 5 and time.monotonic() - begin > seconds:
            break
        for name, forward in forwards.items():
            runs[name].append([_timed_step(task, forward) for _ in range(3)][-1])

    def cost(name: str, phase: slice) -> float:
        """Above the plain step, per stage, in us; of the forward, or of both phases."""
        pairs = zip(runs[name], runs["plain"], strict=True)
        return median(sum(own[phase]) - sum(plain[phase]) for own, plain in pairs) / STAGES / 1e3

    return Row(
        stage=task.name,
        front=front,
        plain=median(sum(run) for run in runs["plain"]) / STAGES / 1e3,
        kept=cost("kept", slice(2)),
        kept_forward=cost("kept", slice(1)),
        recomputed=cost("recomputed", slice(2)),
        torch=cost("torch", slice(2)),
    )


def _whole(task: demo.Task, seconds: float) -> WholeRow:
    """A network's plain steps, and fitted ones beside them."""
    for parameter in task.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    fitted = twin(task.model)
    fit(fitted, (task.sample,), budget=1.0, loss=task.loss, repeats=1, progress=False)
    row = WholeRow(task.name, [], [])
    begin, turn = time.monotonic(), 0
    while turn < 6 or time.monotonic() - begin < seconds:
        pair = [(row.plain, task.model), (row.fitted, fitted)]
        for runs, model in pair if turn % 2 else reversed(pair):
            elapsed = sum(_timed_step(task, model))
            if turn:  # the first ones warm up
                runs.append(elapsed)
        turn += 1
    return row


def _timed_step(task: Task | demo.Task, forward: Forward) -> tuple[int, int]:
    """Forward and backward, in ns."""
    begin = time.thread_time_ns()
    loss = task.loss(forward(task.sample))
    turn = time.thread_time_ns()
    loss.backward()
    return turn - begin, time.thread_time_ns() - turn


if __name__ == "__main__":
    sys.exit(main())
