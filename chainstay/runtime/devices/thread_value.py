"""A value that every thread has of its own, as torch's modes are each thread's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

_T = TypeVar("_T")


class ThreadValue(threading.local, Generic[_T]):
    """A value that every thread has of its own.

    Attributes:
        now: The value in the present thread.
    """

    def __init__(self, value: _T) -> None:  # called once more by every thread
        self.now = value

    @contextmanager
    def set_to(self, value: _T) -> Iterator[None]:
        """Inside, it is `value` in this thread."""
        before, self.now = self.now, value
        try:
            yield
        finally:
            self.now = before
