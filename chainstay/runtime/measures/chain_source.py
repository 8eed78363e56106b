"""The model, sample and mode a chain was measured with, and how another call of it differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError, type_with_article
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.devices.device import device_at
from chainstay.runtime.stage.given_stages import Stages, stage_title


@dataclass(frozen=True, slots=True)
class ChainSource:
    """The stages and the call that a chain was measured with.

    Attributes:
        named: The stages, by the names they have in the model's ``state_dict``.
        is_training: The model's own training flag.
        layout: What its input was, for people.
        flags: The training flags of the modules in the stages.
        autocast: The autocast of the call.
    """

    named: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...]
    is_training: bool
    layout: str
    flags: Mapping[str, bool]
    autocast: Autocast | None

    @classmethod
    def of(
        cls,
        model: object,
        named: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...],
        sample: torch.Tensor,
    ) -> ChainSource:
        """Return the source of a chain that is measured now.

        Raises:
            UnsupportedModelError: The sample is no input of a chain, or its device has no memory
                that can be measured.
        """
        _require_sample(sample)
        device_at(sample.device)  # refuses what counts no bytes
        own = [stage for _, stage in named if isinstance(stage, nn.Module)]
        modules = chain.from_iterable(stage.modules() for stage in own)
        outer = [model] if isinstance(model, nn.Module) else modules
        is_training = any(module.training for module in outer)
        flags, autocast = _training_flags(named), Autocast.now(sample.device)
        return cls(named, is_training, _layout_of(sample), flags, autocast)

    @property
    def titles(self) -> list[str]:
        """Return the stages' names in messages."""
        return [stage_title(name, stage) for name, stage in self.named]

    def mismatch(self, named: Stages, activation: torch.Tensor) -> str:
        """Return in words why a call is not like the measured one, whose graph it has not."""
        layout = _layout_of(activation)
        if layout != self.layout:
            return (
                f"the plan was measured for an input {self.layout}, got {layout}; measure and plan "
                "again with such a sample, or run it under torch.no_grad()"
            )
        difference = self._difference(named, Autocast.now(activation.device))
        if difference:
            return (
                f"{difference}; measure and plan again in this mode, or run under torch.no_grad()"
            )
        return (
            "the chain computes something else than when it was measured, so the plan's memory "
            "does not hold: a stage was replaced, or its parameters (which of them require "
            "gradients, too), its hooks or what it reads have changed; measure and plan again, or "
            "run under torch.no_grad()"
        )

    def _difference(self, named: Stages, autocast: Autocast | None) -> str:
        """How the mode of another call differs from this one; empty if it does not."""
        if self.autocast != autocast:
            before, after = (str(mode or "no autocast") for mode in (self.autocast, autocast))
            return f"the plan was measured with {before}, got {after}"
        names, present = ("evaluation", "training"), _training_flags(named)
        for module, was_training in self.flags.items():
            is_training = present.get(module, was_training)
            if is_training != was_training:
                return (
                    f"the plan was measured with {module} in {names[was_training]} mode, it is in "
                    f"{names[is_training]} mode"
                )
        return ""


def _training_flags(named: Stages) -> dict[str, bool]:
    """Return the training flags of the modules in stages, by what messages call them."""
    return {
        f"{f'the {type(module).__name__} in' if path else 'the module of'} "
        f"stage {index} ({stage_title(name, stage)})": module.training
        for index, (name, stage) in enumerate(named)
        if isinstance(stage, nn.Module)
        for path, module in stage.named_modules()
        if not list(module.children()) or not path
    }


def _require_sample(sample: object) -> None:
    if not isinstance(sample, torch.Tensor):
        raise UnsupportedModelError(
            f"the sample is {type_with_article(sample)}, must be one tensor; pack several inputs "
            "into one, or close the stages over those that stay the same"
        )
    if sample.layout != torch.strided:
        raise UnsupportedModelError(
            f"the sample's layout is {sample.layout}, must be torch.strided; make it dense "
            "with .to_dense()"
        )
    if sample.is_inference() or torch.is_inference_mode_enabled():
        raise UnsupportedModelError(
            "the sample or this call is under torch.inference_mode(), where no gradient can be "
            "measured; call outside, with a sample made outside"
        )


def _layout_of(tensor: torch.Tensor) -> str:
    """Return the layout of a chain's input, for people."""
    wants = " that requires a gradient" if tensor.requires_grad else ""
    return f"{tuple(tensor.shape)} {tensor.dtype} on {tensor.device}{wants}"
