"""Holds what a backward starts from, since its forward, and notices where that was changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from chainstay.runtime.execute.handles import Absent, OffloadPolicy
from chainstay.runtime.stage.states import changed_in_place_error, version_of


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor that replays start from, or its stand-in, and how often it had been changed."""

    tensor: torch.Tensor | Absent
    version: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor, policy: OffloadPolicy | None) -> HeldTensor:
        """Hold `tensor`, which has no graph; `policy` knows whether it may go to the host."""
        stand_in = None if policy is None else policy.stand_in(tensor)
        return cls(tensor, version_of(tensor)) if stand_in is None else cls(stand_in)

    def unchanged(self, what: str, stage: str) -> torch.Tensor:
        """Return the tensor, brought back if need be; messages call it `what` of its stage.

        Raises:
            PlanMismatchError: It was changed in place.
        """
        if not isinstance(self.tensor, torch.Tensor):
            return self.tensor.restored()
        if version_of(self.tensor) != self.version:
            raise changed_in_place_error(f"{what} of stage {stage}", "the backward")
        return self.tensor


def hold(value: Any, policy: OffloadPolicy | None) -> Any:
    """Hold what a forward has set aside: a tensor, states of random generators, or a number."""
    match value:
        case torch.Tensor():
            return HeldTensor.of(value, policy)
        case [(torch.device(), torch.Tensor()), *_]:
            return tuple((device, HeldTensor.of(state, policy)) for device, state in value)
    return value


def value_of(value: Any, stage: str) -> Any:
    """Return what `hold` has held; errors as for `HeldTensor.unchanged`."""
    match value:
        case HeldTensor():
            return value.unchanged("a result inside", stage)
        case [(torch.device(), HeldTensor()), *_]:
            return tuple((device, held.unchanged("a state", stage)) for device, held in value)
    return value
