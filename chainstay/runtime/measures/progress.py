"""A bar on stderr while measuring takes its time: on a terminal, and after a second only."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

_log = logging.getLogger(__name__)

_PATIENCE_S: Final = 1.0


class Progress(Protocol):
    """Told of every step of some work."""

    def __call__(self, doing: str, *, steps: int = 1, more: int = 0) -> None:
        """Note that so many `steps` of work are done, and `more` to be done than was known."""
        ...


def unseen(doing: str, *, steps: int = 1, more: int = 0) -> None:
    """Shows nothing."""


def say(text: str, *, wanted: bool) -> None:
    """Tell people in one line on stderr, if they want to know; the log has it in any case."""
    _log.info(text)
    if wanted:
        sys.stderr.write(f"chainstay: {text}\n")


@contextmanager
def progress_bar(*, wanted: bool) -> Iterator[Progress]:
    """A progress that is shown if it is wanted, and somebody may be looking."""
    if not wanted or not sys.stderr.isatty():
        yield unseen
        return
    shown = _Shown()
    try:
        yield shown
    finally:
        shown.end()


class _Shown:
    """Draws a bar once the work has taken a second."""

    def __init__(self) -> None:
        self._begin = time.monotonic()
        self._bar: Bar | None = None
        self._done = self._total = 0

    def __call__(self, doing: str, *, steps: int = 1, more: int = 0) -> None:
        self._done += steps
        self._total += more
        if self._bar is None:
            if time.monotonic() - self._begin < _PATIENCE_S:
                return
            self._bar = _drawn()
        task = self._bar.task_ids[0]
        self._bar.update(task, completed=self._done, total=self._total, description=doing)

    def end(self) -> None:
        if self._bar is not None:
            self._bar.stop()


def _drawn() -> Bar:
    from rich.console import Console  # noqa: PLC0415  # not paid for where nothing is shown
    from rich.progress import Progress as Bar  # noqa: PLC0415  # not paid for where nothing is shown

    bar = Bar(console=Console(stderr=True), transient=True)
    bar.add_task("measuring", total=None)
    bar.start()
    return bar
