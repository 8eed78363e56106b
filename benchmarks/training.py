"""Training steps to be timed and traced: what the benchmarks of the runtime share."""

from __future__ import annotations

import copy
import ctypes
import math
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from statistics import median
from typing import Final

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential

from chainstay.runtime import trace_memory
from chainstay.runtime.devices.device import device_at
from chainstay.runtime.devices.stopwatch import run_timed

__all__ = [
    "Forward",
    "Task",
    "Times",
    "Way",
    "cells",
    "checkpointed_ways",
    "heading",
    "interleaved_times",
    "keep_memory",
    "machine",
    "mebibytes",
    "peak_bytes",
    "smallest_and_fastest",
    "step_of",
    "twin",
]

Forward = Callable[[torch.Tensor], torch.Tensor]

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_MAX: Final = -4
"""Of glibc's mallopt."""


@dataclass(frozen=True)
class Task:
    """A chain of stages and something to train it on.

    Attributes:
        name: Of the network.
        model: In training mode.
        sample: Its input.
        loss: From the output to a number.
    """

    name: str
    model: nn.Sequential
    sample: torch.Tensor
    loss: Callable[[torch.Tensor], torch.Tensor]

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        return self.sample.device

    def prepare(self) -> None:
        """Give every parameter a gradient: they are the caller's, and no budget covers them."""
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)


@dataclass(frozen=True)
class Times:
    """Of a step, in ns."""

    runs: tuple[int, ...]

    @property
    def least(self) -> int:
        """What the step takes when nothing disturbs it."""
        return min(self.runs)

    @property
    def median(self) -> float:
        """What it takes usually."""
        return median(self.runs)

    def ratio_to(self, other: Times) -> float:
        """To another's steps of the same rounds, usually."""
        return median(a / b for a, b in zip(self.runs, other.runs, strict=True))


@dataclass(frozen=True)
class Way:
    """A forward, and what its step needs.

    Attributes:
        segments: Into which torch cuts the chain.
        forward: From the sample to the output.
        peak_bytes: Measured.
        times: Likewise.
    """

    segments: int
    forward: Forward
    peak_bytes: int
    times: Times


def twin(model: nn.Module) -> nn.Module:
    """Another module with the very same parameters and buffers."""
    tensors = (*model.parameters(), *model.buffers())
    return copy.deepcopy(model, memo={id(tensor): tensor for tensor in tensors})


def step_of(task: Task, forward: Forward) -> Callable[[], None]:
    """The usual step; gradients add up."""

    def step() -> None:
        output = forward(task.sample)
        task.loss(output).backward()

    return step


def peak_bytes(task: Task, forward: Forward) -> int:
    """Peak of a step as budgets count it: the sample included, by the allocator's own account."""
    step = step_of(task, forward)
    step()  # workspaces that stay, those of cuBLAS above all, are no step's
    return trace_memory(step, task.device).peak_bytes + task.sample.nbytes


def keep_memory() -> None:
    """The process gives no memory back to the system, as the allocator of a GPU.

    Otherwise pages come and go in some steps and not in others, by what lay on the heap when it
    was last extended: steps of ResNet-50 differ by 15 %, whoever runs them.
    """
    if sys.platform == "linux":
        library = ctypes.CDLL(None)
        library.mallopt(_M_TRIM_THRESHOLD, -1)
        library.mallopt(_M_MMAP_MAX, 0)


def interleaved_times(
    task: Task,
    forwards: Mapping[str, Forward],
    rounds: int,
    *,
    warm_up: int = 0,
    seconds: float = math.inf,
) -> dict[str, Times]:
    """Times of steps run in turns, so that other work on the machine meets all alike.

    Args:
        task: What to train.
        forwards: By their names.
        rounds: Timed steps of each.
        warm_up: Steps in front of each timed one: for steps so short that what others leave in
            the processor's caches counts.
        seconds: After which no round begins, once there are five.
    """
    steps = {name: step_of(task, forward) for name, forward in forwards.items()}
    device = device_at(task.device)
    runs: dict[str, list[int]] = {name: [] for name in steps}
    begin = time.monotonic()
    for turn in range(rounds + 1):
        if turn > 5 and time.monotonic() - begin > seconds:
            break
        for name, step in steps.items():
            for _ in range(warm_up):
                step()
            _, elapsed = run_timed(step, device)
            if turn > 0:  # the first one warms up
                runs[name].append(elapsed)
    return {name: Times(tuple(elapsed)) for name, elapsed in runs.items()}


def checkpointed_ways(task: Task, rounds: int) -> list[Way]:
    """``torch.utils.checkpoint.checkpoint_sequential`` at every segment count worth a try."""
    stages = len(task.model)
    sizes = range(1, stages // 2 + 1)  # it cuts off segments of stages // count each
    counts = sorted({stages // size for size in sizes} - {1})
    forwards = {str(count): partial(_checkpointed, task.model, count) for count in counts}
    peaks = {name: peak_bytes(task, forward) for name, forward in forwards.items()}
    times = interleaved_times(task, forwards, rounds)
    return [Way(int(name), forwards[name], peaks[name], times[name]) for name in forwards]


def smallest_and_fastest(ways: list[Way]) -> list[Way]:
    """Those that no other beats in memory and time at once, from least memory to most."""
    kept: list[Way] = []
    for way in sorted(ways, key=lambda candidate: (candidate.peak_bytes, candidate.times.least)):
        if not kept or way.times.least < kept[-1].times.least:
            kept.append(way)
    return kept


def _checkpointed(model: nn.Sequential, segments: int, sample: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = checkpoint_sequential(model, segments, sample, use_reentrant=False)
    return output


def machine(device: torch.device) -> str:
    """Name of the machine, versions and date."""
    name = f"{_processor()}, {torch.get_num_threads()} thread"
    if device.type != "cpu":
        name = device_at(device).name()
    today = datetime.now(tz=UTC).date().isoformat()
    return f"{name}, torch {torch.__version__}, Python {platform.python_version()}, {today}"


def _processor() -> str:
    """As the kernel calls it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:  # noqa: PTH123  # no real file
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def heading(*columns: str) -> Iterator[str]:
    """The first two lines of a table."""
    yield cells(*columns)
    yield cells("---", *["---:"] * (len(columns) - 1))


def cells(*columns: str) -> str:
    """A line of a table."""
    return f"| {' | '.join(columns)} |"


def mebibytes(size: int) -> str:
    """For people."""
    return f"{size / 2**20:,.2f} MiB"
