"""What of a model must stay as it was when a chain was extracted from it."""

from __future__ import annotations

from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, NamedTuple, Self

import torch
from torch import nn

from chainstay.errors import PlanMismatchError, UnsupportedModelError
from chainstay.runtime.settings import Reader, change_since, global_hooks, names_of

__all__ = ["Likeness", "hooks_of"]

_HOOKS: Final = {
    "_forward_hooks": "forward hooks",
    "_forward_pre_hooks": "forward pre-hooks",
    "_backward_hooks": "backward hooks",
    "_backward_pre_hooks": "backward pre-hooks",
}


_ALWAYS: Final = ("training", "_modules")


class _Known(NamedTuple):
    """A module as it was.

    Attributes:
        module: Whatever it is.
        path: Of the module in the model; empty for the model itself.
        names: Of the attributes that must stay what they were, `_ALWAYS` in front.
        read: Gives them all at once from the module's dictionary.
        before: What they were.
        forward: Its own one in front of its class's, if it had one.
    """

    module: nn.Module
    path: str
    names: tuple[str, ...]
    read: Reader
    before: tuple[Any, ...]
    forward: object

    @classmethod
    def of(cls, path: str, module: nn.Module) -> Self:
        """What `module` is like now.

        Raises:
            UnsupportedModelError: It keeps that to itself.
        """
        if isinstance(module, torch.jit.ScriptModule):
            raise UnsupportedModelError(
                f"{path} is scripted, so that nobody sees whether it changes; use the module that "
                "it was made from"
            )
        own, names = vars(module), (*_ALWAYS, *names_of(module))
        read = itemgetter(*names)
        training, children, *values = read(own)
        before = (training, dict(children), *values)
        return cls(module, path, names, read, before, own.get("forward"))


@dataclass(frozen=True, slots=True)
class Likeness:
    """The modules of a model, where they sit, their training flags and what they compute.

    Attributes:
        modules: All of them; first the model, whose own forward and hooks are around the chain.
    """

    modules: tuple[_Known, ...]

    @classmethod
    def of(cls, model: nn.Module) -> Likeness:
        """What `model` is like now.

        Raises:
            UnsupportedModelError: Of a module in it, that cannot be known.
        """
        return cls(tuple(_Known.of(path, module) for path, module in model.named_modules()))

    def require_unhooked(self) -> None:
        """Refuse to run a chain in place of its model, whose own hooks would be skipped.

        Raises:
            PlanMismatchError: The model has some.
        """
        if hooks_of(self.modules[0].module):
            raise PlanMismatchError(_hooked(self.modules[0]))

    def require_kept(self) -> None:
        """Refuse to run a chain whose model has become another.

        Raises:
            PlanMismatchError: A module was replaced, switched, set otherwise, or given a hook.
        """
        if global_hooks():
            raise PlanMismatchError(
                "there are hooks for all modules (torch.nn.modules.module), which would be skipped "
                "inside of stages; remove them, or use intercept()"
            )
        # In every step, over all modules: a call for each would take longer than all this.
        for known in self.modules:
            module, path, _, read, before, forward = known
            own = module.__dict__
            try:
                if read(own) == before and (
                    not path
                    or (
                        own.get("forward") is forward
                        and not own["_forward_hooks"]
                        and not own["_forward_pre_hooks"]
                        and not own["_backward_hooks"]
                        and not own["_backward_pre_hooks"]
                    )
                ):
                    continue
            except KeyError:
                pass  # one of its values was deleted
            raise PlanMismatchError(_change_of(known))


def _change_of(known: _Known) -> str:
    """For people: in what a module is not as it was."""
    module, path = known.module, known.path or "the model"
    training, children, *values = known.before
    present = module._modules  # noqa: SLF001  # no public way to see all
    for name in children | present:
        if children.get(name) is not present.get(name):
            return (
                f"the module {name} of {type(module).__name__} was replaced, added or removed "
                "after extraction; extract the model again"
            )
    if module.training != training:
        mode = "training" if training else "evaluation"
        return (
            f"{path} was extracted in {mode} mode and is not in it now; switch it back, or extract "
            "the model again"
        )
    if known.path and hooks_of(module):
        return _hooked(known)
    change = change_since(module, (known.names[len(_ALWAYS) :], tuple(values), known.forward, 0))
    return (
        f"{path} was changed after extraction ({change}); undo that, or extract the model again "
        "(with fit: unfit and fit it, or use by='blocks', which runs modules as they are)"
    )


def _hooked(known: _Known) -> str:
    return (
        f"{known.path or 'the model'} has {hooks_of(known.module)}, registered after extraction, "
        "which would be skipped; remove them, or use intercept()"
    )


def hooks_of(module: nn.Module) -> str:
    """The kinds of hooks that `module` has, in words; empty if none."""
    return " and ".join(kind for name, kind in _HOOKS.items() if getattr(module, name))
