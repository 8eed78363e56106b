"""Train two real networks within half the memory that plain training needs, with proof.

Profiles a ResNet-50 and a 12-block GPT-2, finds the optimal schedule for 50 % of the memory of
plain training, runs a training step by it, and shows prediction and measurement side by side.

    python examples/demo.py [--budget 50%] [--output demo]
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from torch import nn
from torch.nn import functional
from torch.utils import checkpoint

from chainstay import Replay, Schedule, measure, simulate, solve_measured
from chainstay.baselines import checkpoint_sequential
from chainstay.runtime import MeasuredChain, MemoryTrace, trace_memory
from comparison_table import ComparisonRow, comparison
from memory_plot import MemoryPanel, plot_memory
from models import gpt2, resnet50

Forward = Callable[[torch.Tensor], torch.Tensor]
SEED = 20
TIMED_NS = 2 * 10**9


@dataclass(frozen=True)
class Task:
    """A network and something to train it on."""

    name: str
    model: nn.Sequential
    sample: torch.Tensor
    loss: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Way:
    """A way to run a training step."""

    name: str
    forward: Forward
    schedule: Schedule
    is_optimal: bool | None = None


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--budget", default="50%", help="bytes, '8GiB', or a share such as '50%%'")
    parser.add_argument("--output", type=Path, default=Path("demo"), help="folder for the picture")
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # A thread that waits for a core which others use would spoil the timing.
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    console = Console()
    console.print(
        f"chainstay on {_machine(device)}; budget: {arguments.budget} of plain training\n"
    )
    panels = [demonstrate(task, arguments.budget, console) for task in tasks(device)]
    arguments.output.mkdir(parents=True, exist_ok=True)
    picture = arguments.output / "memory.png"
    plot_memory(panels, picture)
    console.print(f"memory over time, planned against measured: [bold]{picture}[/]")


def tasks(device: torch.device) -> list[Task]:
    """The two networks, with a batch that suits the device."""
    torch.manual_seed(SEED)
    on_gpu = device.type == "cuda"
    batch, side = (128, 224) if on_gpu else (16, 64)
    sequences, length = (16, 1024) if on_gpu else (1, 320)
    images = torch.randn(batch, 3, side, side, device=device)
    classes = torch.randint(1000, (batch,), device=device)
    tokens = torch.randint(50257, (sequences, length + 1), device=device)
    return [
        Task(
            f"ResNet-50, {batch} images of {side} x {side}",
            resnet50().to(device),
            images,
            partial(_cross_entropy, classes),
        ),
        Task(
            f"GPT-2 (12 blocks, width 768), {sequences} x {length} tokens",
            gpt2().to(device),
            tokens[:, :-1].contiguous(),
            partial(_cross_entropy, tokens[:, 1:].flatten()),
        ),
    ]


def demonstrate(task: Task, budget: str, console: Console) -> MemoryPanel:
    """Plan, run and compare one network; returns its panel of the picture."""
    with console.status(f"measuring {task.name} …"):
        measured = measure(task.model, task.sample, loss=task.loss, repeats=2)
    with console.status("solving …"):
        solution = solve_measured(measured, budget)
    stages = len(measured.profile)
    plain = Schedule.keep_all(stages)
    segments = best_segments(measured, solution.budget)
    planned = measured.planned(solution)
    ways = [
        Way("plain PyTorch", task.model, plain),
        Way(
            f"torch checkpoint ({segments})",
            partial(_checkpointed, task.model, segments),
            checkpoint_sequential(stages, segments),
        ),
        Way("chainstay", planned, solution.schedule, is_optimal=solution.is_optimal),
    ]
    with console.status("training …"):
        runs = [_run(task, way) for way in ways]
        agrees = _same_step(task, planned)
    outcomes = [
        _outcome(measured, way, trace.peak_bytes, elapsed)
        for way, (trace, elapsed) in zip(ways, runs, strict=True)
    ]
    console.print(comparison(task.name, solution.budget, outcomes))
    console.print(
        f"chainstay's plan: {solution.describe()}, found in {solution.solve_seconds:.2f} s for "
        f"{stages} stages. Loss, gradients, buffers and random state equal to plain "
        f"PyTorch: {'bit for bit' if agrees else '[red]NO[/]'}.\n"
    )
    trace, _ = runs[-1]
    return MemoryPanel(
        title=f"{task.name}\n{solution.describe()}",
        planned=_replay(measured, solution.schedule),
        plain_peak_bytes=_replay(measured, plain).peak_bytes,
        budget=solution.budget,
        measured_times=trace.times,
        measured_bytes=[size + measured.profile.input_bytes for size in trace.bytes],
    )


def _replay(measured: MeasuredChain, schedule: Schedule) -> Replay:
    """What the schedule does here, every operation with its own overhead and time."""
    profile, overheads = measured.costs_of(schedule)
    return simulate(profile, schedule, discards="free", overheads=overheads)


def best_segments(measured: MeasuredChain, budget: int) -> int:
    """The segment count that is fastest within the budget, or smallest if none fits."""
    stages = len(measured.profile)

    def badness(segments: int) -> tuple[int, int]:
        replay = _replay(measured, checkpoint_sequential(stages, segments))
        return max(0, replay.peak_bytes - budget), replay.makespan

    return min(range(1, stages), key=badness)


def _outcome(measured: MeasuredChain, way: Way, peak_bytes: int, elapsed: int) -> ComparisonRow:
    profile, replay = measured.profile, _replay(measured, way.schedule)
    forward_time = sum(stage.forward_time for stage in profile.stages)
    return ComparisonRow(
        name=way.name,
        predicted_peak=replay.peak_bytes,
        measured_peak=peak_bytes + profile.input_bytes,
        predicted_time=replay.makespan,
        measured_time=elapsed,
        recomputed=(replay.makespan - profile.least_time) / forward_time,
        is_optimal=way.is_optimal,
    )


def _run(task: Task, way: Way) -> tuple[MemoryTrace, int]:
    """Memory of a training step, and the least time of a few, in ns.

    One thread that computes alone is timed by its own clock: others on its core do not count.
    """
    is_alone = not task.sample.is_cuda and torch.get_num_threads() == 1
    clock = time.thread_time_ns if is_alone else time.perf_counter_ns

    def step() -> None:
        task.model.zero_grad(set_to_none=False)
        output = way.forward(task.sample)
        task.loss(output).backward()

    for parameter in task.model.parameters():  # the caller's: no budget covers them
        parameter.grad = torch.zeros_like(parameter)
    step()  # the first one traces
    trace = trace_memory(step, task.sample.device)
    times: list[int] = []
    while len(times) < 2 or sum(times) < TIMED_NS:
        start = clock()
        step()
        if task.sample.is_cuda:
            torch.cuda.synchronize()
        times.append(clock() - start)
    return trace, min(times)


def _checkpointed(model: nn.Sequential, segments: int, sample: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = checkpoint.checkpoint_sequential(
        model, segments, sample, use_reentrant=False
    )
    return output


def _same_step(task: Task, planned: nn.Module) -> bool:
    """Whether a planned step gives what a plain one gives, to the last bit."""
    before = copy.deepcopy(task.model.state_dict())
    results = []
    for forward in (task.model, planned):
        task.model.load_state_dict(before)
        task.model.zero_grad()
        torch.manual_seed(SEED)
        loss = task.loss(forward(task.sample))
        loss.backward()
        gradients = [parameter.grad for parameter in task.model.parameters()]
        present = [gradient for gradient in gradients if gradient is not None]
        values = [loss.detach(), *present, *task.model.buffers(), torch.get_rng_state()]
        results.append([value.clone() for value in values])
    mine, theirs = results
    return len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))


def _cross_entropy(targets: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, -2), targets)


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"the CPU, threads: {torch.get_num_threads()}"


if __name__ == "__main__":
    main()
