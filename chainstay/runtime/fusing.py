"""Where a chain must not be cut: stages that share memory across the cut become one."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.stages import ChainStage

__all__ = ["fuse_stages", "run_stage"]

_INPUT_ERRORS = (RuntimeError, TypeError, ValueError, IndexError)
"""What modules raise when their input has the wrong shape or type."""


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
    try:
        output: object = stage(activation)
    except torch.OutOfMemoryError:
        raise  # tells its own story, and a smaller sample is the remedy
    except _INPUT_ERRORS as cause:
        raise UnsupportedModelError(
            f"stage {index} ({stage.name}) fails on its input of shape "
            f"{tuple(activation.shape)} and type {activation.dtype}: {cause}. Make the output "
            "of the stage before fit"
        ) from cause
    if not isinstance(output, torch.Tensor):
        raise UnsupportedModelError(
            f"stage {index} ({stage.name}) returns a {type(output).__name__}, must return one "
            "tensor; pack its outputs into one, or fuse it with the stage that unpacks them"
        )
    return output


def _storage_of(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
