"""Runs of single stages, whatever goes wrong told with the stage's name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from chainstay.errors import UnsupportedModelError, type_with_article
from chainstay.runtime.execute.environment import incoming
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.states import State


def run_stage(stage: ChainStage, index: int, state: State, shared: Sequence[Any]) -> State:
    """The next state; whatever goes wrong is told with the stage's name.

    Raises:
        UnsupportedModelError: The stage fails on its input, or gives something that is no tensor.
    """
    with blaming(stage, index, state):
        output: tuple[object, ...] = stage(incoming(stage, state), shared)
    tensors = tuple(value for value in output if isinstance(value, torch.Tensor))
    if len(tensors) == len(output):
        return tensors
    strange = next(value for value in output if not isinstance(value, torch.Tensor))
    remedy = (
        "reduce it to a tensor of one number"
        if stage.is_loss
        else "pack its outputs into one, or let chainstay.fit extract the model's stages"
    )
    raise UnsupportedModelError(
        f"{stage.title(index)} returns {type_with_article(strange)}, must return one tensor; "
        f"{remedy}"
    )


@contextmanager
def blaming(stage: ChainStage, index: int, state: State) -> Iterator[None]:
    """Whatever goes wrong inside is told with the stage's name and input.

    Raises:
        UnsupportedModelError: Something did.
    """
    try:
        yield
    except (torch.OutOfMemoryError, UnsupportedModelError):
        raise  # tell their own story; of the first, a smaller sample is the remedy
    except Exception as cause:  # a stage is the user's code and may raise anything
        giver = "model" if stage.is_loss else "stage before"
        inputs = " and ".join(
            f"shape {tuple(tensor.shape)} and type {tensor.dtype}" for tensor in state
        )
        raise UnsupportedModelError(
            f"{stage.title(index)} fails on its input of {inputs or 'no tensor'}: "
            f"{type(cause).__name__}: {str(cause).rstrip('.')}; check "
            f"whether it takes what the {giver} gives"
        ) from cause
