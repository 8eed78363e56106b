"""Plans for whole networks on a GPU, beside ``torch.utils.checkpoint.checkpoint_sequential``.

For ResNet-50, ViT, GPT-2 and a stack of Llama blocks in bf16, plans are made for shares of plain
training's memory and for the measured peaks of checkpoint_sequential. For each plan:

=========  ======================================================================================
bits       three SGD steps with deterministic kernels give the loss, gradients, parameters,
           buffers and random states of plain training, by ``torch.equal``
peak       the most bytes that a step asked the allocator for, against budget and prediction
step       by the device's clock, steps of all kinds in turns, against prediction, plain training,
           and the fastest segment count of checkpoint_sequential whose peak is no higher
sync       a step under ``torch.cuda.set_sync_debug_mode("error")``
=========  ======================================================================================
"""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.batchnorm import _BatchNorm

from benchmarks.networks import tasks_on_gpu
from benchmarks.training import (
    Forward,
    Task,
    Way,
    checkpointed_ways,
    interleaved_times,
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

__all__ = [
    "Record",
    "Row",
    "deterministic",
    "let_go",
    "plans",
    "record_of",
    "repeatable_record",
    "waits_in",
]

Row = dict[str, str]
"""One line of a table, by its columns."""

SHARES: Final = (0.8, 0.6, 0.4)
MOST_PEERS: Final = 3
METHOD: Final = DP(discards="free")
Record = list[torch.Tensor]


def plans(device: torch.device, deadline: float, rounds: int) -> Iterator[Row]:
    """Rows of all networks; no plan is begun when the monotonic clock is beyond `deadline`."""
    for task in tasks_on_gpu(device):
        yield from _network(task, deadline, rounds)
        del task
        let_go(device)


def let_go(device: torch.device) -> None:
    """Give back what nobody holds any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _network(task: Task, deadline: float, rounds: int) -> Iterator[Row]:
    task.prepare()
    measured = measure(task.model, task.sample, loss=task.loss, repeats=5)
    plain = Schedule.keep_all(len(measured.profile))
    plain_peak = simulate(measured.profile_for(plain), plain).peak_bytes
    bench = _Bench(task, measured, rounds, *repeatable_record(task))
    yield bench.plain_row()
    bench.peers += smallest_and_fastest(checkpointed_ways(task, 3))
    budgets = {f"{share:.0%}": int(share * plain_peak) for share in SHARES}
    spread = bench.peers[:: max(1, -(-(len(bench.peers) - 1) // (MOST_PEERS - 1)))]
    for peer in (*spread, bench.peers[-1]):
        budgets[f"peak of {peer.segments} segments"] = peer.peak_bytes
    for title, budget in budgets.items():
        if time.monotonic() > deadline:
            yield {"network": task.name, "budget": title, "verdict": "not run, for lack of time"}
        else:
            yield bench.planned_row(title, budget)


@dataclass
class _Bench:
    """One network's checks.

    Attributes:
        task: The network.
        measured: Likewise.
        rounds: Timed steps of each kind.
        expected: What plain training leaves behind with deterministic kernels.
        backends: Of attention, with which it repeats itself.
        peers: Segment counts of checkpoint_sequential that no other beats.
    """

    task: Task
    measured: MeasuredChain
    rounds: int
    expected: Record | None
    backends: list[SDPBackend]
    peers: list[Way] = field(default_factory=list)

    def plain_row(self) -> Row:
        """Plain training: does it repeat itself, does it synchronise, and what does it need."""
        task, schedule = self.task, Schedule.keep_all(len(self.measured.profile))
        replay = simulate(self.measured.profile_for(schedule), schedule)
        peak = peak_bytes(task, task.model)
        elapsed = interleaved_times(task, {"plain": task.model}, self.rounds)["plain"].median
        return {
            "network": task.name,
            "budget": "plain training",
            "bits": "does not repeat itself" if self.expected is None else "repeats itself",
            "waits": waits_in(task, task.model),
            "peak": mebibytes(peak),
            "peak predicted": f"{replay.peak_bytes / peak - 1:+.1%}",
            "step": f"{elapsed / 1e6:.1f} ms",
            "step predicted": f"{replay.makespan / elapsed - 1:+.1%}",
            "of plain": "1.000",
            "verdict": "",
        }

    def planned_row(self, title: str, budget: int) -> Row:
        """A plan for `budget`, or for the least feasible one if that is more."""
        try:
            solution = solve_measured(self.measured, budget, METHOD)
        except InfeasibleBudgetError as error:
            solution = solve_measured(self.measured, error.required, METHOD)
            title = f"{title}: infeasible, least"
        planned = self.measured.planned(solution)
        differing = self._differing(planned)
        waits = waits_in(self.task, planned)
        peak = peak_bytes(self.task, planned)
        wrong = {
            "bits": bool(differing),
            "waits": waits not in ("none", "not on the CPU"),
            "peak": peak > solution.budget,
        }
        return {
            "network": self.task.name,
            "budget": f"{title}: {mebibytes(solution.budget)}",
            "bits": "unknown" if differing is None else f"{differing} differ",
            "waits": waits,
            "peak": mebibytes(peak),
            "peak predicted": f"{solution.peak_bytes / peak - 1:+.1%}",
            **self._times(planned, solution, peak),
            "verdict": "FAILED: " + ", ".join(k for k, v in wrong.items() if v)
            if any(wrong.values())
            else "ok",
        }

    def _differing(self, planned: Forward) -> int | None:
        if self.expected is None:
            return None
        with deterministic(self.backends):
            record = record_of(self.task, planned)
        pairs = zip(record, self.expected, strict=True)
        return sum(not torch.equal(mine, theirs) for mine, theirs in pairs)

    def _times(self, planned: Forward, solution: Solution, peak: int) -> Row:
        forwards: dict[str, Forward] = {"plain": self.task.model, "ours": planned}
        # Both get the same memory: what the plan was given.
        fitting = [rival for rival in self.peers if rival.peak_bytes <= max(peak, solution.budget)]
        if fitting:
            forwards["its"] = fitting[-1].forward
        times = interleaved_times(self.task, forwards, self.rounds)
        ours = times["ours"].median
        row = {
            "step": f"{ours / 1e6:.1f} ms",
            "step predicted": f"{solution.makespan / ours - 1:+.1%}",
            "of plain": f"{ours / times['plain'].median:.3f}",
        }
        if fitting:
            peer = fitting[-1]
            row["its segments and peak"] = f"{peer.segments}, {mebibytes(peer.peak_bytes)}"
            row["of its step"] = f"{ours / times['its'].median:.3f}"
        return row


def repeatable_record(task: Task) -> tuple[Record | None, list[SDPBackend]]:
    """What plain training leaves behind, if it is the same twice, and attention's backends."""
    fast = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    for backends in (fast, [SDPBackend.MATH]):
        try:
            with deterministic(backends):
                once, again = record_of(task, task.model), record_of(task, task.model)
        except RuntimeError as error:
            if "deterministic" not in str(error):
                raise
            print(f"{task.name}: {error}", flush=True)
            continue
        if all(map(torch.equal, once, again)):
            return once, backends
    return None, fast


@contextmanager
def deterministic(backends: list[SDPBackend]) -> Iterator[None]:
    """Inside, kernels give the same bits each time."""
    torch.use_deterministic_algorithms(mode=True)
    try:
        with sdpa_kernel(backends):
            yield
    finally:
        torch.use_deterministic_algorithms(mode=False)


def record_of(task: Task, forward: Forward) -> Record:
    """Three steps of SGD from a fixed seed, and what they leave; the parameters are put back."""
    for module in task.model.modules():  # steps before this one have counted, too
        if isinstance(module, _BatchNorm):
            module.reset_running_stats()
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


def waits_in(task: Task, forward: Forward) -> str:
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
