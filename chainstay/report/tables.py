"""Tables for the terminal: what was planned, what was measured."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

from chainstay.units import format_bytes, format_time

__all__ = ["Outcome", "comparison"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One way to run a training step, as predicted and as measured.

    Attributes:
        name: Of the way.
        predicted_peak: Bytes, from the simulator.
        measured_peak: Bytes, from the allocator.
        predicted_time: Of a step, in ns, from the simulator.
        measured_time: Of a step, in ns.
        recomputed: Forward time spent on recomputing, as a share of one whole forward.
        proof: How sure it is that nothing faster fits in the budget.
    """

    name: str
    predicted_peak: int
    measured_peak: int
    predicted_time: int
    measured_time: int
    recomputed: float
    proof: str


def comparison(title: str, budget: int, outcomes: Iterable[Outcome]) -> Table:
    """A table of `outcomes` under one budget, peaks above it in red."""
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    table.add_column("")
    for heading in ("peak\nplanned", "peak\nmeasured", "step\nplanned", "step\nmeasured"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("recomputed\nof a forward", justify="right")
    table.add_column("proof")
    for outcome in outcomes:
        table.add_row(
            outcome.name,
            format_bytes(outcome.predicted_peak),
            _within(outcome.measured_peak, budget),
            format_time(outcome.predicted_time),
            format_time(outcome.measured_time),
            f"{outcome.recomputed:.0%}",
            outcome.proof,
        )
    return table


def _within(size: int, budget: int) -> str:
    colour = "green" if size <= budget else "red"
    return f"[{colour}]{format_bytes(size)}[/]"
