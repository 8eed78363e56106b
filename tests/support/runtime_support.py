"""Schedules and training steps for tests of the runtime."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from chainstay.runtime.stage.chain_stage import NO_EFFECTS, ChainStage, Effects
from chainstay.runtime.stage.states import State
from chainstay.schedule import Op, OpKind, Schedule

__all__ = [
    "FunctionPart",
    "StepRecord",
    "drop_everything",
    "random_free",
    "random_persistent",
    "segments",
    "some_schedules",
    "stages_of",
    "train",
    "without_inputs",
]

# Two threads on a shared machine wait for each other longer than they work.
torch.set_num_threads(1)

Loss = Callable[[torch.Tensor], torch.Tensor]

_Fn, _Fc, _Fa, _B = (
    OpKind.FORWARD_DROP,
    OpKind.FORWARD_KEEP_INPUT,
    OpKind.FORWARD_KEEP_ALL,
    OpKind.BACKWARD,
)
_Da, _Db = OpKind.DISCARD_ACTIVATION, OpKind.DISCARD_SAVED


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


def without_inputs(stages: int) -> Schedule:
    """Every second stage is recorded and its input dropped; the stage before makes it anew."""
    loss = stages - 1
    ops: list[Op] = []
    for stage in range(loss):
        ops += [Op(_Fa, stage), Op(_Da, stage)] if stage % 2 else [Op(_Fc, stage)]
    ops += [Op(_Fa, loss), Op(_B, loss)]
    for stage in reversed(range(0, loss, 2)):
        ops += [Op(_Fa, stage)]
        ops += [Op(_B, stage + 1)] if stage + 1 < loss else []
        ops += [Op(_B, stage)]
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


def random_free(
    stages: int, seed: int, *, stray: float = 0.5, interrupts_loss: bool = False
) -> Schedule:
    """A walk through valid operations under free discards that finds its way in the end.

    Args:
        stages: The loss included.
        seed: Of the walk.
        stray: How often any valid operation is taken, instead of one that helps.
        interrupts_loss: The loss may run several times, and others between it and its backward.
    """
    generator, walk = random.Random(seed), _Walk(stages)
    loss = stages - 1
    while walk.gradient > 0:
        ops = [op for op in walk.possible() if interrupts_loss or op.stage != loss]
        walk.take(generator.choice(ops) if ops and generator.random() < stray else walk.helpful())
        if not interrupts_loss and walk.ops[-1] == Op(OpKind.FORWARD_KEEP_ALL, loss):
            walk.take(Op(OpKind.BACKWARD, loss))
    return Schedule(tuple(walk.ops))


class _Walk:
    """What is stored on the way; rules are those of free discards."""

    def __init__(self, stages: int) -> None:
        self.stages = self.gradient = stages
        self.activations, self.saved = {0}, set[int]()
        self.ops: list[Op] = []

    def possible(self) -> list[Op]:
        """All valid operations but those that lose the network's input."""
        inputs = [stage for stage in range(self.gradient) if self._has_input(stage)]
        found = [Op(kind, stage) for stage in inputs for kind in (_Fa, _Fc)]
        inner = self.activations - {0, self.stages}
        found += [Op(_Fn, stage) for stage in sorted(inner) if stage < self.gradient]
        found += [Op(_Da, stage) for stage in sorted(inner)]
        found += [Op(_Db, stage) for stage in sorted(self.saved)]
        last = self.gradient - 1
        return [*found, Op(_B, last)] if last in self.saved and last in inputs else found

    def helpful(self) -> Op:
        """The next backward, or a forward on the shortest way there."""
        last = self.gradient - 1
        if self._has_input(last):
            return Op(_B if last in self.saved else _Fa, last)
        start = max(stage for stage in range(last) if self._has_input(stage))
        return Op(_Fn if start % 2 and start in self.activations else _Fc, start)

    def take(self, op: Op) -> None:
        """Apply a valid operation."""
        self.ops.append(op)
        if op.kind in (_Fn, _Fc):
            self.activations.add(op.stage + 1)
        if op.kind is _Fa:
            self.saved.add(op.stage)
        if op.kind in (_Fn, _Da, _B):
            self.activations.discard(op.stage)
        if op.kind in (_Db, _B):
            self.saved.discard(op.stage)
        if op.kind is _B:
            self.gradient = op.stage

    def _has_input(self, stage: int) -> bool:
        return stage in self.activations or stage - 1 in self.saved


def some_schedules(stages: int) -> dict[str, Schedule]:
    """Seven schedules; the first six go from all memory to least memory."""
    return {
        "keep all": Schedule.keep_all(stages),
        "2 segments": segments(stages, 2),
        "5 segments": segments(stages, 5),
        "random 0": random_persistent(stages, 0),
        "random 1": random_persistent(stages, 1, keep=0.2),
        "drop everything": drop_everything(stages),
        "inputs gone": without_inputs(stages),
    }


def _skip(start: int, end: int) -> list[Op]:
    """From activation `start` to activation `end`, both stored afterwards, nothing between."""
    return [
        Op(OpKind.FORWARD_DROP if stage > start else OpKind.FORWARD_KEEP_INPUT, stage)
        for stage in range(start, end)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class FunctionPart:
    """A function from tensor to tensor; a `chain_stage.Part`."""

    function: Callable[[torch.Tensor], torch.Tensor]
    text: str = ""
    effects: Effects = NO_EFFECTS

    def __call__(self, state: State, shared: Sequence[Any]) -> State:  # noqa: ARG002  # as `Part`
        """As `Part`."""
        (activation,) = state
        return (self.function(activation),)


def stages_of(*functions: Callable[[torch.Tensor], torch.Tensor]) -> list[ChainStage]:
    """A stage for each function, named by its number."""
    return [ChainStage(str(n), (FunctionPart(function),)) for n, function in enumerate(functions)]


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
