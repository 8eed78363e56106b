"""What is printed: results on stdout, all else on stderr; on any terminal, in any encoding.

Bars and spinners are for people who look: they are drawn on stderr, if that is a terminal.
"""

from __future__ import annotations

import codecs
import io
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

__all__ = [
    "bar",
    "busy",
    "notes",
    "plain",
    "plain_table",
    "results",
    "say",
    "show",
    "survive_any_encoding",
    "tell",
]

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
"""What to print where a terminal does not know the character."""

_LEAST_COLUMNS: Final = 80
"""In less, tables would leave out what they are for."""


def survive_any_encoding() -> None:
    """Let stdout and stderr print what comes nearest to characters that they do not have."""
    codecs.register_error("chainstay-nearest", _nearest)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="chainstay-nearest")


def _nearest(error: UnicodeError) -> tuple[str | bytes, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    found = error.object[error.start : error.end]
    return "".join(_NEAREST.get(each, "?") for each in found), error.end


def results() -> Console:
    """For what was asked for."""
    return Console(highlight=False, soft_wrap=False)


def notes() -> Console:
    """For what is said beside that."""
    return Console(stderr=True, highlight=False)


def show(table: Table) -> None:
    """Print a table; where the terminal is too narrow for it, that breaks its lines."""
    console = results()
    console.print(table, width=max(console.width, _LEAST_COLUMNS))


def say(text: str, *, style: str = "", wrap: bool = True) -> None:
    """Print `text` on stdout as it is; wrapped to the terminal, unless it is to be copied."""
    results().print(Text(plain(text), style=style), soft_wrap=not wrap)


def tell(text: str, *, style: str = "") -> None:
    """Print `text` on stderr; lines are left whole where nobody looks."""
    console = notes()
    console.print(Text(plain(text), style=style), soft_wrap=not console.is_terminal)


def plain(text: str) -> str:
    """`text` without what would steer a terminal: names come from files that anybody wrote."""
    return "".join(each if each.isprintable() or each == "\n" else "?" for each in text)


def plain_table(title: str = "") -> Table:
    """An empty table in the house style."""
    return Table(
        title=Text(plain(title), style="bold") if title else None,
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        show_edge=False,
    )


@contextmanager
def busy(doing: str) -> Iterator[Callable[[], None]]:
    """A spinner while something of unknown length is done; what is given ends it earlier."""
    console = notes()
    if not console.is_terminal:
        yield lambda: None
        return
    with console.status(Text(plain(doing)), spinner=_spinner(console)) as status:
        yield status.stop


@contextmanager
def bar(doing: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar; what is given is called after each of `total` steps, with what comes next."""
    console = notes()
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
        task = progress.add_task(plain(doing), total=total)

        def step(following: str) -> None:
            progress.update(task, advance=1, description=plain(following))

        yield step


def _spinner(console: Console) -> str:
    return "dots" if console.encoding.startswith("utf") else "line"
