"""Kernels: Python functions that are compiled when that is worth the wait.

Loading numba takes half a second, and the first time on a machine it compiles for ten more.
So kernels run as they are written inside ``interpreted()``; the programs that have no other
engine for short chains use ``at_first_interpreted()``, which ends once a process has spent
about as long on it. Without numba all kernels always run as written: slow but right.

Compiled code is cached on disk, in a folder named by a hash of the source of all of
`chainstay.dp`: beside that source, or, where it is read-only, in the user's cache folder. numba
itself would notice a change of a function's own file only, and not of the functions it calls.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, cached_property, update_wrapper
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import FunctionType
from typing import Any, Final, TypeVar, cast

_Function = TypeVar("_Function", bound=Callable[..., Any])

_log = logging.getLogger(__name__)

COMPILING: Final = "the solvers are compiled, which takes a minute or two, once on a machine"
"""What people are told before the first compilation."""

_TELL: Final = ContextVar[Callable[[str], None]]("tell", default=_log.info)
_INTERPRETED: Final = ContextVar("interpreted", default=False)
_ALLOWANCE_S: Final = 2.0
"""Seconds that a process may spend on interpreted kernels before it compiles them."""
_spent_s: Final = [0.0]
_compiled: Final[list[str]] = []
"""Kernels that this process has loaded or compiled."""


def is_available() -> bool:
    """Return whether numba is installed (it is not imported to find out)."""
    return find_spec("numba") is not None


def is_compiled() -> bool:
    """Return whether numba, if it is there, has compiled kernels of this source on this machine."""
    return not is_available() or cache_folder().is_dir() or bool(os.environ.get("NUMBA_CACHE_DIR"))


def is_warm() -> bool:
    """Return whether this process has loaded numba already, and kernels now run compiled."""
    return bool(_compiled) and not _INTERPRETED.get()


def kernel(function: _Function, *, uncompiled: _Function | None = None) -> _Function:
    """Return `function` as something that can also be compiled; it may call other kernels.

    Args:
        function: The code to compile.
        uncompiled: The same in other words, which are quicker as long as nothing is compiled.
    """
    assert isinstance(function, FunctionType)
    as_written = uncompiled or function
    if not is_available():
        return as_written
    return cast("_Function", _Kernel(function, as_written))


@contextmanager
def compilation_told(tell: Callable[[str], None]) -> Iterator[None]:
    """Call `tell` inside this context before the first compilation on this machine."""
    token = _TELL.set(tell)
    try:
        yield
    finally:
        _TELL.reset(token)


@contextmanager
def interpreted() -> Iterator[None]:
    """Run kernels as they are written inside this context."""
    token = _INTERPRETED.set(True)
    try:
        yield
    finally:
        _INTERPRETED.reset(token)


@contextmanager
def at_first_interpreted(*, when: bool) -> Iterator[None]:
    """Run kernels as written, if `when`, until this process has spent `_ALLOWANCE_S` on it."""
    if not when or _spent_s[0] > _ALLOWANCE_S:
        yield
        return
    start = time.perf_counter()
    with interpreted():
        yield
    _spent_s[0] += time.perf_counter() - start


@cache
def cache_folder() -> Path:
    """Return the folder for compiled kernels: another one for every state of the source."""
    home = Path(__file__).parent
    digest = hashlib.sha256()
    for source in sorted(home.rglob("*.py")):
        digest.update(source.read_bytes())
    beside = home / "__pycache__"
    if os.access(beside if beside.is_dir() else home, os.W_OK):
        parent = beside
    else:
        parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chainstay"
    return parent / f"kernels-{digest.hexdigest()[:16]}"


class _Kernel:
    """A function and its compiled copy."""

    def __init__(self, function: FunctionType, as_written: Callable[..., object]) -> None:
        self._function, self._as_written = function, as_written
        update_wrapper(self, function)

    def __call__(self, *arguments: object) -> object:
        if _INTERPRETED.get():
            return self._as_written(*arguments)
        return self._compiled(*arguments)

    @cached_property
    def _compiled(self) -> Callable[..., object]:
        """Compiled code can call compiled code only: this copy sees the copies of others."""
        function = self._function
        if not (_compiled or is_compiled()):
            _TELL.get()(COMPILING)
        _compiled.append(function.__name__)
        seen = {
            name: value._compiled if isinstance(value, _Kernel) else value  # noqa: SLF001  # ours
            for name, value in function.__globals__.items()
            if name in function.__code__.co_names
        }
        copy = FunctionType(function.__code__, seen, function.__name__, function.__defaults__)
        update_wrapper(copy, function)
        numba = import_module("numba")
        set_by_user = numba.config.CACHE_DIR
        try:
            numba.config.CACHE_DIR = set_by_user or str(cache_folder())
            return cast("Callable[..., object]", numba.njit(cache=True, nogil=True)(copy))
        except (OSError, RuntimeError):  # nowhere to keep a cache: compile once a process
            return cast("Callable[..., object]", numba.njit(nogil=True)(copy))
        finally:
            numba.config.CACHE_DIR = set_by_user
