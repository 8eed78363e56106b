"""Printing: results on stdout, all else on stderr; on any terminal, in any encoding.

Progress bars and spinners are drawn on stderr, if that is a terminal.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from chainstay.units import format_bytes

_NEAREST: Final = {
    "…": ".",
    "–": "-",
    "—": "-",
    "×": "x",
    "µ": "u",
    "√": "sqrt",
    "→": "->",
    "≤": "<=",
    "’": "'",
    "•": "*",
    "·": ".",
}
"""Replacements for characters that a terminal does not have."""

_LEAST_COLUMNS: Final = 80
"""Least width of a table: in less, columns would be cut."""


def use_nearest_characters() -> None:
    """Let stdout and stderr replace characters that they do not have by similar ones."""
    codecs.register_error("chainstay-nearest", _nearest)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="chainstay-nearest")


def _nearest(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(_NEAREST.get(char, "?") for char in found), error.end


class _Output(Console):
    """Stdout, whose reader may leave, as head does, without an end to what the command does."""

    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def output_console() -> Console:
    """Return the console for results: stdout."""
    return _Output(highlight=False, soft_wrap=False)


def error_console() -> Console:
    """Return the console for messages: stderr."""
    return Console(stderr=True, highlight=False)


def print_table(table: Table) -> None:
    """Print a table; where the terminal is too narrow for it, that breaks its lines."""
    console = output_console()
    console.width = max(console.width, _LEAST_COLUMNS)
    console.print(table)


def print_document(text: str) -> None:
    """Print a JSON document on stdout as it is."""
    output_console().out(text)


def print_result(text: str, *, style: str = "", wrap: bool = True) -> None:
    """Print `text` on stdout as it is; wrapped to the terminal, unless it is to be copied."""
    output_console().print(Text(printable(text), style=style), soft_wrap=not wrap)


def print_note(text: str) -> None:
    """Print `text` on stderr; lines are not wrapped if that is no terminal."""
    console = error_console()
    console.print(Text(printable(text)), soft_wrap=not console.is_terminal)


def printable(text: str) -> str:
    """Return `text` without control characters: names come from files that anybody wrote."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def short_bytes(size: int) -> str:
    """Return `size` with three digits, for tables in which sizes are compared."""
    text, _, unit = format_bytes(size).partition(" ")
    if unit.startswith("byte"):
        return f"{text} B"
    number = float(text)
    digits = 2 if number < 10 else 1 if number < 100 else 0
    return f"{number:.{digits}f} {unit}"


def new_table(title: str = "") -> Table:
    """Return an empty table."""
    return Table(
        title=Text(printable(title), style="bold") if title else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        show_edge=False,
    )


@contextmanager
def spinner(activity: str) -> Iterator[Callable[[], None]]:
    """Show a spinner while something of unknown length is done; the result stops it early."""
    console = error_console()
    if not console.is_terminal:
        yield lambda: None
        return
    with console.status(Text(printable(activity)), spinner=_spinner(console)) as status:
        yield status.stop


@contextmanager
def progress_bar(activity: str, total: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar; call the result after each of `total` steps, naming the next."""
    console = error_console()
    if not console.is_terminal:
        yield lambda _: None
        return
    columns = (
        SpinnerColumn(_spinner(console)),
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(printable(activity), total=total)

        def step(following: str) -> None:
            progress.update(task, advance=1, description=printable(following))

        yield step


def _spinner(console: Console) -> str:
    return "dots" if console.encoding.startswith("utf") else "line"
