"""A model as a chain of stages: each takes one tensor and gives one tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError

__all__ = ["ChainStage", "Model", "children_of", "split_model"]

Model = nn.Sequential | Sequence[Callable[[torch.Tensor], torch.Tensor]]
"""What can be run as a chain; of sequences, lists and tuples are taken."""


@dataclass(frozen=True, slots=True)
class ChainStage:
    """One stage: the model's own callables, run one after another.

    Attributes:
        name: For people; the names of fused parts are joined by ``+``.
        parts: One callable, or several that must not be cut apart.
        is_loss: It is the loss behind the model's last stage.
    """

    name: str
    parts: tuple[Callable[[torch.Tensor], torch.Tensor], ...]
    is_loss: bool = False

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

    def title(self, index: int) -> str:
        """What messages call this stage, stage `index` of its chain."""
        return "the loss" if self.is_loss else f"stage {index} ({self.name})"

    def fused_with(self, successor: ChainStage) -> ChainStage:
        """This stage and the next as one."""
        return ChainStage(f"{self.name}+{successor.name}", self.parts + successor.parts)


def split_model(model: Model) -> tuple[ChainStage, ...]:
    """The stages of `model`, one per element, nothing fused yet.

    Raises:
        UnsupportedModelError: Not a plain `torch.nn.Sequential`, list or tuple of callables.
    """
    if isinstance(model, nn.Sequential):
        _refuse_own_forward(model)
        _refuse_own_hooks(model)
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


def _refuse_own_hooks(model: nn.Sequential) -> None:
    hooks = {
        "forward pre-hooks": model._forward_pre_hooks,  # noqa: SLF001  # no public way to see
        "forward hooks": model._forward_hooks,  # noqa: SLF001
        "backward pre-hooks": model._backward_pre_hooks,  # noqa: SLF001
        "backward hooks": model._backward_hooks,  # noqa: SLF001
    }
    found = [f"{len(registered)} {kind}" for kind, registered in hooks.items() if registered]
    if found:
        raise UnsupportedModelError(
            f"the {type(model).__name__} itself has {' and '.join(found)}, which would be "
            "skipped; register them on its stages or on the planned module"
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
