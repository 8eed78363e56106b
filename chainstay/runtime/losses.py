"""The loss that some models compute themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from chainstay.runtime.extraction.stage import GraphStage
from chainstay.runtime.states import State

__all__ = ["loss_in", "own_loss"]


def loss_in(output: object) -> torch.Tensor | None:
    """The scalar in a model's output that is meant to be minimised, if there is one.

    That is ``output.loss`` or ``output["loss"]`` of models that are given ``labels``, or an
    output that is itself one real number.

    Example:
        >>> loss_in({"loss": torch.tensor(1.5), "scores": torch.ones(3)})
        tensor(1.5000)
        >>> loss_in(torch.ones(3)) is None
        True
    """
    named = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", output)
    if isinstance(named, torch.Tensor) and named.numel() == 1 and named.is_floating_point():
        return named
    return None


def own_loss(
    stages: Iterable[GraphStage],
    finish: Callable[[State, State], Any],
    state: State,
    shared: State,
) -> Callable[[Any], torch.Tensor | None] | None:
    """What finds the loss in a model's output, if there is one in it.

    Args:
        stages: Of the model, or of what is left of it.
        finish: Puts the output together, from the last state and `shared`.
        state: Input of the first stage.
        shared: What all stages may read.
    """
    with torch.no_grad():
        for stage in stages:
            state = stage(state, shared)
        return None if loss_in(finish(state, shared)) is None else loss_in
