"""Where a chain must not be cut: stages that share memory across the cut become one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.stages import ChainStage

__all__ = ["blaming", "fuse_stages", "run_stage"]


def fuse_stages(stages: Sequence[ChainStage], sample: torch.Tensor) -> tuple[ChainStage, ...]:
    """Run the chain once and join stages that cannot or need not be told apart.

    A stage that changes its input in place would spoil the checkpoint in front of it; one
    whose output is a view of its input saves nothing by a cut. Both join the stage before.
    The first stage has none: a view joins the stage after it, a change is refused.

    Raises:
        UnsupportedModelError: A stage fails on its input, gives no tensor, or changes the
            model's own input in place.
    """
    groups: list[ChainStage] = []
    activation = sample
    views_sample = True  # so far the activation is the model's input, or a view of it
    for index, stage in enumerate(stages):
        # A clone has a version counter of its own and, unlike a leaf, may be changed in place.
        probe = activation.clone()
        output = run_stage(stage, index, probe)
        changes_input = probe._version > 0  # noqa: SLF001  # autograd's own, and documented
        shares_storage = _storage_of(output) == _storage_of(probe)
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
        activation = output.detach().requires_grad_(output.requires_grad)
    return tuple(groups)


def run_stage(stage: ChainStage, index: int, activation: torch.Tensor) -> torch.Tensor:
    """The stage's output; whatever goes wrong is told with the stage's name.

    Raises:
        UnsupportedModelError: The stage fails on its input, or its output is no tensor.
    """
    with blaming(stage, index, activation):
        output: object = stage(activation)
    if not isinstance(output, torch.Tensor):
        remedy = (
            "reduce it to a tensor of one number"
            if stage.is_loss
            else "pack its outputs into one, or fuse it with the stage that unpacks them"
        )
        raise UnsupportedModelError(
            f"{stage.title(index)} returns a {type(output).__name__}, must return one tensor; "
            f"{remedy}"
        )
    return output


@contextmanager
def blaming(stage: ChainStage, index: int, activation: torch.Tensor) -> Iterator[None]:
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
        raise UnsupportedModelError(
            f"{stage.title(index)} fails on its input of shape {tuple(activation.shape)} and type "
            f"{activation.dtype}: {type(cause).__name__}: {str(cause).rstrip('.')}; check "
            f"whether it takes what the {giver} gives"
        ) from cause


def _storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
