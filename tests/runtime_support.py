"""Schedules and training steps for tests of the runtime."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn

from chainstay.schedule import Op, OpKind, Schedule

__all__ = [
    "StepRecord",
    "drop_everything",
    "random_persistent",
    "segments",
    "some_schedules",
    "train",
]

# Two threads on a shared machine wait for each other longer than they work.
torch.set_num_threads(1)

Loss = Callable[[torch.Tensor], torch.Tensor]


def segments(stages: int, count: int) -> Schedule:
    """Checkpoints at the ends of `count` equal segments; the last segment is kept."""
    ends = [round(position * stages / count) for position in range(count + 1)]
    ops: list[Op] = []
    for start, end in pairwise(ends[:-1]):
        ops += _skip(start, end)
    for start, end in reversed(list(pairwise(ends))):
        ops += [Op(OpKind.FORWARD_KEEP_ALL, stage) for stage in range(start, end)]
        ops += [Op(OpKind.BACKWARD, stage) for stage in reversed(range(start, end))]
    return Schedule(tuple(ops))


def drop_everything(stages: int) -> Schedule:
    """Only the input is stored: every stage starts again from there."""
    ops: list[Op] = []
    for stage in reversed(range(stages)):
        ops += _skip(0, stage) if stage else []
        ops += [Op(OpKind.FORWARD_KEEP_ALL, stage), Op(OpKind.BACKWARD, stage)]
    return Schedule(tuple(ops))


def random_persistent(stages: int, seed: int, keep: float = 0.4) -> Schedule:
    """A nested schedule: each sub-chain is kept from its start or cut at a random place."""
    generator = random.Random(seed)

    def solve(start: int, end: int) -> Iterator[Op]:
        if end - start == 1 or generator.random() < keep:
            yield Op(OpKind.FORWARD_KEEP_ALL, start)
            if end - start > 1:
                yield from solve(start + 1, end)
            yield Op(OpKind.BACKWARD, start)
            return
        cut = generator.randint(start + 1, end - 1)
        yield from _skip(start, cut)
        yield from solve(cut, end)
        yield from solve(start, cut)

    return Schedule(tuple(solve(0, stages)))


def some_schedules(stages: int) -> dict[str, Schedule]:
    """Six schedules, from all memory to least memory."""
    return {
        "keep all": Schedule.keep_all(stages),
        "2 segments": segments(stages, 2),
        "5 segments": segments(stages, 5),
        "random 0": random_persistent(stages, 0),
        "random 1": random_persistent(stages, 1, keep=0.2),
        "drop everything": drop_everything(stages),
    }


def _skip(start: int, end: int) -> list[Op]:
    """From activation `start` to activation `end`, both stored afterwards, nothing between."""
    return [
        Op(OpKind.FORWARD_DROP if stage > start else OpKind.FORWARD_KEEP_INPUT, stage)
        for stage in range(start, end)
    ]


@dataclass(frozen=True)
class StepRecord:
    """All that a training run may change, for comparison bit for bit."""

    tensors: dict[str, torch.Tensor]

    def differences(self, other: StepRecord) -> list[str]:
        """Names of what is not equal in both."""
        return [
            name
            for name in self.tensors.keys() | other.tensors.keys()
            if name not in self.tensors
            or name not in other.tensors
            or not torch.equal(self.tensors[name], other.tensors[name])
        ]


def train(model: nn.Module, batch: torch.Tensor, loss: Loss, steps: int = 3) -> StepRecord:
    """A few steps of plain SGD from a fixed seed, and everything they leave behind."""
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tensors: dict[str, torch.Tensor] = {}
    for step in range(steps):
        optimizer.zero_grad()
        value = loss(model(batch))
        value.backward()
        optimizer.step()
        tensors[f"loss {step}"] = value.detach()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        tensors[f"gradient {name}"] = parameter.grad.clone()
        tensors[f"parameter {name}"] = parameter.detach().clone()
    tensors |= {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
    tensors["random state"] = torch.get_rng_state()
    return StepRecord(tensors)
