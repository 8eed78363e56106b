"""Autocast and gradient modes that a model switches on in its own forward.

The operators inside are told their region, so that a chain can be cut there, too; each stage then
enters the regions of its operators again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class AutocastRegion:
    """A ``with torch.autocast(...)`` inside the model; whether it caches weights is not kept."""

    device_type: str
    dtype: torch.dtype
    enabled: bool

    def entered(self) -> AbstractContextManager[object]:
        """The region as a context."""
        return torch.autocast(self.device_type, dtype=self.dtype, enabled=self.enabled)


@dataclass(frozen=True, slots=True)
class GradientRegion:
    """A ``with torch.no_grad()`` or ``torch.enable_grad()`` inside the model."""

    enabled: bool

    def entered(self) -> AbstractContextManager[object]:
        """The region as a context."""
        return torch.set_grad_enabled(self.enabled)


Region = AutocastRegion | GradientRegion


class RegionModule(nn.Module):
    """Part of a stage that runs inside regions, the outermost first."""

    def __init__(
        self, regions: tuple[Region, ...], function: Callable[..., tuple[torch.Tensor, ...]]
    ) -> None:
        super().__init__()
        self.regions = regions
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Run the function of the part, with its regions entered."""
        with ExitStack() as stack:
            for region in self.regions:
                stack.enter_context(region.entered())
            return self.function(*inputs)
