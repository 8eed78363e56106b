"""Compilation of the long programs' inner loops, where numba is installed.

Only the modules that hold such loops import this one, and `engines` imports those by name
when a chain is long enough to earn the wait. Compiled code is cached on disk by numba:
beside its source, or, where that is read-only, in the user's cache directory.

Numba notices that a cached function is stale by the date of that function's own file. So
whoever edits `steps` touches the files of its callers too.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar, cast

__all__ = ["is_available", "kernel"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def is_available() -> bool:
    """Whether numba is installed (it is not imported to find out)."""
    return find_spec("numba") is not None


def kernel(function: _Function) -> _Function:
    """`function`, compiled when first called; without numba, `function` itself: slow but right."""
    if not is_available():
        return function
    njit = import_module("numba").njit
    try:
        return cast("_Function", njit(cache=True, nogil=True)(function))
    except RuntimeError:  # nowhere to keep a cache: compile once a process
        return cast("_Function", njit(nogil=True)(function))
