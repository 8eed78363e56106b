"""Blocks of a model train by a schedule, called by the model's own forward: also sharded ones.

`chainstay.fit` does not do this yet; the parts that it needs are tried together here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.environment import Traits
from chainstay.runtime.extraction import InterceptedChain, intercept
from chainstay.runtime.extraction.blocks import BlockStage
from chainstay.runtime.liveness import plan_execution
from chainstay.runtime.recompute import Run, Versioned
from chainstay.runtime.stages import ChainStage, Place
from chainstay.runtime.states import State
from chainstay.schedule import Schedule
from runtime_support import drop_everything, segments
from training_conditions import Record, Sample, Transformer, differences, fit_to, trained

__all__ = ["intercepted_trials"]

DEPTH = 5


@dataclass(frozen=True)
class Sharded:
    """A block whose parameters come and go: nobody can tell whether they were replaced."""

    block: BlockStage

    def __call__(self, state: State, shared: State) -> State:
        return self.block(state, shared)

    def modules(self) -> Iterator[nn.Module]:
        return self.block.modules()

    def places(self) -> Iterator[Place]:
        return iter(())


class ByBlocks(nn.Module):
    """A model whose blocks run by a schedule that starts each once before the loss."""

    def __init__(self, model: nn.Module, chain: InterceptedChain, schedule: Schedule) -> None:
        super().__init__()
        self.model, self.chain = model, chain
        self.plan = plan_execution(schedule, len(chain.stages))

    def forward(self, *args: object, **kwargs: object) -> object:
        runs: list[Run] = []

        def first_run(index: int, state: State, shared: State) -> State:
            if index == 0:
                runs.append(self._new_run(shared))
            return runs[-1]._first_run(self.plan.forward[index], state)

        with self.chain.driven(first_run):
            return self.model(*args, **kwargs)

    def _new_run(self, shared: State) -> Run:
        stages = [ChainStage(stage.name, (Sharded(stage),)) for stage in self.chain.stages]
        return Run(
            stages=tuple(stages),
            traits=(Traits(draws_random=True, changed_buffers=()),) * len(stages),
            plan=self.plan,
            device=torch.device("cpu"),
            shared=Versioned.of(shared),
            pending=len(stages) - 1,
        )


def sharded(*, reshards: bool) -> Transformer:
    """FSDP2 around every block and the model, always with the same weights."""
    torch.manual_seed(0)
    model = Transformer(DEPTH)
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=reshards)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshards)
    return model


def sample_of(rank: int) -> Sample:
    tokens = torch.arange(64).reshape(4, 16) * 7 % 24
    return Sample((tokens.roll(rank, 0),), {"bias": torch.zeros(16, 16)})


def by_blocks(rank: int, schedule: Schedule, *, reshards: bool) -> list[str]:
    """What differs after three steps."""
    sample = sample_of(rank)
    model = sharded(reshards=reshards)
    chain = intercept(model, sample.args, sample.kwargs)
    assert len(chain.stages) == DEPTH
    for module in model.modules():  # a forward without backward leaves them whole
        if isinstance(module, FSDPModule):
            module.reshard()
    found = _gathered(trained(ByBlocks(model, chain, schedule), sample))
    expected = _gathered(trained(sharded(reshards=reshards), sample))
    return differences({name.replace("model.", ""): each for name, each in found.items()}, expected)


def refused(rank: int) -> list[str]:
    """Extraction does not see what FSDP2 does; it says so."""
    try:
        fit_to(sharded(reshards=True), sample_of(rank), "60 %")
    except UnsupportedModelError as refusal:
        return [] if "blocks.0 (FSDPBlock) has forward hooks" in str(refusal) else [str(refusal)]
    return ["fit takes a sharded model"]


def _gathered(record: Record) -> Record:
    """Whole tensors from both processes' shards."""
    return {
        name: each.full_tensor() if isinstance(each, torch.distributed.tensor.DTensor) else each
        for name, each in record.items()
    }


def intercepted_trials() -> dict[str, Callable[[int], list[str]]]:
    """What a process does, given its rank; it reports what is wrong."""
    schedules = {
        "2 segments": segments(DEPTH + 1, 2),
        "3 segments": segments(DEPTH + 1, 3),
        "drop everything": drop_everything(DEPTH + 1),
    }
    trials: dict[str, Callable[[int], list[str]]] = {
        f"FSDP2 {'resharding' if reshards else 'whole after forward'}, {name}": partial(
            by_blocks, schedule=schedule, reshards=reshards
        )
        for name, schedule in schedules.items()
        for reshards in (True, False)
    }
    return trials | {"FSDP2 is refused by fit": refused}
