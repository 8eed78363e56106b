"""A table for the terminal that compares planned with measured training steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from chainstay.units import format_bytes, format_time

__all__ = ["ComparisonRow", "comparison"]

_UNKNOWN = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One way to run a training step, as planned and as measured.

    Attributes:
        name: Name of the way.
        measured_peak: Bytes, from the allocator.
        measured_time: Time of a step, in ns.
        predicted_peak: Bytes, from the plan; ``None`` where nothing was planned.
        predicted_time: Time of a step in ns, from the plan; ``None`` where nothing was planned.
        is_optimal: Whether nothing faster fits, as proved; ``None`` where nobody claims it.
    """

    name: str
    measured_peak: int
    measured_time: int
    predicted_peak: int | None = None
    predicted_time: int | None = None
    is_optimal: bool | None = None


def comparison(title: str, budget: int, plain_time: int, rows: Iterable[ComparisonRow]) -> Table:
    """Return a table of `rows` under one budget, measured peaks above it in red.

    Extra time is in percent of `plain_time`, the measured time of plain training in ns.
    """
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        show_edge=False,
    )
    table.add_column("", no_wrap=True)
    headings = ("peak\nplanned", "\nmeasured", "step\nplanned", "\nmeasured", "extra\ntime")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("proved\nbest", justify="center", no_wrap=True)
    for row in rows:
        table.add_row(
            row.name,
            _UNKNOWN if row.predicted_peak is None else format_bytes(row.predicted_peak),
            _within(row.measured_peak, budget),
            _UNKNOWN if row.predicted_time is None else format_time(row.predicted_time),
            format_time(row.measured_time),
            f"{row.measured_time / plain_time - 1:+.1%}",
            {True: "yes", False: "no", None: _UNKNOWN}[row.is_optimal],
        )
    return table


def _within(size: int, budget: int) -> str:
    colour = "green" if size <= budget else "red"
    return f"[{colour}]{format_bytes(size)}[/]"
