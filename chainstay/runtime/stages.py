"""A model as a chain of stages: each takes one tensor and gives one tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError

__all__ = ["Chain", "ChainStage", "Model", "TensorLayout", "children_of", "split_model"]

Model = nn.Sequential | Sequence[Callable[[torch.Tensor], torch.Tensor]]
"""What can be run as a chain; of sequences, lists and tuples are taken."""


@dataclass(frozen=True, slots=True)
class ChainStage:
    """One stage: the model's own callables, run one after another.

    Attributes:
        name: For people; the names of fused parts are joined by ``+``.
        parts: One callable, or several that must not be cut apart.
    """

    name: str
    parts: tuple[Callable[[torch.Tensor], torch.Tensor], ...]

    def __call__(self, activation: torch.Tensor) -> torch.Tensor:
        """The stage's output."""
        for part in self.parts:
            activation = part(activation)
        return activation

    def modules(self) -> Iterator[nn.Module]:
        """Every module inside, in a fixed order, each once per part that uses it."""
        for part in self.parts:
            if isinstance(part, nn.Module):
                yield from part.modules()

    def fused_with(self, successor: ChainStage) -> ChainStage:
        """This stage and the next as one."""
        return ChainStage(f"{self.name}+{successor.name}", self.parts + successor.parts)


@dataclass(frozen=True, slots=True)
class TensorLayout:
    """What a plan promises about its input: it was measured for exactly this."""

    shape: torch.Size
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorLayout:
        """The layout of `tensor`."""
        return cls(tensor.shape, tensor.dtype, tensor.device)

    def __str__(self) -> str:
        return f"{tuple(self.shape)} {self.dtype} on {self.device}"


@dataclass(frozen=True, slots=True)
class Chain:
    """A model ready to be planned.

    Attributes:
        children: The model's modules under their own names, so that a planned model has
            the same ``state_dict`` keys.
        stages: What a schedule speaks about, the loss excluded.
        layout: Of the input that everything was measured with.
    """

    children: tuple[tuple[str, nn.Module], ...]
    stages: tuple[ChainStage, ...]
    layout: TensorLayout


def split_model(model: Model) -> tuple[ChainStage, ...]:
    """The stages of `model`, one per element, nothing fused yet.

    Raises:
        UnsupportedModelError: Not a plain `torch.nn.Sequential`, list or tuple of callables.
    """
    if isinstance(model, nn.Sequential):
        _refuse_own_forward(model)
        return _name_stages(dict(_named_children(model)).items())
    if not isinstance(model, list | tuple):
        raise UnsupportedModelError(
            f"the model is a {type(model).__name__}, must be a torch.nn.Sequential or a list of "
            "stages; write its forward as a chain of modules, each tensor in, tensor out"
        )
    return _name_stages((str(index), part) for index, part in enumerate(model))


def children_of(model: Model) -> tuple[tuple[str, nn.Module], ...]:
    """The model's modules under the names they have in its ``state_dict``."""
    if isinstance(model, nn.Sequential):
        return tuple(_named_children(model))
    named = ((str(index), part) for index, part in enumerate(model))
    return tuple((name, part) for name, part in named if isinstance(part, nn.Module))


def _refuse_own_forward(model: nn.Sequential) -> None:
    if type(model).forward is not nn.Sequential.forward:
        raise UnsupportedModelError(
            f"the model is a {type(model).__name__}, which replaces Sequential's forward; what "
            "it does there would be skipped, so pass its stages as a list"
        )


def _named_children(model: nn.Sequential) -> Iterator[tuple[str, nn.Module]]:
    """Direct children, a module used twice listed twice (`named_children` lists it once)."""
    for name, module in model.named_modules(remove_duplicate=False):
        if name and "." not in name:
            yield name, module


def _name_stages(
    named: Iterable[tuple[str, Callable[[torch.Tensor], torch.Tensor]]],
) -> tuple[ChainStage, ...]:
    """Stages named after the model's own names; a bare number gets the kind of stage added."""
    stages = []
    for name, part in named:
        if not callable(part):
            raise UnsupportedModelError(
                f"stage {name} is a {type(part).__name__}, must be callable: tensor in, tensor out"
            )
        kind = getattr(part, "__name__", type(part).__name__)
        stages.append(ChainStage(f"{kind}{name}" if name.isdigit() else name, (part,)))
    if not stages:
        raise UnsupportedModelError("the model has no stages; it needs at least one")
    return tuple(stages)
