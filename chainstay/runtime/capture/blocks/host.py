"""Runs a model's own Python again and again, each time as if it were the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from chainstay.errors import UnsupportedModelError, type_with_article
from chainstay.runtime.capture.trials.call import Call
from chainstay.runtime.capture.trials.isolation import StandIns, functions_of, values_kept
from chainstay.runtime.capture.trials.world import RandomNumbers, world_kept
from chainstay.runtime.devices.sharding import is_sharded, left_sharded


@dataclass(slots=True, eq=False)
class Host:
    """Makes shadows of a model, over the same stand-ins for its parameters.

    A model whose parameters are spread over several processes (FSDP2) cannot have a shadow: it
    runs itself, and what it does to parameters, gradients and buffers is undone.

    Attributes:
        call: A call of the model.
        device: The model's device.
        stand_ins: Stand-ins for its parameters.
        random: States of the generators of random numbers, as they are before every call.
    """

    call: Call
    device: torch.device
    stand_ins: StandIns = field(default_factory=StandIns)
    random: RandomNumbers = field(init=False)
    _is_known: bool = False

    def __post_init__(self) -> None:
        self.random = RandomNumbers.now(self.device)
        for leaf in tree_leaves((self.call.args, self.call.kwargs)):
            if isinstance(leaf, Iterator):
                raise UnsupportedModelError(
                    f"an argument of {self.call.name} is {type_with_article(leaf)}, "
                    "which can be gone through once only, while a call is tried several times to "
                    "plan it; pass a list"
                )

    @property
    def model(self) -> nn.Module:
        """The user's model."""
        return self.call.model

    @property
    def is_sharded(self) -> bool:
        """Whether the model runs itself."""
        return is_sharded(self.model)

    def written_of(self, shadow: nn.Module) -> frozenset[nn.Parameter]:
        """Return the parameters of a shadow that calls change, once one has been made."""
        pairs = zip(self.model.parameters(), shadow.parameters(), strict=True)
        return frozenset(own for real, own in pairs if id(real) in self.stand_ins.written)

    @contextmanager
    def fresh(self) -> Iterator[tuple[nn.Module, Callable[[], Any]]]:
        """Yield a model that is as it was before any call, and what calls its forward."""
        with (
            self.call.failures_told(),
            world_kept(functions_of(self.model), self.device),
            torch.enable_grad(),
        ):
            self.random.restore()
            if self.is_sharded:
                with self._itself() as own:
                    yield own
                return
            unknown = () if self._is_known else (*self.model.parameters(), *self.call.tensors)
            with values_kept(unknown) as changed:
                yield self._shadow()
        if not self._is_known:
            self._is_known = True
            self.stand_ins.written = frozenset(changed)
            for key in changed:
                self.stand_ins.known.pop(key, None)

    def _shadow(self) -> tuple[nn.Module, Callable[[], Any]]:
        stand_ins = StandIns(self.stand_ins.written)
        for parameter in self.model.parameters():
            if id(parameter) not in self.stand_ins.written:
                self.stand_ins.of(parameter)
        stand_ins.known = dict(self.stand_ins.known)
        shadow = self.call.of_shadow(stand_ins)
        return shadow.model, shadow

    @contextmanager
    def _itself(self) -> Iterator[tuple[nn.Module, Callable[[], Any]]]:
        model, own = self.model, vars(self.model).pop("forward", None)
        attributes = [(module, dict(vars(module))) for module in model.modules()]
        try:
            vars(model)["forward"] = MethodType(self.call.function, model)
            with left_sharded(model), values_kept((*self.call.tensors, *model.buffers())):
                yield model, lambda: model(*self.call.args, **self.call.kwargs)
        finally:
            for module, before in attributes:
                vars(module).clear()
                vars(module).update(before)
            if own is not None:
                vars(model)["forward"] = own
