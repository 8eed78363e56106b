"""What people save memory with instead, each as its own documentation says.

======================  ============================================================
``checkpoint``          `torch.utils.checkpoint.checkpoint`, ``use_reentrant=False``, around every
                        stage but the last; of Hugging Face models
                        ``gradient_checkpointing_enable``
``sequential``          `torch.utils.checkpoint.checkpoint_sequential`, every count of segments
``compile``             `torch.compile` with ``torch._functorch.config.activation_memory_budget``,
                        its partitioner's graphs run as they are (``backend="aot_eager"``)
``inductor``            the same, with the graphs turned into machine code (the default backend)
``save_on_cpu``         `torch.autograd.graph.save_on_cpu`
======================  ============================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib import import_module
from typing import Any, Final

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from benchmarks.peers.results import Contestant, Forward, Refusal
from benchmarks.training import twin
from benchmarks.trainings import Training
from models import UNet

__all__ = ["contestants"]

SHARES: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Values of ``activation_memory_budget``; 1 is its default."""


def contestants(training: Training, *, inductor: bool) -> Iterator[Contestant | Refusal]:
    """All that can be tried on a model."""
    dynamo: Any = import_module("torch._dynamo")
    dynamo.config.recompile_limit = 64  # one class, compiled once for each budget and backend
    yield from _checkpointed(training.model)
    yield from _sequential(training.model)
    yield from _compiled(training.model, "aot_eager")
    if inductor:
        yield from _compiled(training.model, "inductor")
    yield Contestant(peer="save_on_cpu", setting="", forward=partial(_saved_on_cpu, training.model))


class Checkpointed(nn.Module):
    """A block that runs again in the backward."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, *args: torch.Tensor) -> torch.Tensor:
        """As the block's."""
        output: torch.Tensor = checkpoint(self.block, *args, use_reentrant=False)
        return output


def _checkpointed(model: nn.Module) -> Iterator[Contestant | Refusal]:
    other: Any = twin(model)
    if isinstance(model, nn.Sequential):
        blocks = list(other.children())
        other = nn.Sequential(*map(Checkpointed, blocks[:-1]), blocks[-1])
    elif isinstance(model, UNet):
        other.stem = Checkpointed(other.stem)
        other.down = nn.ModuleList(map(Checkpointed, other.down))
        other.up = nn.ModuleList(map(Checkpointed, other.up))
    else:
        enable = getattr(other, "gradient_checkpointing_enable", None)
        if enable is None:
            yield Refusal("checkpoint", "", "nobody said what its blocks are")
            return
        enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    yield Contestant(peer="checkpoint", setting="every block", forward=other)


def _sequential(model: nn.Module) -> Iterator[Contestant | Refusal]:
    if not isinstance(model, nn.Sequential):
        yield Refusal("sequential", "", "takes torch.nn.Sequential only")
        return
    stages = len(model)
    sizes = range(1, stages // 2 + 1)  # it cuts off segments of stages // count each
    for count in sorted({stages // size for size in sizes} - {1}):
        yield Contestant(
            peer="sequential",
            setting=f"{count} segments",
            forward=partial(checkpoint_sequential, model, count, use_reentrant=False),
        )


def _compiled(model: nn.Module, backend: str) -> Iterator[Contestant]:
    peer = "compile" if backend == "aot_eager" else backend
    for share in (*SHARES, 1.0):
        yield Contestant(
            peer=peer,
            setting=f"budget {share:g}",
            forward=compiled(twin(model), backend, share),
            share=share,
        )


def compiled(model: nn.Module, backend: str, share: float) -> Forward:
    """The model compiled under a budget.

    The budget is set while the backend works, and a backend of its own keeps graphs of other
    budgets from being taken for this one's.
    """
    config: Any = import_module("torch._functorch.config")
    work: Any = import_module("torch._dynamo").lookup_backend(backend)

    def within_budget(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        with config.patch(activation_memory_budget=share):
            return work(graph, inputs)

    return torch.compile(model, backend=within_budget, fullgraph=True, dynamic=False)


def _saved_on_cpu(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return model(*args, **kwargs)
