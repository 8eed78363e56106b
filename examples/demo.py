"""Train two real networks within half the memory that plain training needs, with proof.

`chainstay.fit` plans a ResNet-50 and a 12-block GPT-2 for 50 % of the memory of plain training. A
step by each plan is shown beside one of plain PyTorch and one of `checkpoint_sequential`.

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

import chainstay
from chainstay import Replay
from chainstay.runtime import MemoryTrace, trace_memory
from chainstay.units import format_time
from comparison_table import ComparisonRow, comparison
from memory_plot import MemoryPanel, plot_memory
from models import gpt2, resnet50

Forward = Callable[[torch.Tensor], torch.Tensor]
SEED = 20
TIMED_NS = 2 * 10**9
SEGMENTS = range(2, 9)
"""The numbers of segments that `checkpoint_sequential` is tried with."""


@dataclass(frozen=True)
class Task:
    """A network and something to train it on."""

    key: str
    name: str
    model: nn.Sequential
    sample: torch.Tensor
    loss: Callable[[torch.Tensor], torch.Tensor]

    def step(self, forward: Forward | None = None) -> torch.Tensor:
        """Run a training step, by default as the model is now; return its loss."""
        output = (forward or self.model)(self.sample)  # held until the end, as in most loops
        loss = self.loss(output)
        loss.backward()
        return loss


def main() -> None:
    """Run the demonstration."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--budget", default="50%", help="bytes, '8GiB', or a share such as '50%%'")
    parser.add_argument(
        "--output", type=Path, default=Path("demo"), help="folder for plans, picture"
    )
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    # A thread that waits for a core which others use would spoil the timing.
    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))
    console = Console()
    console.print(
        f"chainstay on {_machine(device)}; budget: {arguments.budget} of plain training\n"
    )
    output: Path = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    panels = [demonstrate(task, arguments.budget, output, console) for task in tasks(device)]
    picture = output / "memory.png"
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
            "resnet50",
            f"ResNet-50, {batch} images of {side} x {side}",
            resnet50().to(device),
            images,
            partial(_cross_entropy, classes),
        ),
        Task(
            "gpt2",
            f"GPT-2 (12 blocks, width 768), {sequences} x {length} tokens",
            gpt2().to(device),
            tokens[:, :-1].contiguous(),
            partial(_cross_entropy, tokens[:, 1:].flatten()),
        ),
    ]


def demonstrate(task: Task, budget: str, output: Path, console: Console) -> MemoryPanel:
    """Plan, run and compare one network; returns its panel of the picture."""
    model = task.model
    for parameter in model.parameters():  # the caller's: no budget covers them
        parameter.grad = torch.zeros_like(parameter)
    initial = copy.deepcopy(model.state_dict())
    with console.status(f"training {task.name} as it is …"):
        expected = _after_a_step(task, initial)
        plain_trace, plain_time = _trace(task), _time(task)
    start = time.perf_counter_ns()
    chainstay.fit(model, (task.sample,), budget=budget, loss=task.loss, offload=False)
    fitting_time = time.perf_counter_ns() - start
    with console.status("training by the plan …"):
        is_equal = all(map(torch.equal, expected, _after_a_step(task, initial)))
        trace, planned_time = _trace(task), _time(task)
    path = output / f"{task.key}.json"
    chainstay.save_plan(model, path)
    plan = chainstay.load_plan(path)
    solution = plan.solution
    chainstay.unfit(model)
    with console.status("training by torch's checkpoint_sequential …"):
        segments, checkpoint_trace = _best_checkpoints(task, solution.budget)
        checkpoint_time = _time(task, partial(_checkpointed, model, segments))
    rows = [
        ComparisonRow(
            name="plain PyTorch",
            predicted_peak=plan.plain_peak,
            measured_peak=_peak(task, plain_trace),
            predicted_time=plan.plain_time,
            measured_time=plain_time,
        ),
        ComparisonRow(
            name=f"torch checkpoint ({segments})",
            measured_peak=_peak(task, checkpoint_trace),
            measured_time=checkpoint_time,
        ),
        ComparisonRow(
            name="chainstay",
            predicted_peak=solution.peak_bytes,
            measured_peak=_peak(task, trace),
            predicted_time=int(solution.makespan),
            measured_time=planned_time,
            is_optimal=solution.is_optimal,
        ),
    ]
    console.print(comparison(task.name, solution.budget, plain_time, rows))
    console.print(
        f"chainstay's plan: {solution.describe()}. `fit` took {format_time(fitting_time)}. "
        "Loss, gradients, buffers and random state equal to plain PyTorch: "
        f"{'bit for bit' if is_equal else '[red]NO[/]'}. The plan: [bold]{path}[/]\n"
    )
    replay = plan.replay()
    assert isinstance(replay, Replay), "nothing is moved to the host"
    return MemoryPanel(
        title=f"{task.name}\n{solution.describe()}",
        planned=replay,
        plain_peak_bytes=_peak(task, plain_trace),
        budget=solution.budget,
        measured_times=trace.times,
        measured_bytes=[size + task.sample.nbytes for size in trace.bytes],
    )


def _best_checkpoints(task: Task, budget: int) -> tuple[int, MemoryTrace]:
    """The fewest segments within the budget, which rerun least, or those of the least peak."""
    traces = {}
    for segments in SEGMENTS:
        traces[segments] = _trace(task, partial(_checkpointed, task.model, segments))
        if _peak(task, traces[segments]) <= budget:
            return segments, traces[segments]
    return min(traces.items(), key=lambda found: found[1].peak_bytes)


def _peak(task: Task, trace: MemoryTrace) -> int:
    """The most memory of a step, its input included."""
    return trace.peak_bytes + task.sample.nbytes


def _trace(task: Task, forward: Forward | None = None) -> MemoryTrace:
    """Memory of a training step."""
    task.step(forward)  # the first one makes what lasts
    return trace_memory(partial(task.step, forward), task.sample.device)


def _time(task: Task, forward: Forward | None = None) -> int:
    """The least time of a few training steps, in ns.

    One thread that computes alone is timed by its own clock: others on its core do not count.
    """
    is_alone = not task.sample.is_cuda and torch.get_num_threads() == 1
    clock = time.thread_time_ns if is_alone else time.perf_counter_ns
    times: list[int] = []
    while len(times) < 2 or sum(times) < TIMED_NS:
        start = clock()
        task.step(forward)
        if task.sample.is_cuda:
            torch.cuda.synchronize()
        times.append(clock() - start)
    return min(times)


def _checkpointed(model: nn.Sequential, segments: int, sample: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = checkpoint.checkpoint_sequential(
        model, segments, sample, use_reentrant=False
    )
    return output


def _after_a_step(task: Task, initial: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    """Copies of what a step from the initial weights and buffers leaves behind."""
    task.model.load_state_dict(initial)
    task.model.zero_grad(set_to_none=False)
    torch.manual_seed(SEED)
    loss = task.step()
    gradients = [parameter.grad for parameter in task.model.parameters()]
    present = [gradient for gradient in gradients if gradient is not None]
    values = [loss.detach(), *present, *task.model.buffers(), torch.get_rng_state()]
    return [value.clone() for value in values]


def _cross_entropy(targets: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(output.flatten(0, -2), targets)


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"the CPU, threads: {torch.get_num_threads()}"


if __name__ == "__main__":
    main()
