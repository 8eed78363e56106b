"""A call of a model: what is traced, tried and planned."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from chainstay.errors import ChainstayError, UnsupportedModelError
from chainstay.runtime.capture.output_leaves import argument_numbers, argument_tensors
from chainstay.runtime.capture.trials.isolation import StandIns, arguments_like, shadow_of
from chainstay.runtime.capture.trials.model_forward import own_forward, unbound_forward
from chainstay.runtime.devices.device import device_of
from chainstay.runtime.stage.states import tensors_in


class SampleFailsError(UnsupportedModelError):
    """The model itself fails on a call; its own exception is the cause."""


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A call of a model.

    Attributes:
        model: The user's.
        args: Positional arguments.
        kwargs: Keyword arguments.
        function: The model's own forward, which takes the model first.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    function: Callable[..., Any]

    @classmethod
    def of(
        cls, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
    ) -> Call:
        """Return a call of the model's own forward."""
        return cls(model, args, dict(kwargs or {}), unbound_forward(model))

    def __call__(self) -> Any:
        """Make the call: only the model's own forward runs."""
        return self.function(self.model, *self.args, **self.kwargs)

    @property
    def name(self) -> str:
        """The model's name, for messages."""
        return type(self.model).__name__

    @contextmanager
    def failures_told(self) -> Iterator[None]:
        """Run the model's own Python inside; what it raises is told to be the model's.

        Raises:
            SampleFailsError: It raises something.
            UnsupportedModelError: It takes gradients, and what it saves was to be seen.
        """
        try:
            yield
        except (torch.OutOfMemoryError, ChainstayError):
            raise  # tell their own story
        except Exception as cause:  # the model is the user's code and may raise anything
            if "saved tensor hooks" in str(cause):  # torch.func has refused those of ours
                raise UnsupportedModelError(
                    "torch.func takes gradients inside the forward, which no plan can do; take "
                    "them around the model"
                ) from cause
            raise SampleFailsError(
                f"{self.name} fails on the sample: {type(cause).__name__}: "
                f"{str(cause).rstrip('.')}; check that it runs on it"
            ) from cause

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors among the arguments, and in objects among them."""
        return argument_tensors((self.args, self.kwargs))

    @property
    def numbers(self) -> tuple[Hashable, ...]:
        """The numbers, texts and flags among the arguments, and in objects among them."""
        return argument_numbers((self.args, self.kwargs))

    def require_plannable(self) -> None:
        """Refuse what no plan goes by.

        Raises:
            UnsupportedModelError: There is a nested tensor among the arguments, whose shapes torch
                does not tell without its values; or ``parametrize.cached`` is on, whose weights no
                plan makes again with their graph, and the model has parametrizations.
        """
        if any(tensor.is_nested for tensor in self.tensors):
            raise UnsupportedModelError(
                f"{self.name} is called with a nested tensor, which no plan goes by; pad it "
                "(torch.nested.to_padded_tensor)"
            )
        is_on = parametrize._cache_enabled  # noqa: SLF001  # no public way to ask
        if is_on and any(map(parametrize.is_parametrized, self.model.modules())):
            raise UnsupportedModelError(
                f"{self.name} is called inside of torch.nn.utils.parametrize.cached(), which keeps "
                "weights that no plan could make again; leave that context"
            )

    @property
    def device(self) -> torch.device:
        """The device of the model.

        Raises:
            UnsupportedModelError: It is on several accelerators, or is given a tensor without
                values; or there is no tensor at all.
        """
        held = [*self.model.parameters(), *self.model.buffers()]
        if not held and not self.tensors:
            raise UnsupportedModelError(
                "neither the model nor the call has any tensor; there is nothing to plan"
            )
        given = tensors_in((self.args, self.kwargs))
        device = device_of(held or given)
        if device.type != "meta" and any(tensor.is_meta for tensor in given):
            raise UnsupportedModelError(
                f"the sample has a tensor on meta, but the model is on {device}; move both to one "
                "device"
            )
        return device

    def of_shadow(self, stand_ins: StandIns) -> Call:
        """Return the same call of a shadow of the model, with stand-ins for its tensors."""
        shadow = shadow_of(self.model, stand_ins)
        args, kwargs = arguments_like((self.args, self.kwargs), stand_ins)
        is_of_class = own_forward(shadow) is None or self.function is type(shadow).forward
        function = self.function if is_of_class else unbound_forward(shadow)
        return Call(shadow, args, kwargs, function)
