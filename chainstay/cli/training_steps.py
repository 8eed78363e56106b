"""Measured training steps: their time, their memory, and their results."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import nn

from chainstay.cli.models.workload import SEED, Workload
from chainstay.runtime.capture.trials.isolation import values_kept, zeroed_gradients
from chainstay.runtime.devices.device import accelerator_at, device_at
from chainstay.runtime.devices.memory import trace_memory
from chainstay.runtime.execute.environment import random_states
from chainstay.runtime.stage.states import is_equal, tensors_in

_RATE: Final = 1e-3
_SPARE: Final = 0.8
"""Share of free memory that a step without a plan may take."""


@dataclass(frozen=True, slots=True)
class TrainingRecord:
    """The results of a few steps, to be compared to the last bit.

    Attributes:
        losses: One loss per step.
        tensors: Gradients of the last step, parameters and buffers, random state, by name.
    """

    losses: tuple[torch.Tensor, ...]
    tensors: dict[str, torch.Tensor]

    @classmethod
    def from_steps(
        cls, workload: Workload, steps: int, after: Callable[[], None]
    ) -> TrainingRecord:
        """Train `steps` steps from the present state, by plain gradient descent.

        The model is put back to that state afterwards.
        """
        model = workload.model
        with _put_back(model):
            torch.manual_seed(SEED)
            optimizer = torch.optim.SGD(model.parameters(), lr=_RATE)
            losses = []
            for _ in range(steps):
                optimizer.zero_grad()
                loss = workload.step()
                loss.backward()
                losses.append(loss.detach().clone())
                optimizer.step()
                after()
            return cls(tuple(losses), dict(_state(model, workload.target.device)))

    def differences(self, other: TrainingRecord) -> Iterator[str]:
        """Yield the names of all that is not the same to the last bit."""
        for step, (mine, theirs) in enumerate(zip(self.losses, other.losses, strict=True), start=1):
            if not is_equal(mine, theirs):
                yield f"loss of step {step}"
        for name, tensor in self.tensors.items():
            found = other.tensors.get(name)
            if found is None or not is_equal(tensor, found):
                yield name
        yield from (name for name in other.tensors if name not in self.tensors)


def measure_peak(workload: Workload) -> int:
    """Return the peak of a step in bytes: inputs included, parameters and gradients not."""

    def step() -> None:
        output = workload.model(*workload.args, **workload.kwargs)  # held, as in training loops
        workload.loss_of(output).backward()

    with _put_back(workload.model):
        step()
        trace = trace_memory(step, workload.target.device)
    return trace.peak_bytes + _input_bytes(workload)


def _input_bytes(workload: Workload) -> int:
    """Return the bytes of all tensors that the model is called with."""
    given = tensors_in((workload.args, dict(workload.kwargs)))
    tensors = {id(tensor): tensor for tensor in given}
    device = workload.target.device
    return sum(tensor.nbytes for tensor in tensors.values() if tensor.device == device)


def measure_step_times(
    workload: Workload, repeats: int, after: Callable[[], None]
) -> Sequence[int]:
    """Return the times of steps in ns, after one that warms up."""
    device = device_at(workload.target.device)
    times = []
    with _put_back(workload.model):
        for index in range(repeats + 1):
            start = time.perf_counter_ns()
            workload.step().backward()
            device.synchronize()
            if index:
                times.append(time.perf_counter_ns() - start)
            after()
    return times


def fits_here(size: int, device: torch.device) -> bool:
    """Return whether a step of so many bytes fits into the memory that is free."""
    accelerator = accelerator_at(device)
    if accelerator is not None:
        return size < _SPARE * accelerator.free_bytes()
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return True  # this system does not tell
    free = next((line for line in lines if line.startswith("MemAvailable:")), "")
    return not free or size < _SPARE * int(free.split()[1]) * 1024


@contextmanager
def _put_back(model: nn.Module) -> Iterator[None]:
    """Give parameters zero gradients, which no budget covers; restore the state afterwards."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    with values_kept((*model.parameters(), *model.buffers())), zeroed_gradients(trained):
        yield


def _state(model: nn.Module, device: torch.device) -> Iterator[tuple[str, torch.Tensor]]:
    for name, parameter in model.named_parameters():
        yield f"parameter {name}", parameter.detach().clone()
        if parameter.grad is not None:
            yield f"gradient of {name}", parameter.grad.clone()
    for name, buffer in model.named_buffers():
        yield f"buffer {name}", buffer.detach().clone()
    for where, state in random_states(device):
        yield f"random state of {where}", state
