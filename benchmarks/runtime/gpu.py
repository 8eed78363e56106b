"""The whole GPU table in one call: exactness, peaks, predictions, step times, synchronisation.

    .venv/bin/python -m benchmarks.runtime.gpu [--device cuda] [--seconds 430]

Needs torch, numpy and numba or not; solvers and model libraries are not used. For ResNet-50, ViT,
GPT-2 and a stack of Llama blocks in bf16, plans are made for shares of plain training's memory and
for the measured peaks of ``torch.utils.checkpoint.checkpoint_sequential``. For each plan:

=========  ======================================================================================
bits       three SGD steps with deterministic kernels give the loss, gradients, parameters,
           buffers and random states of plain training, by ``torch.equal``
peak       the caching allocator's peak in a step, against the budget and the prediction
step       by CUDA events, steps of all kinds in turns, against prediction, plain training, and
           the fastest segment count of checkpoint_sequential whose measured peak is no higher
sync       a step under ``torch.cuda.set_sync_debug_mode("error")``
=========  ======================================================================================

Prints what it writes to ``gpu-NAME.md``, NAME being the device's. With ``--device cpu`` the same
code runs on small networks, so that it can be tested anywhere. Exits with 1 if a check fails.
"""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

# cuBLAS reads it once, when it is first used.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # see above
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import RESULTS
from benchmarks.networks import tasks_on_gpu
from benchmarks.training import (
    Forward,
    Task,
    Way,
    cells,
    checkpointed_ways,
    heading,
    interleaved_times,
    machine,
    mebibytes,
    peak_bytes,
    smallest_and_fastest,
    step_of,
)
from chainstay import (
    DP,
    InfeasibleBudgetError,
    Schedule,
    Solution,
    measure,
    simulate,
    solve_measured,
)
from chainstay.runtime import MeasuredChain

SHARES: Final = (0.8, 0.6, 0.4)
MOST_PEERS: Final = 3
METHOD: Final = DP(discards="free")
COLUMNS: Final = (
    "network",
    "budget",
    "bits",
    "sync",
    "peak",
    "predicted",
    "within budget",
    "step",
    "predicted",
    "/ plain",
    "checkpoint_sequential, peak",
    "ours / its",
)
Record = list[torch.Tensor]


@dataclass
class Table:
    """What has been found so far.

    Attributes:
        lines: Of the report.
        failures: What should not be, in words.
    """

    lines: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, line: str) -> None:
        """Print and keep `line`."""
        print(line, flush=True)
        self.lines.append(line)

    def fail(self, text: str) -> None:
        """Tell a failure at once: the run may be cut short."""
        print(f"FAILED: {text}", flush=True)
        self.failures.append(text)


