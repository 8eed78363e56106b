"""The loss that some models compute themselves."""

from __future__ import annotations

from collections.abc import Mapping

import torch

__all__ = ["loss_in"]


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
