"""A chain as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from chainstay.units import format_bytes

__all__ = ["StageRow", "as_table", "as_text"]

_WIDTH: Final = 120
"""Of the text, in columns; names that do not fit are folded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """A row of the table of stages.

    Attributes:
        name: The modules that it runs.
        operators: How many it has, if known.
        parameters: Numbers in the parameters that it reads.
        tensors: How many it passes on.
        boundary_bytes: The bytes of these tensors.
        saved_bytes: What autograd saves in it, if known.
    """

    name: str
    operators: int | None
    parameters: int
    tensors: int
    boundary_bytes: int
    saved_bytes: int | None


def as_table(model: str, rows: Sequence[StageRow]) -> Table:
    """One line per stage."""
    table = Table(box=SIMPLE_HEAD, title=f"{model} in {len(rows)} stages", title_justify="left")
    table.add_column("stage", justify="right")
    table.add_column("modules", overflow="fold")
    for title in ("operators", "parameters", "passes on", "saves"):
        table.add_column(title, justify="right")
    for index, row in enumerate(rows):
        passed = f"{row.tensors} of {format_bytes(row.boundary_bytes)}"
        table.add_row(
            str(index),
            row.name,
            "" if row.operators is None else str(row.operators),
            f"{row.parameters:,}",
            passed,
            "" if row.saved_bytes is None else format_bytes(row.saved_bytes),
        )
    return table


def as_text(table: Table) -> str:
    """The table in plain characters."""
    text = StringIO()
    Console(file=text, width=_WIDTH).print(table)
    return text.getvalue().rstrip()
