"""A model that is fitted by its first call with gradients, the sample being that call.

Training loops know their batches, precision and devices only when they run; so does a plan.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import update_wrapper
from typing import Any

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.fitting import fit, unfit
from chainstay.runtime.fitted import OnNewShape
from chainstay.solution import Method

__all__ = ["FitSettings", "fit_at_first_call", "unfit_if_fitted"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitSettings:
    """What `chainstay.fit` wants to know besides the model and a call of it."""

    budget: int | str | float | Fraction | None
    loss: Callable[[Any], torch.Tensor] | None = None
    method: Method | str = "auto"
    on_new_shape: OnNewShape = "plan"
    reserve: int | str = 0
    repeats: int = 5

    def fit(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Fit `model` for calls like this one."""
        fit(
            model,
            args,
            kwargs,
            budget=self.budget,
            loss=self.loss,
            method=self.method,
            on_new_shape=self.on_new_shape,
            reserve=self.reserve,
            repeats=self.repeats,
        )


def fit_at_first_call(model: nn.Module, settings: FitSettings) -> None:
    """Fit `model` when it is called with gradients for the first time; that call goes by plan.

    Raises:
        UnsupportedModelError: The model is fitted already.
        ChainstayError: In that call: whatever `chainstay.fit` raises.
    """
    if hasattr(model, "chainstay") or isinstance(vars(model).get("forward"), _Unfitted):
        raise UnsupportedModelError(
            f"this {type(model).__name__} is fitted already, or waits for its first call; call "
            "chainstay.unfit(model) first, or leave the fitting to the training loop"
        )
    model.forward = _Unfitted(model, settings)


def unfit_if_fitted(model: nn.Module) -> None:
    """`model` as it was before `fit_at_first_call`, whether it was called since or not."""
    forward = vars(model).get("forward")
    if isinstance(forward, _Unfitted):
        forward.remove()
    elif hasattr(model, "chainstay"):
        unfit(model)


class _Unfitted:
    """Stands in for ``model.forward`` until there is a sample."""

    def __init__(self, model: nn.Module, settings: FitSettings) -> None:
        self._plain = model.forward
        self._replaced = vars(model).get("forward")
        self._model = model
        self._settings = settings
        update_wrapper(self, self._plain)
        self.__signature__ = inspect.signature(self._plain)  # some trainers read argument names

    @torch.compiler.disable(recursive=True)  # type: ignore[untyped-decorator]
    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  # the model's own
        """The model's output, by a plan if gradients are wanted."""
        if not torch.is_grad_enabled():
            return self._plain(*args, **kwargs)
        self.remove()
        try:
            self._settings.fit(self._model, args, kwargs)
        except BaseException:
            self._model.forward = self
            raise
        return self._model.forward(*args, **kwargs)

    def remove(self) -> None:
        """Leave the model as it was."""
        del self._model.forward
        if self._replaced is not None:
            self._model.forward = self._replaced
