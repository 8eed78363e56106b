"""What a plan holds for: how a model is called, and what the model is like meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter, eq
from typing import Any

import torch
from torch import nn

from chainstay.runtime.extraction.calling import CallSignature
from chainstay.runtime.mode import Autocast

__all__ = ["ModuleList", "Situation", "modules_of"]


@dataclass(frozen=True, slots=True)
class Situation:
    """Everything that memory and graph of a step depend on, beside values.

    Attributes:
        arguments: How they nest; shape, type, device and ``requires_grad`` of tensors.
        training: Training flag of every module.
        autocast: ``None`` where it is off.
        parameters: ``requires_grad``, type and device of each. Shared ones count each time.
    """

    arguments: CallSignature
    training: tuple[bool, ...]
    autocast: Autocast | None
    parameters: tuple[tuple[bool, torch.dtype, torch.device], ...]

    @classmethod
    def now(
        cls, args: Sequence[Any], kwargs: Mapping[str, Any], modules: Sequence[nn.Module]
    ) -> Situation:
        """That of a call of a model at present.

        Args:
            args: Of the call.
            kwargs: Likewise.
            modules: Those of the model as `modules_of` finds them.
        """
        parameters = tuple(map(_kind_of, _parameters_of(modules)))
        return cls(
            arguments=CallSignature.of(args, kwargs),
            training=tuple([module.training for module in modules]),
            autocast=_autocast_for(parameters),
            parameters=parameters,
        )

    def is_now(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], modules: Sequence[nn.Module]
    ) -> bool:
        """Whether `now` would give the same.

        This is asked in every step, over all parameters, so that nothing is gathered first.
        """
        tensors = _parameters_of(modules)
        return (
            len(tensors) == len(self.parameters)
            and all(map(eq, map(_kind_of, tensors), self.parameters))
            and tuple([module.training for module in modules]) == self.training
            and CallSignature.of(args, kwargs) == self.arguments
            and _autocast_for(self.parameters) == self.autocast
        )

    @property
    def wants_gradients(self) -> bool:
        """Whether any parameter or argument requires a gradient."""
        return self.arguments.requires_grad or any(wants for wants, _, _ in self.parameters)

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


class ModuleList:
    """`modules_of` a model, looked for again only where something has changed.

    Args:
        model: Of which.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._found: list[nn.Module] = []
        self._children: list[dict[str, nn.Module | None]] = [{}]

    def now(self) -> list[nn.Module]:
        """Those that the model has at present."""
        if [module._modules for module in self._found] != self._children:  # noqa: SLF001
            self._found = modules_of(self._model)
            self._children = [dict(module._modules) for module in self._found]  # noqa: SLF001
        return self._found


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


_kind_of = attrgetter("requires_grad", "dtype", "device")


def _parameters_of(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    found = [own for module in modules if (own := module._parameters)]  # noqa: SLF001  # fast
    return [each for own in found for each in own.values() if each is not None]


def _autocast_for(parameters: Sequence[tuple[bool, torch.dtype, torch.device]]) -> Autocast | None:
    return Autocast.now(parameters[0][2] if parameters else torch.device("cpu"))


_WORDS = {
    "arguments": "its arguments",
    "training": "training flags",
    "autocast": "autocast",
    "parameters": "type, device or requires_grad of parameters",
}
