"""Hugging Face's ``Trainer``: its model trains within a budget from the first batch on."""

from __future__ import annotations

from torch import nn
from transformers import TrainerCallback

from chainstay.integrations.first_call import FitSettings, fit_at_first_call, unfit_if_fitted


class FitCallback(TrainerCallback):  # type: ignore[misc]  # the library's own types are not read
    """Fits the model on the first batch; when training ends, the model is as it was.

    Keep ``gradient_checkpointing`` off: that is what this replaces.

    Args:
        settings: The settings, as for `chainstay.fit`.

    Example::

        Trainer(model, args, callbacks=[FitCallback(FitSettings(budget="8GiB"))], ...).train()
    """

    def __init__(self, settings: FitSettings) -> None:
        self.settings = settings

    def on_train_begin(self, *_: object, model: nn.Module, **__: object) -> None:
        """Let the model wait for its first batch."""
        fit_at_first_call(model, self.settings)

    def on_train_end(self, *_: object, model: nn.Module, **__: object) -> None:
        """The model is plain again, so that it can be saved and copied as ever."""
        unfit_if_fitted(model)
