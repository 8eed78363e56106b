"""A model that is given as stages, tensor in, tensor out, run one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from chainstay.errors import UnsupportedModelError, type_with_article
from chainstay.runtime.capture.graph import stage_border

Model = nn.Sequential | Sequence[Callable[[torch.Tensor], torch.Tensor]]
"""Models that can be run as a chain as they are: a Sequential, a list or a tuple of stages."""

Stages = Sequence[tuple[str, Callable[[torch.Tensor], torch.Tensor]]]
"""Stages by name."""


class StageLoop(nn.Module):
    """Runs stages one after another.

    Args:
        stages: By the names they have in the ``state_dict`` of the model they are from.
        attributes: Further attributes; no stage may have such a name.

    Raises:
        UnsupportedModelError: A stage has the name of an attribute of this class.
    """

    _stages: tuple[str | Callable[[torch.Tensor], torch.Tensor], ...]  # names of modules; functions

    def __init__(self, stages: Stages, **attributes: object) -> None:
        super().__init__()
        self._stages = tuple(
            name if isinstance(stage, nn.Module) else stage for name, stage in stages
        )
        for name, value in attributes.items():
            setattr(self, name, value)
        for name, stage in stages:
            if isinstance(stage, nn.Module):
                if hasattr(self, name):
                    raise UnsupportedModelError(
                        f"stage {name!r} has the name of an attribute of {type(self).__name__}; "
                        "give it another name"
                    )
                self.add_module(name, stage)

    def run_plainly(self, activation: torch.Tensor) -> torch.Tensor:
        """All stages in order."""
        for own in self._stages:
            stage = self._modules[own] if isinstance(own, str) else own
            assert stage is not None, "it was registered"
            activation = stage_border(stage(activation))
        return activation


def named_stages(
    model: Model,
) -> tuple[tuple[str, Callable[[torch.Tensor], torch.Tensor]], ...]:
    """The stages of `model` by name, one per element.

    Raises:
        UnsupportedModelError: Not a plain `torch.nn.Sequential`, list or tuple of callables.
    """
    if isinstance(model, nn.Sequential):
        _refuse_own_behaviour(model)
        named = [
            (name, module)
            for name, module in model.named_modules(remove_duplicate=False)
            if name and "." not in name
        ]
    elif isinstance(model, list | tuple):
        named = [(str(index), stage) for index, stage in enumerate(model)]
    else:
        raise UnsupportedModelError(
            f"the model is {type_with_article(model)}, must be a torch.nn.Sequential or a list of "
            "stages; write its forward as a chain of modules, each tensor in, tensor out"
        )
    for name, stage in named:
        if not callable(stage):
            raise UnsupportedModelError(
                f"stage {name} is {type_with_article(stage)}, must be callable: tensor in, tensor "
                "out"
            )
    if not named:
        raise UnsupportedModelError("the model has no stages; it needs at least one")
    return tuple(named)


def stage_title(name: str, stage: object) -> str:
    """Return the name of a stage for people; before a bare number stands the kind of stage."""
    kind = getattr(stage, "__name__", type(stage).__name__)
    return f"{kind}{name}" if name.isdigit() else name


def _refuse_own_behaviour(model: nn.Sequential) -> None:
    """Refuse a forward and hooks of its own, which a chain of its stages would skip."""
    if type(model).forward is not nn.Sequential.forward:
        raise UnsupportedModelError(
            f"the model is {type_with_article(model)}, which replaces Sequential's forward; what "
            "it does there would be skipped, so pass its stages as a list"
        )
    hooks = {
        "forward pre-hooks": model._forward_pre_hooks,  # noqa: SLF001  # no public way to see
        "forward hooks": model._forward_hooks,  # noqa: SLF001  # likewise
        "backward pre-hooks": model._backward_pre_hooks,  # noqa: SLF001  # likewise
        "backward hooks": model._backward_hooks,  # noqa: SLF001  # likewise
    }
    found = [f"{len(registered)} {kind}" for kind, registered in hooks.items() if registered]
    if found:
        raise UnsupportedModelError(
            f"the {type(model).__name__} itself has {' and '.join(found)}, which would be "
            "skipped; register them on its stages or on the planned module"
        )
