"""What a plan holds for: how a model is called, and what the model is like meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from chainstay.runtime.extraction.calling import CallSignature
from chainstay.runtime.mode import Autocast

__all__ = ["Situation", "modules_of"]


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that memory and graph of a step depend on, beside values.

    Attributes:
        arguments: How they nest; shape, type, device and ``requires_grad`` of tensors.
        training: Training flag of every module.
        autocast: ``None`` where it is off.
        parameters: Type, device and ``requires_grad`` of each, one behind the other: a tuple for
            each would wake the garbage collector in every step. Shared ones count each time.
    """

    arguments: CallSignature
    training: tuple[bool, ...]
    autocast: Autocast | None
    parameters: tuple[torch.dtype | torch.device | bool, ...]

    @classmethod
    def now(cls, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Situation:
        """That of the call ``model(*args, **kwargs)`` at present."""
        modules = modules_of(model)
        parameters: list[torch.dtype | torch.device | bool] = []
        for module in modules:
            if own := module._parameters:  # noqa: SLF001  # see `modules_of`
                for each in own.values():
                    if each is not None:
                        parameters += (each.dtype, each.device, each.requires_grad)
        device = parameters[1] if parameters else torch.device("cpu")
        assert isinstance(device, torch.device)
        return cls(
            arguments=CallSignature.of(args, kwargs),
            training=tuple([module.training for module in modules]),
            autocast=Autocast.now(device),
            parameters=tuple(parameters),
        )

    def difference(self, present: Situation) -> str:
        """For people: in what `present` differs."""
        changed = [
            _WORDS[field.name]
            for field in fields(self)
            if getattr(self, field.name) != getattr(present, field.name)
        ]
        if changed != [_WORDS["arguments"]]:
            return " and ".join(changed)
        pairs = zip(self.arguments.leaves, present.arguments.leaves, strict=False)
        shown = (f"{new} instead of {old}" for old, new in pairs if old != new)
        return f"{changed[0]} ({next(shown, 'another number or nesting')})"


def modules_of(model: nn.Module) -> list[nn.Module]:
    """``model.modules()``, level by level; that takes longer than a small model's whole step."""
    found, known = [model], {id(model)}
    for module in found:  # grows meanwhile
        if children := module._modules:  # noqa: SLF001
            for child in children.values():
                if child is not None and id(child) not in known:
                    known.add(id(child))
                    found.append(child)
    return found


_WORDS = {
    "arguments": "its arguments",
    "training": "training flags",
    "autocast": "autocast",
    "parameters": "type, device or requires_grad of parameters",
}
