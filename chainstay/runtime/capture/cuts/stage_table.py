"""Stages as a table for people.

Rich is imported where a table is made: it draws one of Python's random numbers when it is, and
`chainstay.fit` leaves those as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import StringIO
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.table import Table

_WIDTH: Final = 120
"""The columns of the text; names that do not fit are folded."""


def stage_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """Return a table of one line per stage, numbered from 0."""
    from rich.box import SIMPLE_HEAD  # noqa: PLC0415  # see above
    from rich.table import Table  # noqa: PLC0415  # see above

    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("stage", justify="right")
    table.add_column("modules", overflow="fold")
    for column in columns:
        table.add_column(column, justify="right")
    for index, row in enumerate(rows):
        table.add_row(str(index), *row)
    return table


def as_text(table: Table) -> str:
    """Return the table in plain characters."""
    from rich.console import Console  # noqa: PLC0415  # see above

    text = StringIO()
    Console(file=text, width=_WIDTH).print(table)
    return text.getvalue().rstrip()
