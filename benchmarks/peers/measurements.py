"""The same measurements for every way to train: peak, what is saved, time, correctness."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

import torch

from benchmarks.peers.results import Contestant, Forward, Run
from benchmarks.trainings import Training
from chainstay.runtime import trace_memory

__all__ = ["Course", "Likeness", "Memory", "run_of"]

ROUNDING: Final = 1e-5
"""Losses that differ by less, as a share, are the same but for the order of sums."""


@dataclass(frozen=True)
class Memory:
    """Of a step, in bytes: at its peak, and held between forward and backward."""

    peak: int
    saved: int


@dataclass(frozen=True, kw_only=True)
class Likeness:
    """Of a step to that of plain training; the attributes are those of `Run`."""

    is_equal: bool
    is_loss_equal: bool
    difference: float


@dataclass(frozen=True)
class _State:
    """What a step leaves behind: the loss; the gradients; the buffers."""

    groups: tuple[tuple[torch.Tensor, ...], ...]
    random: torch.Tensor


class Course:
    """A model that every way trains in turn; each finds it as the first one did."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._buffers = [buffer.clone() for buffer in training.model.buffers()]
        self._plain = self._state_after(training.model)

    def likeness(self, forward: Forward) -> Likeness:
        """Of a step to plain training's."""
        mine, theirs = self._state_after(forward), self._plain
        pairs = [
            pair
            for group in zip(mine.groups, theirs.groups, strict=True)
            for pair in zip(*group, strict=True)
        ]
        return Likeness(
            is_equal=all(torch.equal(*pair) for pair in pairs)
            and torch.equal(mine.random, theirs.random),
            is_loss_equal=torch.allclose(*pairs[0], rtol=ROUNDING, atol=0.0),
            difference=max(map(_difference, mine.groups, theirs.groups)),
        )

    def memory(self, forward: Forward) -> Memory:
        """By the allocator's own account, the sample included in the peak."""
        given, sizes = self._training.given_bytes, []

        def ahead() -> Any:
            output = forward(*self._training.args, **self._training.kwargs)
            sizes.append(sum(tensor.untyped_storage().nbytes() for tensor in _tensors_of(output)))
            return output

        self._step(forward)  # what a first step leaves in place is no step's
        peak = trace_memory(lambda: self._step(forward), "cpu").peak_bytes + given
        saved = trace_memory(ahead, "cpu").end_bytes - sizes[0]
        return Memory(peak, saved)

    def times(self, forwards: Sequence[Forward], rounds: int) -> list[list[int]]:
        """Of steps taken in turns, in ns of this thread: what else runs meets all alike."""
        found: list[list[int]] = [[] for _ in forwards]
        for turn in range(rounds + 1):
            for forward, runs in zip(forwards, found, strict=True):
                begin = time.thread_time_ns()
                self._step(forward)
                if turn:  # the first one warms up
                    runs.append(time.thread_time_ns() - begin)
        return found

    def _step(self, forward: Forward) -> torch.Tensor:
        output = forward(*self._training.args, **self._training.kwargs)
        loss = self._training.loss(output)
        loss.backward()  # the output lives on meanwhile, as in most people's loops
        return loss

    def _state_after(self, forward: Forward) -> _State:
        model = self._training.model
        with torch.no_grad():
            for buffer, first in zip(model.buffers(), self._buffers, strict=True):
                buffer.copy_(first)
        gradients = _gradients(model.parameters())
        for gradient in gradients:
            gradient.zero_()
        torch.manual_seed(1)
        loss = self._step(forward)
        kept = ((loss.detach(),), gradients, model.buffers())
        groups = (tuple(tensor.clone() for tensor in group) for group in kept)
        return _State(tuple(groups), torch.get_rng_state())


def run_of(contestant: Contestant, memory: Memory, runs: list[int], course: Course) -> Run:
    """Everything about one way."""
    return Run(
        peer=contestant.peer,
        setting=contestant.setting,
        peak_bytes=memory.peak,
        saved_bytes=memory.saved,
        least_time=min(runs),
        median_time=median(runs),
        budget=contestant.budget,
        **asdict(course.likeness(contestant.forward)),
    )


def _difference(mine: tuple[torch.Tensor, ...], theirs: tuple[torch.Tensor, ...]) -> float:
    """The largest, by the largest number there is: single gradients may be nothing but noise."""
    largest = max((float(tensor.abs().max()) for tensor in theirs), default=0.0)
    pairs = zip(mine, theirs, strict=True)
    apart = max((float((one - other).abs().max()) for one, other in pairs), default=0.0)
    return apart / largest if apart else 0.0


def _gradients(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _tensors_of(output: Any) -> list[torch.Tensor]:
    if isinstance(output, torch.Tensor):
        return [output]
    parts = output.values() if isinstance(output, Mapping) else output
    return [part for part in parts if isinstance(part, torch.Tensor)]
