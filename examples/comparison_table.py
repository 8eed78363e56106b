"""A table for the terminal that compares planned with measured training steps."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.table import Table

from chainstay.units import format_bytes, format_time

__all__ = ["ComparisonRow", "comparison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """One strategy for a training step, as predicted and as measured.

    Attributes:
        name: Name of the strategy.
        predicted_peak: Bytes, from the simulator.
        measured_peak: Bytes, from the allocator.
        predicted_time: Time of a step in ns, from the simulator.
        measured_time: Time of a step, in ns.
        recomputed: Forward time spent on recomputing, as a share of one whole forward.
        is_optimal: Whether nothing faster fits, as proved; ``None`` where nobody claims it.
    """

    name: str
    predicted_peak: int
    measured_peak: int
    predicted_time: int
    measured_time: int
    recomputed: float
    is_optimal: bool | None = None


def comparison(title: str, budget: int, outcomes: Iterable[ComparisonRow]) -> Table:
    """Return a table of `outcomes` under one budget, measured peaks above it in red."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        show_edge=False,
    )
    table.add_column("", no_wrap=True)
    for heading in ("peak\nplanned", "\nmeasured", "step\nplanned", "\nmeasured"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("rerun\nshare", justify="right", no_wrap=True)
    table.add_column("proved\nbest", justify="center", no_wrap=True)
    for outcome in outcomes:
        table.add_row(
            outcome.name,
            format_bytes(outcome.predicted_peak),
            _within(outcome.measured_peak, budget),
            format_time(outcome.predicted_time),
            format_time(outcome.measured_time),
            f"{outcome.recomputed:.0%}",
            {True: "yes", False: "no", None: "–"}[outcome.is_optimal],
        )
    return table


def _within(size: int, budget: int) -> str:
    colour = "green" if size <= budget else "red"
    return f"[{colour}]{format_bytes(size)}[/]"
