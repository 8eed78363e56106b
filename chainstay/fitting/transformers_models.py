"""Needs of ``transformers`` models besides a plan: their caches off, their hooks installed.

Language models keep keys and values for generating unless told otherwise, in training, too, where
nobody reads them. Under their own gradient checkpointing they turn that off; so does a plan.

Models collect their hidden states by hooks, which they install in their first call, under a lock,
which no graph can hold. They are installed before the call is traced, if the call would install
them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from torch import nn

from chainstay.runtime.capture.blocks.host import Host
from chainstay.runtime.capture.trials.call import Call

_MODULE: Final = "transformers.utils.output_capturing"
_MARK: Final = "_output_capturing_hooks_installed"


def caching_configs(model: nn.Module) -> tuple[Any, ...]:
    """Return the distinct configurations in `model` that can have keys and values kept."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return tuple(
        {id(config): config for config in configs if hasattr(config, "use_cache")}.values()
    )


@contextmanager
def caches_off(configs: Sequence[Any]) -> Iterator[None]:
    """Inside, models of these configurations keep nothing for generating unless a call asks."""
    found = [config for config in configs if config.use_cache]
    for config in found:
        config.use_cache = False
    try:
        yield
    finally:
        for config in found:
            config.use_cache = True


@contextmanager
def output_hooks_installed(call: Call) -> Iterator[bool]:
    """Install the hooks that `call` would; take them away again if the body raises.

    Yields:
        Whether there were any to install.
    """
    transformers: Any = sys.modules.get(_MODULE)
    has_any = any(getattr(module, "_can_record_outputs", None) for module in call.model.modules())
    owners = _owners(call) if has_any and transformers is not None else []
    before = [(module, _hooks_of(module)) for owner in owners for module in owner.modules()]
    try:
        for owner in owners:
            transformers.maybe_install_capturing_hooks(owner)
        yield bool(owners)
    except BaseException:
        for module, (hooks, is_marked) in before:
            for key in [key for key in module._forward_hooks if key not in hooks]:  # noqa: SLF001  # torch has no other list of them
                del module._forward_hooks[key]  # noqa: SLF001  # torch has no other list of them
            if not is_marked:
                vars(module).pop(_MARK, None)
        raise


def _owners(call: Call) -> Sequence[nn.Module]:
    """The outermost parts of the model for which the call would install hooks."""
    with Host(call, call.device).fresh() as (shadow, run):
        run()
        marked = [name for name, module in shadow.named_modules() if _MARK in vars(module)]
    new = [name for name in marked if _MARK not in vars(call.model.get_submodule(name))]
    nested = {name for name in new for outer in new if name != outer and _is_in(name, outer)}
    return [call.model.get_submodule(name) for name in new if name not in nested]


def _is_in(name: str, outer: str) -> bool:
    return not outer or name.startswith(f"{outer}.")


def _hooks_of(module: nn.Module) -> tuple[set[int], bool]:
    return set(module._forward_hooks), _MARK in vars(module)  # noqa: SLF001  # torch has no other list of them
