"""What people change in a model between planning and training, and how to undo it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import nn

from chainstay.runtime import PlannedChain

__all__ = ["EDITS", "Edit", "NotHereError", "with_weight"]

Undo = Callable[[], None]
Edit = Callable[[nn.Module], Undo]


class NotHereError(Exception):
    """The model has nothing that such a change could be made to."""


def _inner(model: nn.Module, wanted: Callable[[nn.Module], bool]) -> tuple[nn.Module, str]:
    """The middle one of the modules inside that are wanted: its parent and name."""
    found = [
        (parent, name)
        for parent in model.modules()
        for name, child in parent.named_children()
        if wanted(child)
    ]
    if not found:
        raise NotHereError
    return found[len(found) // 2]


def _has_weight(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | nn.Conv2d) and module.weight.requires_grad


def _is(*kinds: type[nn.Module]) -> Callable[[nn.Module], bool]:
    return lambda module: isinstance(module, kinds)


def with_weight(model: nn.Module) -> Any:
    parent, name = _inner(model, _has_weight)
    return getattr(parent, name)


def replaces_layer(model: nn.Module) -> Undo:
    parent, name = _inner(model, _has_weight)
    old: Any = getattr(parent, name)
    torch.manual_seed(3)
    settings: dict[str, Any] = {"bias": old.bias is not None}
    if isinstance(old, nn.Conv2d):
        settings |= {"kernel_size": old.kernel_size, "padding": old.padding}
        new: nn.Module = nn.Conv2d(old.in_channels, old.out_channels, **settings)
    else:
        new = nn.Linear(old.in_features, old.out_features, **settings)
    parent._modules[name] = new
    return lambda: parent._modules.update({name: old})


def replaces_activation(model: nn.Module) -> Undo:
    parent, name = _inner(model, _is(nn.ReLU, nn.Tanh))
    old = getattr(parent, name)
    parent._modules[name] = nn.Sigmoid()
    return lambda: parent._modules.update({name: old})


def appends_layer(model: nn.Module) -> Undo:
    if not isinstance(model, nn.Sequential | PlannedChain):
        raise NotHereError
    model.add_module("last", nn.Sigmoid())

    def undo() -> None:
        del model.last

    return undo


def reassigns_parameter(model: nn.Module) -> Undo:
    module = with_weight(model)
    old = module.weight
    module.weight = nn.Parameter(old.detach() * 2)
    return lambda: setattr(module, "weight", old)


def reassigns_data(model: nn.Module) -> Undo:
    module = with_weight(model)
    old = module.weight.data
    module.weight.data = old * 2
    return lambda: setattr(module.weight, "data", old)


def reassigns_buffer(model: nn.Module) -> Undo:
    parent, name = _inner(model, _is(nn.BatchNorm1d, nn.BatchNorm2d))
    norm = getattr(parent, name)
    old = norm.running_mean
    norm.running_mean = old + 1
    return lambda: setattr(norm, "running_mean", old)


def freezes(model: nn.Module) -> Undo:
    weight = with_weight(model).weight
    weight.requires_grad_(False)  # noqa: FBT003  # torch's own signature
    return lambda: weight.requires_grad_(True)  # noqa: FBT003  # likewise


def widens_type(model: nn.Module) -> Undo:
    model.double()

    def undo() -> None:
        model.float()

    return undo


def hooks_forward(model: nn.Module) -> Undo:
    parent, name = _inner(model, _has_weight)
    module: nn.Module = getattr(parent, name)
    return module.register_forward_hook(lambda _module, _given, output: output * 2).remove


def hooks_backward(model: nn.Module) -> Undo:
    parent, name = _inner(model, _has_weight)

    def double(_: object, given: tuple[Any, ...], __: object) -> tuple[Any, ...]:
        return tuple(value if value is None else value * 2 for value in given)

    module: nn.Module = getattr(parent, name)
    return module.register_full_backward_hook(double).remove


def hooks_gradient(model: nn.Module) -> Undo:
    weight: torch.Tensor = with_weight(model).weight
    handle: Any = weight.register_hook(lambda gradient: gradient * 2)

    def undo() -> None:
        handle.remove()

    return undo


def hooks_everything(model: nn.Module) -> Undo:  # noqa: ARG001  # every module is hooked
    """A hook for all modules, as profilers have them."""
    return nn.modules.module.register_module_forward_hook(
        lambda module, _, output: output * 2 if _has_weight(module) else None
    ).remove


def drops_more(model: nn.Module) -> Undo:
    parent, name = _inner(model, _is(nn.Dropout))
    drop = getattr(parent, name)
    old = drop.p
    drop.p = 0.6
    return lambda: setattr(drop, "p", old)


def remembers_more(model: nn.Module) -> Undo:
    parent, name = _inner(model, _is(nn.BatchNorm1d, nn.BatchNorm2d))
    norm = getattr(parent, name)
    old = norm.momentum
    norm.momentum = 0.5
    return lambda: setattr(norm, "momentum", old)


def parametrizes(model: nn.Module) -> Undo:
    module = with_weight(model)

    class Doubled(nn.Module):
        def forward(self, weight: torch.Tensor) -> torch.Tensor:
            return weight * 2

    parametrize = nn.utils.parametrize
    parametrize.register_parametrization(module, "weight", Doubled())
    return lambda: _unparametrize(module)


def _unparametrize(module: Any) -> None:
    nn.utils.parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)


def replaces_forward(model: nn.Module) -> Undo:
    module = with_weight(model)
    plain = module.forward
    module.forward = lambda value: plain(value) * 2
    return lambda: delattr(module, "forward")


def evaluates_part(model: nn.Module) -> Undo:
    parent, name = _inner(model, _is(nn.Dropout, nn.BatchNorm1d, nn.BatchNorm2d))
    module = getattr(parent, name)
    module.eval()

    def undo() -> None:
        module.train()

    return undo


EDITS: Final[Mapping[str, Edit]] = {
    "a layer is replaced": replaces_layer,
    "an activation is replaced": replaces_activation,
    "a layer is appended": appends_layer,
    "a parameter is re-assigned": reassigns_parameter,
    "a parameter's data are re-assigned": reassigns_data,
    "a buffer is re-assigned": reassigns_buffer,
    "requires_grad is flipped": freezes,
    "the type is another": widens_type,
    "a forward hook is added": hooks_forward,
    "a backward hook is added": hooks_backward,
    "a gradient hook is added": hooks_gradient,
    "a global hook is added": hooks_everything,
    "dropout is raised": drops_more,
    "a momentum is changed": remembers_more,
    "a parametrization is added": parametrizes,
    "a layer's forward is replaced": replaces_forward,
    "a part is switched to evaluation": evaluates_part,
}
