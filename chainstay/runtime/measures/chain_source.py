"""The model, sample and mode a chain was measured with, and how another call of it differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.devices.autocast import Autocast
from chainstay.runtime.devices.device import device_at
from chainstay.runtime.stage.given_stages import Stages, is_any_training, stage_title


@dataclass(frozen=True, slots=True)
class ChainSource:
    """The stages and the call that a chain was measured with.

    Attributes:
        named: The stages, by the names they have in the model's ``state_dict``.
        is_training: The model's own training flag.
        layout: What its input was, for people.
        mode: In which it was measured.
    """

    named: tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...]
    is_training: bool
    layout: str
    mode: _Mode

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
        is_training = model.training if isinstance(model, nn.Module) else is_any_training(named)
        return cls(named, is_training, _layout_of(sample), _Mode.of(named, sample.device))

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
        difference = self.mode.difference(_Mode.of(named, activation.device))
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


@dataclass(frozen=True, slots=True)
class _Mode:
    """The modes of a call: stages are told them besides their input."""

    flags: tuple[tuple[str, bool], ...]
    autocast: Autocast | None

    @classmethod
    def of(cls, named: Stages, device: torch.device) -> _Mode:
        """The mode of a call now."""
        flags = tuple(
            (
                f"{_inner_title(path, module)} stage {index} ({stage_title(name, stage)})",
                module.training,
            )
            for index, (name, stage) in enumerate(named)
            if isinstance(stage, nn.Module)
            for path, module in stage.named_modules()
            if not list(module.children()) or not path
        )
        return cls(flags, Autocast.now(device))

    def difference(self, now: _Mode) -> str:
        """How another mode differs from this one; empty if it does not."""
        if self.autocast != now.autocast:
            before, after = (
                "no autocast" if mode.autocast is None else str(mode.autocast)
                for mode in (self, now)
            )
            return f"the plan was measured with {before}, got {after}"
        names = ("evaluation", "training")
        present = dict(now.flags)
        for module, was_training in self.flags:
            is_training = present.get(module, was_training)
            if is_training != was_training:
                return (
                    f"the plan was measured with {module} in {names[was_training]} mode, it is in "
                    f"{names[is_training]} mode"
                )
        return ""


def _inner_title(path: str, module: nn.Module) -> str:
    """Return what messages call a module inside a stage, or the stage itself."""
    return f"the {type(module).__name__} in" if path else "the module of"


def _require_sample(sample: object) -> None:
    if not isinstance(sample, torch.Tensor):
        raise UnsupportedModelError(
            f"the sample is a {type(sample).__name__}, must be one tensor; pack several inputs "
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
