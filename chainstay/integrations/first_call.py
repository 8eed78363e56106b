"""The common part of the callbacks for training loops: fit at the beginning, unfit at the end."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.fitting import fit, unfit
from chainstay.fitting.budgets import Budget
from chainstay.fitting.fitted import fitted_of
from chainstay.fitting.planner import OnNewShape, StageSource
from chainstay.profiles import Link
from chainstay.runtime.capture.cuts.cut_points import Granularity
from chainstay.solution import Method


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """The arguments of `chainstay.fit` besides the model and a sample."""

    budget: Budget
    loss: Callable[[Any], torch.Tensor] | None = None
    method: Method | str = "auto"
    by: StageSource = "auto"
    granularity: Granularity = "fine"
    stage_options: bool = True
    on_new_shape: OnNewShape = "plan"
    bit_for_bit: bool = True
    reserve: int | str = 0
    recompute: bool = True
    offload: bool | None = None
    link: Link | None = None
    host_budget: int | str | None = None
    repeats: int = 3
    progress: bool = True
    cache: str | os.PathLike[str] | None = None


def fit_at_first_call(model: nn.Module, settings: FitSettings) -> None:
    """Fit `model` without a sample: it is planned when it is called with gradients.

    Raises:
        UnsupportedModelError: The model is fitted already.
        ChainstayError: In that call: whatever `chainstay.fit` raises.
    """
    if fitted_of(model) is not None:
        raise UnsupportedModelError(
            f"this {type(model).__name__} is fitted already; call chainstay.unfit(model) first, or "
            "leave the fitting to the training loop"
        )
    fit(model, **{field.name: getattr(settings, field.name) for field in fields(settings)})


def unfit_if_fitted(model: nn.Module) -> None:
    """`model` as it was before `fit_at_first_call`, whether it was called since or not."""
    if fitted_of(model) is not None:
        unfit(model)
