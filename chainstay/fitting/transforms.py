"""Transforms under which a fitted model is not called."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from chainstay.errors import UnsupportedModelError


def require_no_transform(name: str) -> None:
    """Refuse what may change results, which a recomputation would miss; torch's own look on.

    Raises:
        UnsupportedModelError: A transform of ``torch.func`` or a mode of the user's is active.
    """
    found = ""
    if torch._C._functorch.peek_interpreter_stack() is not None:  # noqa: SLF001  # no public way
        found = "a transform of torch.func"
    elif torch._C._len_torch_dispatch_stack():  # noqa: SLF001  # likewise
        modes = map(type, _get_current_dispatch_mode_stack())
        names = [mode.__name__ for mode in modes if not mode.__module__.startswith("torch.")]
        found = f"the dispatch mode {names[0]}" if names else ""
    if found:
        raise UnsupportedModelError(
            f"{name} is called under {found}, which what its plan runs again would miss; leave "
            "that out, or call chainstay.unfit(model)"
        )
