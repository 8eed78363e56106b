"""Accelerate: a prepared model trains within a budget from the first batch on."""

from __future__ import annotations

from accelerate import Accelerator
from torch import nn

from chainstay.integrations.first_call import FitSettings, fit_at_first_call, unfit_if_fitted


def fit_prepared(accelerator: Accelerator, model: nn.Module, settings: FitSettings) -> None:
    """Fit what ``accelerator.prepare`` wrapped, on its first batch.

    Mixed precision is part of a prepared model's forward, so it is part of the plan.

    Args:
        accelerator: Which prepared the model.
        model: The model as ``accelerator.prepare`` returned it.
        settings: The settings, as for `chainstay.fit`.

    Raises:
        UnsupportedModelError: The model is fitted already.

    Example::

        model, optimizer = accelerator.prepare(model, optimizer)
        fit_prepared(accelerator, model, FitSettings(budget="8GiB"))
    """
    fit_at_first_call(_inner(accelerator, model), settings)


def unfit_prepared(accelerator: Accelerator, model: nn.Module) -> None:
    """Return the prepared model as it was, to be unwrapped and saved."""
    unfit_if_fitted(_inner(accelerator, model))


def _inner(accelerator: Accelerator, model: nn.Module) -> nn.Module:
    """Below the wrappers of distributed training and compilation, mixed precision included."""
    inner: nn.Module = accelerator.unwrap_model(model, keep_fp32_wrapper=True)
    return inner
