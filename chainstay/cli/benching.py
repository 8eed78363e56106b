"""The work behind ``chainstay bench``: several ways to train one model, each run for real."""

from __future__ import annotations

import json as documents
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from torch import nn
from torch.utils import checkpoint

from chainstay.baselines import checkpoint_sequential
from chainstay.cli.costs import Costed
from chainstay.cli.endings import CommandLineError
from chainstay.cli.planning import Asked
from chainstay.cli.planning_models import recomputing
from chainstay.cli.profiling import Request
from chainstay.cli.tables import short_bytes
from chainstay.cli.terminal import bar, plain_table, say, show
from chainstay.cli.training import fits_here, peak_of, times_of
from chainstay.cli.workloads import Workload
from chainstay.errors import InfeasibleBudgetError
from chainstay.fitting import unfit
from chainstay.runtime.fitted import Fitted
from chainstay.solution import Solution
from chainstay.solve.budgets import size_of
from chainstay.units import format_time

__all__ = ["benched"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way to train, as predicted and as measured.

    Attributes:
        way: For people.
        budget: In bytes, where there is one.
        planned_peak: In bytes, as is `measured_peak`; ``None`` where it was not run.
        planned_ns: Of a step, as is `measured_ns`.
        note: For people.
    """

    way: str
    budget: int | None = None
    planned_peak: int | None = None
    planned_ns: float | None = None
    measured_peak: int | None = None
    measured_ns: int | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Way:
    """What there is to be run."""

    row: Row
    running: Callable[[], Any]


def benched(request: Request, *, budgets: str, segments: int, steps: int, json: bool) -> None:
    """Run all ways, and print what they took."""
    sizes = [Asked(budget=each.strip()) for each in budgets.split(",")]
    for asked in sizes:
        asked.require_sound()
    if request.device not in (None, "cpu") and not str(request.device).startswith("cuda"):
        raise CommandLineError(
            f"--device {request.device} is a data sheet, on which nothing runs; use cpu or cuda"
        )
    costed = request.costs()
    ways = [_plain(costed), *_segmented(costed, segments), *_planned(costed, sizes)]
    rows = _measured(ways, steps)
    if json:
        text = documents.dumps([asdict(row) for row in rows], indent=1)
        sys.stdout.write(text + "\n")
        return
    _show(costed.workload.title, rows)


def _measured(ways: Sequence[_Way], steps: int) -> list[Row]:
    """All ways in turn, round after round: what else the machine does slows all of them."""
    running = [way for way in ways if not way.row.note]
    times: dict[str, list[int]] = {way.row.way: [] for way in running}
    peaks: dict[str, int] = {}
    with bar("measuring", len(running) * (steps + 1)) as step:
        for _ in range(steps):
            for way in running:
                with way.running() as workload:
                    times[way.row.way] += times_of(workload, 1, lambda: None)
                step(way.row.way)
        for way in running:
            with way.running() as workload:
                peaks[way.row.way] = peak_of(workload)
            step(way.row.way)
    return [
        replace(row, measured_ns=min(times[row.way]), measured_peak=peaks[row.way])
        if (row := way.row).way in peaks
        else row
        for way in ways
    ]


def _plain(costed: Costed) -> _Way:
    plain, workload = costed.plain, costed.workload
    fits = fits_here(plain.peak_bytes, workload.target.device)
    row = Row(
        way="plain PyTorch",
        planned_peak=plain.peak_bytes,
        planned_ns=plain.makespan,
        note="" if fits else "does not fit here",
    )
    return _Way(row, partial(_as_it_is, workload))


@contextmanager
def _as_it_is(workload: Workload) -> Iterator[Workload]:
    yield workload


def _segmented(costed: Costed, most: int) -> Iterator[_Way]:
    """The counts of segments that no other beats, evenly chosen if there are many."""
    cut = costed.cut
    if cut is None or cut.ends is None:
        return
    stages = len(costed.profile)
    judged = []
    for count in range(1, stages):
        replay = costed.replay(checkpoint_sequential(stages, count))
        judged.append((replay.peak_bytes, replay.makespan, count))
    front: list[tuple[int, int, int]] = []
    for each in sorted(judged):
        if not front or each[1] < front[-1][1]:
            front.append(each)
    for peak, makespan, count in _spread(front, most):
        row = Row(way=f"torch checkpoint ({count})", planned_peak=peak, planned_ns=makespan)
        yield _Way(row, partial(_checkpointed, costed, count))


def _spread(front: Sequence[tuple[int, int, int]], most: int) -> Sequence[tuple[int, int, int]]:
    if len(front) <= most:
        return front[::-1]
    chosen = sorted({round(index * (len(front) - 1) / max(most - 1, 1)) for index in range(most)})
    return [front[index] for index in reversed(chosen)]


@contextmanager
def _checkpointed(costed: Costed, segments: int) -> Iterator[Workload]:
    assert costed.cut is not None
    assert costed.cut.ends is not None
    ends, stages = costed.cut.ends, costed.cut.chain.stages

    def forward(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        state, shared = ends.begin(args, kwargs)
        functions = [partial(_run, stage, shared) for stage in stages]
        last = checkpoint.checkpoint_sequential(functions, segments, state, use_reentrant=False)
        return ends.finish(last, shared)

    yield replace(costed.workload, model=_Forward(costed.workload.model, forward))


def _run(stage: Any, shared: Any, state: Any) -> Any:  # noqa: ANN401  # torch says nothing
    return stage(state, shared)


class _Forward(nn.Module):
    """A model with another forward."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        return self.function(*args, **kwargs)


def _planned(costed: Costed, sizes: Sequence[Asked]) -> Iterator[_Way]:
    plain = costed.plain
    for asked in sizes:
        budget = size_of(asked.budget, lambda: plain.peak_bytes)
        name = f"chainstay {asked.budget}"
        try:
            solution = recomputing(costed, budget, asked)
        except InfeasibleBudgetError as refusal:
            needs = short_bytes(refusal.required)
            yield _Way(Row(way=name, budget=budget, note=f"needs {needs}"), lambda: None)
            continue
        row = Row(
            way=name,
            budget=budget,
            planned_peak=solution.peak_bytes,
            planned_ns=float(solution.makespan),
        )
        yield _Way(row, partial(_by_plan, costed, solution))


@contextmanager
def _by_plan(costed: Costed, solution: Solution) -> Iterator[Workload]:
    cut, workload = costed.cut, costed.workload
    assert cut is not None
    planned = cut.planned(solution, costed.profile)
    fitted = Fitted(workload.model, lambda *_: planned, "refuse")
    fitted.plan_for(workload.args, workload.kwargs)
    fitted.install()
    try:
        yield workload
    finally:
        unfit(workload.model)


def _show(title: str, rows: Sequence[Row]) -> None:
    say(title, style="bold")
    table = plain_table()
    table.add_column("", overflow="fold")
    for heading in ("budget\n", "peak\nplanned", "\nmeasured", "step\nplanned", "\nmeasured"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("\nslower", justify="right", no_wrap=True)
    plain = rows[0].measured_ns
    for row in rows:
        slower = "" if not plain or not row.measured_ns else f"{row.measured_ns / plain - 1:.1%}"
        table.add_row(
            row.way,
            "" if row.budget is None else short_bytes(row.budget),
            "" if row.planned_peak is None else short_bytes(row.planned_peak),
            row.note if row.measured_peak is None else short_bytes(row.measured_peak),
            "" if row.planned_ns is None else format_time(row.planned_ns),
            "" if row.measured_ns is None else format_time(row.measured_ns),
            slower,
        )
    show(table)
    say("\ntimes: the least of several steps; peaks: a whole step, inputs included")
