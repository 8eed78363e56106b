"""Some of what traced code reads has no guard of TorchDynamo; it is one here."""

from __future__ import annotations

import os
from typing import Any, Final

import torch
from torch._guards import TracingContext
from torch.nn.modules import module
from torch.torch_version import TorchVersion

GLOBAL_HOOKS: Final = (
    module._global_forward_pre_hooks,  # noqa: SLF001  # no public way to see them
    module._global_forward_hooks,  # noqa: SLF001  # likewise
    module._global_backward_pre_hooks,  # noqa: SLF001  # likewise
    module._global_backward_hooks,  # noqa: SLF001  # likewise
)
"""The tables of hooks on all modules, by number."""


def environment() -> str:
    """Return the variables of the process's environment."""
    return str(sorted(os.environ.items()))


def unguarded(args: tuple[Any, ...], *, traced_in: str | None) -> str:
    """Return what TorchDynamo has no guards for, as a text.

    That is the numbers of all global module hooks, each of which torch gives out once; and the
    variables of the environment, where they are not those that the function was traced in. On torch
    2.6 it is types of parameters, too, at which that looks again only if a module got another
    parameter, and whether autocast has its cache.

    Args:
        args: The arguments of a call.
        traced_in: The environment of the first trace that read any; ``None`` where none did.
    """
    hooks = str([list(table) for table in GLOBAL_HOOKS]) if any(GLOBAL_HOOKS) else ""
    present = traced_in if traced_in is None else environment()
    told = hooks if present == traced_in else f"{hooks} {present}"
    if not _IS_BLIND or not args or not isinstance(args[0], module.Module):
        return told
    held = (*args[0].parameters(), *args[0].buffers())
    kinds = hash(tuple((tensor.dtype, tensor.requires_grad) for tensor in held))
    return f"{told} {kinds} {torch.is_autocast_cache_enabled()}"


_IS_BLIND: Final = TorchVersion(torch.__version__) < "2.7"


def has_read_environment() -> bool:
    """Whether what TorchDynamo has just traced reads variables of the environment.

    ``os.getenv(name)`` and ``name in os.environ`` leave no guard; functions of the module `os` are
    seldom traced but for these. torch 2.6 does not tell.
    """
    context = TracingContext.try_get()
    traced = getattr(context, "traced_code", None) or ()
    return any(code.co_filename == os.getenv.__code__.co_filename for code in traced)
