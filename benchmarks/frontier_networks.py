"""Real models in small for the frontier benchmark, measured: sequences of stages, and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import groupby
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from benchmarks.networks import convnext, vit
from benchmarks.offload_networks import Appended, stages_of
from chainstay import MeasuredChain, measure
from chainstay.fitting.measured import MeasuredModel, measure_model
from chainstay.fitting.planner import PlannerSettings
from chainstay.runtime.measures.measured import Measurement
from chainstay.runtime.transfer import Engine
from chainstay.schedule import Schedule
from chainstay.solution import Solution
from models import UNet, gpt2, resnet50

__all__ = ["Subject", "Training", "densenet", "gpt", "on_images", "trainings"]


@dataclass(frozen=True)
class Training:
    """A model and a call of it.

    Attributes:
        name: Of the network.
        model: In training mode.
        args: Of the call.
        kwargs: Likewise.
        loss: From the output to a number.
    """

    name: str
    model: nn.Module
    args: tuple[torch.Tensor, ...]
    kwargs: dict[str, torch.Tensor]
    loss: Callable[[Any], torch.Tensor]

    @property
    def samples(self) -> int:
        """In one step."""
        return len(self.args[0])

    @property
    def given_bytes(self) -> int:
        """Of the call; budgets count them."""
        return sum(each.nbytes for each in (*self.args, *self.kwargs.values()))

    def measured(self, repeats: int) -> Subject:
        """The same with its costs, by one thread."""
        if isinstance(self.model, nn.Sequential):  # between its own stages, as torch cuts it
            (sample,) = self.args
            chain = measure(self.model, sample, loss=self.loss, repeats=repeats, progress=False)
            return Subject(self, chain)
        settings = PlannerSettings(loss=self.loss, repeats=repeats, progress=False)
        return Subject(self, measure_model(self.model, self.args, self.kwargs, settings))


@dataclass(frozen=True)
class Subject:
    """A model ready to be planned.

    Attributes:
        training: The model.
        measured: The same as stages.
    """

    training: Training
    measured: MeasuredModel | MeasuredChain

    @property
    def costs(self) -> Measurement:
        """Of its stages."""
        measured = self.measured
        return measured if isinstance(measured, MeasuredChain) else measured.costs

    def step_by(self, solution: Solution, engine: Engine) -> Callable[[], None]:
        """A step by a plan; `engine` makes its transfers, if it has any."""
        measured = self.measured
        if isinstance(measured, MeasuredChain):
            return self.step_of(measured.planned(solution, engine=engine))
        return self.step_of(measured.forward(measured.planned(solution, engine)))

    def step_of(self, forward: Callable[..., Any]) -> Callable[[], None]:
        """The usual step; gradients add up."""

        def step() -> None:
            output = forward(*self.training.args, **self.training.kwargs)
            self.training.loss(output).backward()

        return step

    @property
    def plain(self) -> Schedule:
        """Plain training."""
        return Schedule.keep_all(len(self.costs.profile))


def trainings(device: torch.device) -> Iterator[Training]:
    """Seven networks; those that need a library which is not there are left out."""
    yield on_images("ResNet-50", partial(resnet50, width=16), device, batch=8, side=64)
    yield on_images("DenseNet-121", densenet, device, batch=4, side=64)
    yield on_images(
        "ViT", partial(vit, side=64, patch=8, blocks=8, width=96, heads=6), device, batch=8, side=64
    )
    yield on_images(
        "ConvNeXt", partial(convnext, widths=(24, 48, 96, 192)), device, batch=4, side=64
    )
    yield gpt(device, width=128, heads=4, context=96)
    torch.manual_seed(0)
    images, masks = torch.randn(4, 3, 64, 64, device=device), torch.rand(4, 2, 64, 64).to(device)
    yield Training(
        "U-Net",
        UNet().to(device),
        (images,),
        {},
        lambda maps: functional.binary_cross_entropy_with_logits(maps, masks),
    )
    yield from _bert(device)


def densenet() -> nn.Sequential:
    """DenseNet-121, three dense layers a stage."""
    stages: list[nn.Module] = []
    for is_dense, some in groupby(stages_of("densenet121"), lambda each: type(each) is Appended):
        parts = list(some)
        size = 3 if is_dense else 1
        stages += (nn.Sequential(*parts[at : at + size]) for at in range(0, len(parts), size))
    return nn.Sequential(*stages)


def gpt(device: torch.device, *, width: int, heads: int, context: int) -> Training:
    """GPT-2 of eight blocks, on four texts."""
    torch.manual_seed(0)
    tokens, following = (torch.randint(0, 1000, (4, context), device=device) for _ in range(2))
    return Training(
        "GPT-2",
        gpt2(blocks=8, width=width, heads=heads, vocabulary=1000, context=context).to(device),
        (tokens,),
        {},
        lambda scores: functional.cross_entropy(scores.flatten(0, 1), following.flatten()),
    )


def on_images(
    name: str, build: Callable[[], nn.Sequential], device: torch.device, *, batch: int, side: int
) -> Training:
    """A network that tells classes."""
    torch.manual_seed(0)
    images = torch.randn(batch, 3, side, side, device=device)
    classes = torch.randint(0, 1000, (batch,), device=device)
    return Training(
        name,
        build().to(device),
        (images,),
        {},
        lambda scores: functional.cross_entropy(scores, classes),
    )


def _bert(device: torch.device) -> Iterator[Training]:
    try:
        transformers: Any = import_module("transformers")
    except ImportError:
        return
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=1000,
        hidden_size=128,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=512,
        attn_implementation="sdpa",
    )
    tokens, labels = (torch.randint(0, 1000, (4, 96), device=device) for _ in range(2))
    model = transformers.BertForMaskedLM(config).train().to(device)
    yield Training("BERT", model, (tokens,), {"labels": labels}, lambda output: output.loss)
