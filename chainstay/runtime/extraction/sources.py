"""Where an exported graph's inputs come from: the model's own tensors, the call, or nowhere."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from chainstay.runtime.stages import tensor_at

__all__ = ["CallInput", "Constant", "ModelTensor", "Source"]


@dataclass(frozen=True, slots=True, eq=False)
class ModelTensor:
    """A parameter or buffer, looked up in the user's model each time it is read.

    Attributes:
        owner: The module that holds it.
        name: Under which it holds it.
        path: Of the tensor in the model.
    """

    owner: nn.Module
    name: str
    path: str

    def read(self) -> torch.Tensor:
        """The tensor that the model holds now."""
        tensor: torch.Tensor | None = self.owner._parameters.get(self.name)  # noqa: SLF001  # fast
        if tensor is None:
            tensor = tensor_at((self.owner, self.name))
        assert tensor is not None, f"{self.path} is gone"
        return tensor


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A tensor that the model's forward makes from Python numbers."""

    value: torch.Tensor

    def read(self) -> torch.Tensor:
        """Always the same tensor."""
        return self.value


@dataclass(frozen=True, slots=True)
class CallInput:
    """A leaf of the arguments that the model is called with.

    Attributes:
        position: Among the leaves of ``(args, kwargs)``.
    """

    position: int


Source = ModelTensor | Constant | CallInput
