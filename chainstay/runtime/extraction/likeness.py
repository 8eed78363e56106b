"""What of a model must stay as it was when a chain was extracted from it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from chainstay.errors import PlanMismatchError
from chainstay.runtime.settings import Settings, change_since, global_hooks, settings_of, values_of

__all__ = ["Likeness", "hooks_of"]


@dataclass(frozen=True, slots=True)
class Likeness:
    """The modules of a model, where they sit, their training flags and settings.

    Attributes:
        places: Parent, name and child, for every module but the model itself.
        training: Path, module and training flag of every module.
        settings: Path, module and settings of every module; of the model itself, whose forward
            and hooks are around the chain, its values.
    """

    places: tuple[tuple[nn.Module, str, nn.Module], ...]
    training: tuple[tuple[str, nn.Module, bool], ...]
    settings: tuple[tuple[str, nn.Module, Settings], ...]

    @classmethod
    def of(cls, model: nn.Module) -> Likeness:
        """What `model` is like now."""
        modules = tuple(model.named_modules())
        places = tuple(
            (parent, name, child)
            for _, parent in modules
            for name, child in parent.named_children()
        )
        return cls(
            places,
            tuple((path, module, module.training) for path, module in modules),
            tuple((path, module, _settings_at(path, module)) for path, module in modules),
        )

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
        for parent, name, child in self.places:
            if parent._modules.get(name) is not child:  # noqa: SLF001  # getattr is ten times slower
                raise PlanMismatchError(
                    f"the module {name} of {type(parent).__name__} was replaced after extraction; "
                    "extract the model again"
                )
        for path, module, flag in self.training:
            # In every step, over all modules: a call for each would take longer than all this.
            if (
                module.training is flag
                and not module._forward_hooks  # noqa: SLF001  # no public way to see
                and not module._forward_pre_hooks  # noqa: SLF001
                and not module._backward_hooks  # noqa: SLF001
                and not module._backward_pre_hooks  # noqa: SLF001
            ):
                continue
            if module.training != flag:
                mode = "training" if flag else "evaluation"
                raise PlanMismatchError(
                    f"{path or 'the model'} was extracted in {mode} mode and is not in it now; "
                    "switch it back, or extract the model again"
                )
            if hooks_of(module):
                raise PlanMismatchError(
                    f"{path or 'the model'} has {hooks_of(module)}, registered after extraction, "
                    "which would be skipped; remove them, or use intercept()"
                )
        for path, module, before in self.settings:
            if before != _settings_at(path, module):
                raise PlanMismatchError(
                    f"{path or 'the model'} was changed after extraction ("
                    f"{change_since(module, before)}); undo that, or extract the model again (with "
                    "fit: unfit and fit it, or use by='blocks', which runs modules as they are)"
                )


def _settings_at(path: str, module: nn.Module) -> Settings:
    return settings_of(module) if path else (values_of(module), None, 0)


def hooks_of(module: nn.Module) -> str:
    """The kinds of hooks that `module` has, in words; empty if none."""
    kinds = {
        "forward hooks": module._forward_hooks,  # noqa: SLF001  # no public way to see
        "forward pre-hooks": module._forward_pre_hooks,  # noqa: SLF001
        "backward hooks": module._backward_hooks,  # noqa: SLF001
        "backward pre-hooks": module._backward_pre_hooks,  # noqa: SLF001
    }
    return " and ".join(kind for kind, hooks in kinds.items() if hooks)
