"""A model as a chain of stages: each takes a state and gives the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError
from chainstay.runtime.states import State

__all__ = [
    "ChainStage",
    "Children",
    "Model",
    "Part",
    "Place",
    "TensorPart",
    "put_at",
    "split_model",
    "tensor_at",
]

Model = nn.Sequential | Sequence[Callable[[torch.Tensor], torch.Tensor]]
"""What can be run as a chain as it is; of sequences, lists and tuples are taken."""

Place = tuple[nn.Module, str]
"""Where a stage reads a parameter or a buffer, whatever is there: a module and a name."""


def tensor_at(place: Place) -> torch.Tensor | None:
    """What is at `place` now; ``None`` if nothing is.

    It is asked several times for each stage of a step, and a module's own way to an attribute
    is slow.
    """
    module, name = place
    tensor: torch.Tensor | None = module._parameters.get(name)  # noqa: SLF001  # no public way is fast
    if tensor is None:
        tensor = module._buffers.get(name)  # noqa: SLF001  # likewise
    return getattr(module, name, None) if tensor is None else tensor


def put_at(place: Place, buffer: torch.Tensor) -> None:
    """Make `buffer` what is at `place`."""
    module, name = place
    if name in module._buffers:  # noqa: SLF001  # no public way is fast
        module._buffers[name] = buffer  # noqa: SLF001  # likewise
    else:
        setattr(module, name, buffer)


class Part(Protocol):
    """What a stage runs."""

    def __call__(self, state: State, shared: State) -> State:
        """The next state.

        Args:
            state: What the part before gives.
            shared: Tensors that all stages may read; none has a gradient.
        """
        ...

    def modules(self) -> Iterator[nn.Module]:
        """Modules whose training flags it obeys, in a fixed order."""
        ...

    def places(self) -> Iterator[Place]:
        """Where it reads parameters and buffers, in a fixed order."""
        ...


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A callable of the user's: one tensor in, one tensor out.

    Attributes:
        function: A module, or anything that can be called.
    """

    function: Callable[[torch.Tensor], torch.Tensor]

    def __call__(self, state: State, shared: State) -> State:  # noqa: ARG002  # it knows none
        """As `Part`."""
        (activation,) = state
        return (self.function(activation),)

    def modules(self) -> Iterator[nn.Module]:
        """Every module inside, each once."""
        if isinstance(self.function, nn.Module):
            yield from self.function.modules()

    def places(self) -> Iterator[Place]:
        """All parameters and buffers of its modules."""
        for module in self.modules():
            names = (*module._parameters.keys(), *module._buffers.keys())  # noqa: SLF001  # fast
            for name in names:
                yield module, name


@dataclass(frozen=True, slots=True)
class ChainStage:
    """One stage: parts that run one after another.

    Attributes:
        name: For people; the names of fused parts are joined by ``+``.
        parts: One, or several that must not be cut apart.
        is_loss: It is the loss behind the model's last stage.
    """

    name: str
    parts: tuple[Part, ...]
    is_loss: bool = False

    def __call__(self, state: State, shared: State = ()) -> State:
        """The next state; what passes through is the same object."""
        for part in self.parts:
            state = part(state, shared)
        return state

    def modules(self) -> Iterator[nn.Module]:
        """Modules whose training flags it obeys, each once per part that uses it."""
        for part in self.parts:
            yield from part.modules()

    def places(self) -> Iterator[Place]:
        """Where it reads parameters and buffers."""
        for part in self.parts:
            yield from part.places()

    def tensors(self) -> Iterator[tuple[nn.Module, str, torch.Tensor]]:
        """What is at its places now, with the places."""
        for module, name in self.places():
            tensor = tensor_at((module, name))
            if tensor is not None:
                yield module, name, tensor

    @property
    def is_sharded(self) -> bool:
        """Whether the parameters that it uses are not those at its places."""
        return any(getattr(part, "is_sharded", False) for part in self.parts)

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


@dataclass(frozen=True, slots=True)
class Children:
    """A model's own modules, for a module that stands in its place.

    Attributes:
        named: Under the names they have in its ``state_dict``.
        is_training: The model's own training flag, which its stages need not share.
        has_functions: It has stages that are no modules, and may want gradients unseen.
    """

    named: tuple[tuple[str, nn.Module], ...]
    is_training: bool
    has_functions: bool

    @classmethod
    def of(cls, model: Model) -> Children:
        """Those of `model`."""
        if isinstance(model, nn.Sequential):
            return cls(tuple(_named_children(model)), model.training, has_functions=False)
        named = tuple(
            (str(index), part) for index, part in enumerate(model) if isinstance(part, nn.Module)
        )
        is_training = any(module.training for _, part in named for module in part.modules())
        return cls(named, is_training, has_functions=len(named) < len(model))


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
        title = f"{kind}{name}" if name.isdigit() else name
        stages.append(ChainStage(title, (TensorPart(part),)))
    if not stages:
        raise UnsupportedModelError("the model has no stages; it needs at least one")
    return tuple(stages)
