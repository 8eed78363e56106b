"""Where a chain must not be cut: stages that share memory across the cut become one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.binding import version_of
from chainstay.runtime.stages import ChainStage
from chainstay.runtime.states import State, address_of, detached

__all__ = ["blaming", "fuse_stages", "run_stage"]


def fuse_stages(stages: Sequence[ChainStage], sample: State) -> tuple[ChainStage, ...]:
    """Run the chain once and join stages that cannot or need not be told apart.

    A stage that changes its input in place would spoil the checkpoint in front of it; one
    whose output is a view of its input saves nothing by a cut. Both join the stage before.
    The first stage has none: a view joins the stage after it, a change is refused.

    Raises:
        UnsupportedModelError: A stage fails on its input, gives no tensor, or changes the
            model's own input in place.
    """
    groups: list[ChainStage] = []
    state = sample
    views_sample = True  # so far the state is the model's input, or a view of it
    for index, stage in enumerate(stages):
        # A clone has a version counter of its own and, unlike a leaf, may be changed in place.
        probe = tuple(tensor.clone() for tensor in state)
        output = run_stage(stage, index, probe)
        changes_input = any(version_of(tensor) > 0 for tensor in probe)
        shares_storage = not set(map(address_of, output)).isdisjoint(map(address_of, probe))
        if changes_input and views_sample:
            raise UnsupportedModelError(
                f"stage {index} ({stage.name}) changes the model's input in place; "
                "use inplace=False there"
            )
        if groups and (changes_input or shares_storage or views_sample):
            groups[-1] = groups[-1].fused_with(stage)
        else:
            groups.append(stage)
        views_sample = views_sample and shares_storage
        state = detached(output)
    return tuple(groups)


def run_stage(stage: ChainStage, index: int, state: State, shared: State = ()) -> State:
    """The next state; whatever goes wrong is told with the stage's name.

    Raises:
        UnsupportedModelError: The stage fails on its input, or gives something that is no tensor.
    """
    with blaming(stage, index, state):
        output: tuple[object, ...] = stage(state, shared)
    tensors = tuple(each for each in output if isinstance(each, torch.Tensor))
    if len(tensors) == len(output):
        return tensors
    strange = next(each for each in output if not isinstance(each, torch.Tensor))
    remedy = (
        "reduce it to a tensor of one number"
        if stage.is_loss
        else "pack its outputs into one, or let chainstay.fit extract the model's stages"
    )
    raise UnsupportedModelError(
        f"{stage.title(index)} returns a {type(strange).__name__}, must return one tensor; {remedy}"
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