def main() -> int:
    """Run, print and store; the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder")
    parser.add_argument("--seconds", type=float, default=430, help="no plan is begun after them")
    parser.add_argument("--rounds", type=int, default=7, help="timed steps of each kind")
    parser.add_argument("--only", help="one network")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --device cpu runs the same code on the CPU")
    torch.set_num_threads(1)
    deadline = time.monotonic() + options.seconds
    table = Table()
    for line in _header(device):
        table.add(line)
    for task in tasks_on_gpu(device):
        if options.only in (None, task.name):
            try:
                _network(task, table, deadline, options.rounds)
            except Exception as error:  # noqa: BLE001  # the other networks are still of interest
                traceback.print_exc()
                table.fail(f"{task.name}: {type(error).__name__}: {error}")
        del task
        _let_go(device)
    table.add("")
    table.add(f"Failures: {'; '.join(table.failures) or 'none'}.")
    options.output.mkdir(parents=True, exist_ok=True)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    file = options.output / f"gpu-{re.sub('[^A-Za-z0-9]+', '-', name).lower()}.md"
    file.write_text("\n".join(table.lines) + "\n", encoding="utf-8")
    return 1 if table.failures else 0


def _header(device: torch.device) -> Iterator[str]:
    yield f"# Plans on {machine(device)}"
    yield ""
    yield f"`python -m benchmarks.runtime.gpu {' '.join(sys.argv[1:])}`; see its text."
    yield ""
    yield from heading(*COLUMNS)


def _let_go(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _network(task: Task, table: Table, deadline: float, rounds: int) -> None:
    """All rows of one network."""
    task.prepare()
    measured = measure(task.model, task.sample, loss=task.loss, repeats=5)
    plain = Schedule.keep_all(len(measured.profile))
    plain_peak = simulate(measured.profile_for(plain), plain).peak_bytes
    bench = _Bench(task, measured, table, rounds, *_plain_records(task))
    bench.plain_row()
    bench.peers += smallest_and_fastest(checkpointed_ways(task, 3))
    budgets = {f"{share:.0%}": int(share * plain_peak) for share in SHARES}
    spread = bench.peers[:: max(1, -(-(len(bench.peers) - 1) // (MOST_PEERS - 1)))]
    for peer in (*spread, bench.peers[-1]):
        budgets[f"peak of {peer.segments} segments"] = peer.peak_bytes
    for title, budget in budgets.items():
        if time.monotonic() > deadline:
            table.fail(f"{task.name} at {title}: not run, for lack of time")
            continue
        bench.planned_row(title, budget)


@dataclass
class _Bench:
    """One network's checks.

    Attributes:
        task: The network.
        measured: Likewise.
        table: For what is found.
        rounds: Timed steps of each kind.
        expected: What plain training leaves behind with deterministic kernels.
        backends: Of attention, with which it repeats itself.
        peers: Segment counts of checkpoint_sequential that no other beats.
    """

    task: Task
    measured: MeasuredChain
    table: Table
    rounds: int
    expected: Record | None
    backends: list[SDPBackend]
    peers: list[Way] = field(default_factory=list)

    def plain_row(self) -> None:
        """Plain training: does it repeat itself, does it synchronise, and what does it need."""
        task, schedule = self.task, Schedule.keep_all(len(self.measured.profile))
        replay = simulate(self.measured.profile_for(schedule), schedule)
        peak = peak_bytes(task, task.model)
        elapsed = interleaved_times(task, {"plain": task.model}, self.rounds)["plain"].median
        self.table.add(
            cells(
                task.name,
                "plain training",
                "does not repeat itself" if self.expected is None else "repeats itself",
                _synchronises(task, task.model),
                mebibytes(peak),
                f"{replay.peak_bytes / peak - 1:+.1%}",
                "",
                f"{elapsed / 1e6:.1f} ms",
                f"{replay.makespan / elapsed - 1:+.1%}",
                "1.000",
                "",
                "",
            )
        )

    def planned_row(self, title: str, budget: int) -> None:
        """A plan for `budget`, or for the least feasible one if that is more."""
        try:
            solution = solve_measured(self.measured, budget, METHOD)
        except InfeasibleBudgetError as error:
            solution = solve_measured(self.measured, error.required, METHOD)
            title = f"{title}: infeasible, least"
        planned = self.measured.planned(solution)
        name = f"{self.task.name} at {title}"
        bits = self._bits(planned, name)
        synchronises = _synchronises(self.task, planned)
        if synchronises not in ("none", "not on the CPU"):
            self.table.fail(f"{name} synchronises: {synchronises}")
        peak = peak_bytes(self.task, planned)
        if peak > solution.budget:
            self.table.fail(f"{name} needs {mebibytes(peak)} of {mebibytes(solution.budget)}")
        within = "yes" if peak <= solution.budget else "NO"
        checks = (bits, synchronises, mebibytes(peak), f"{solution.peak_bytes / peak - 1:+.1%}")
        budget_cell = f"{title}: {mebibytes(solution.budget)}"
        times = self._times(planned, solution, peak)
        self.table.add(cells(self.task.name, budget_cell, *checks, within, *times))

    def _bits(self, planned: Forward, name: str) -> str:
        if self.expected is None:
            return "unknown"
        with _deterministic(self.backends):
            record = _record(self.task, planned)
        differing = sum(
            not torch.equal(mine, theirs)
            for mine, theirs in zip(record, self.expected, strict=True)
        )
        if differing:
            self.table.fail(f"{name}: {differing} of {len(record)} tensors differ")
        return f"{differing} DIFFER" if differing else "equal"

    def _times(self, planned: Forward, solution: Solution, peak: int) -> Iterator[str]:
        forwards: dict[str, Forward] = {"plain": self.task.model, "ours": planned}
        # Both get the same memory: what the plan was given.
        fitting = [each for each in self.peers if each.peak_bytes <= max(peak, solution.budget)]
        if fitting:
            forwards["its"] = fitting[-1].forward
        times = interleaved_times(self.task, forwards, self.rounds)
        ours = times["ours"].median
        yield f"{ours / 1e6:.1f} ms"
        yield f"{solution.makespan / ours - 1:+.1%}"
        yield f"{ours / times['plain'].median:.3f}"
        if fitting:
            peer = fitting[-1]
            yield f"{peer.segments} segments, {mebibytes(peer.peak_bytes)}"
            yield f"{ours / times['its'].median:.3f}"
        else:
            yield from ("none fits", "")


def _plain_records(task: Task) -> tuple[Record | None, list[SDPBackend]]:
    """What plain training leaves behind, if it is the same twice, and attention's backends."""
    fast = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    for backends in (fast, [SDPBackend.MATH]):
        try:
            with _deterministic(backends):
                once, again = _record(task, task.model), _record(task, task.model)
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            print(f"{task.name}: {error}", flush=True)
            continue
        if all(map(torch.equal, once, again)):
            return once, backends
    return None, fast


@contextmanager
def _deterministic(backends: list[SDPBackend]) -> Iterator[None]:
    """Inside, kernels give the same bits each time."""
    torch.use_deterministic_algorithms(mode=True)
    try:
        with sdpa_kernel(backends):
            yield
    finally:
        torch.use_deterministic_algorithms(mode=False)


def _record(task: Task, forward: Forward) -> Record:
    """Three steps of SGD from a fixed seed, and what they leave; the model is put back."""
    initial = {name: tensor.clone() for name, tensor in task.model.state_dict().items()}
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(task.model.parameters(), lr=1e-3)
    record = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = task.loss(forward(task.sample))
        loss.backward()
        optimizer.step()
        record.append(loss.detach())
    for parameter in task.model.parameters():
        record.append(parameter.detach().clone())
        if parameter.grad is not None:
            record.append(parameter.grad.clone())
    record += [buffer.clone() for buffer in task.model.buffers()]
    record.append(torch.get_rng_state())
    if task.device.type == "cuda":
        record.append(torch.cuda.get_rng_state(task.device))
    task.model.load_state_dict(initial)
    task.prepare()
    return record


def _synchronises(task: Task, forward: Forward) -> str:
    """The first operation of a step that waits for the device; "none" if there is none."""
    if task.device.type != "cuda":
        return "not on the CPU"
    step: Callable[[], None] = step_of(task, forward)
    step()
    torch.cuda.synchronize(task.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return str(error).partition("\n")[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
        task.prepare()
    return "none"


if __name__ == "__main__":
    sys.exit(main())
