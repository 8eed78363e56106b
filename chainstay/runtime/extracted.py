"""An extracted chain as stages to be measured and planned like any others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from chainstay.runtime.costs import Subject
from chainstay.runtime.extraction import ExtractedChain
from chainstay.runtime.losses import own_loss
from chainstay.runtime.measurement import (
    Measurement,
    measure_subject,
    measuring,
    require_loss,
    require_repeats,
)
from chainstay.runtime.memory import require_measurable
from chainstay.runtime.merging import merge_idle_cuts
from chainstay.runtime.mode import titled_modules
from chainstay.runtime.progress import progress_bar
from chainstay.runtime.stages import ChainStage, Place
from chainstay.runtime.states import State, detached

__all__ = ["AnyLoss", "LossPart", "measure_extracted"]


@dataclass(frozen=True, slots=True)
class LossPart:
    """The loss behind what was extracted.

    Attributes:
        finish: Puts the output together, from the last state and the shared values.
        function: From the output to one number.
    """

    finish: Callable[[State, State], Any]
    function: Callable[[Any], torch.Tensor | None]

    def __call__(self, state: State, shared: State) -> State:
        """As `Part`."""
        loss = self.function(self.finish(state, shared))
        return (loss,)  # type: ignore[return-value]  # whoever runs it first looks what it is

    def modules(self) -> Iterator[nn.Module]:
        """Those of the loss, if it is a module."""
        if isinstance(self.function, nn.Module):
            yield from self.function.modules()

    def places(self) -> Iterator[Place]:
        """None that matters: nobody runs a loss again."""
        return iter(())


@dataclass(frozen=True, slots=True)
class AnyLoss:
    """Stands in for a loss where only its being there matters; a `stages.Part`."""

    def __call__(self, state: State, shared: State) -> State:  # noqa: ARG002  # as `Part`
        """As `Part`."""
        total = [each.sum() for each in state if each.requires_grad]
        return (torch.stack(total).sum() if total else state[0].sum(),)

    def modules(self) -> Iterator[nn.Module]:
        """None."""
        return iter(())

    def places(self) -> Iterator[Place]:
        """None."""
        return iter(())


def measure_extracted(  # noqa: PLR0913  # all but the chain and the call have defaults
    chain: ExtractedChain,
    sample_args: tuple[Any, ...],
    sample_kwargs: Mapping[str, Any] | None = None,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    repeats: int = 5,
    progress: bool = True,
    cache: str | os.PathLike[str] | None = None,
) -> Measurement:
    """Measure time and memory of every stage of `chain` on a call like its sample.

    Everything is left as it was, as by `chainstay.measure`.

    Args:
        chain: See `chainstay.runtime.extraction.extract`.
        sample_args: Positional arguments of the call.
        sample_kwargs: Keyword arguments, likewise.
        loss: From the model's output to a scalar; holds its targets itself. Without it, the
            output's own ``loss`` counts if it has one; otherwise the last stage is free, and
            gradients of all outputs are counted.
        repeats: The least number of times that each stage is timed, after one that warms up;
            it goes on until the time of a step is known to 2 %, up to four times as often.
        progress: Show a bar on stderr, if that is a terminal and it takes over a second.
        cache: A directory for what was measured, one JSON file per model, call and machine;
            what is found there is not measured again. By default there is none.

    Raises:
        UnsupportedModelError: A stage or the loss fails; the text names it.
        PlanMismatchError: The call is not like the one that was extracted.
        ValueError: `repeats` is no whole number or less than 1.
    """
    require_repeats(repeats)
    require_loss(loss)
    device = _device_of(chain.model, sample_args)
    require_measurable(device)
    modules = list(chain.model.modules())
    if isinstance(loss, nn.Module):
        modules += loss.modules()
    with progress_bar(wanted=progress) as bar, measuring(modules, device):
        source, shared = chain.begin(sample_args, sample_kwargs or {})
        stages = [ChainStage(each.name, (each,)) for each in chain.stages]
        function = loss or own_loss(chain.stages, chain.finish, source, shared)
        if function is not None:
            stages.append(ChainStage("loss", (LossPart(chain.finish, function),), is_loss=True))
        subject = Subject(
            stages=merge_idle_cuts(stages, source, shared),
            source=detached(source),
            shared=shared,
            device=device,
            progress=bar,
        )
        return measure_subject(subject, titled_modules(subject.stages), repeats, cache)


def _device_of(model: nn.Module, args: tuple[Any, ...]) -> torch.device:
    tensors = [*model.parameters(), *model.buffers(), *args]
    return next(each.device for each in tensors if isinstance(each, torch.Tensor))
