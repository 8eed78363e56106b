"""The ways to train within a budget that were weighed against each other, for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chainstay.timetable import Time
from chainstay.units import format_bytes, format_time


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One way.

    Attributes:
        name: ``"keep all"``, ``"recompute"``, ``"join"``, ``"offload"`` or ``"combined"``.
        makespan: The time of a step by its best plan, in ns; ``None`` if there is none.
        peak_bytes: On the device; of keeping all, whether that fits or not.
        host_bytes: The most in host memory.
        remark: Why it was chosen, or why not.
        is_chosen: Whether the model trains by it.
        is_tried: Whether a plan was looked for; the table leaves out what was not.
    """

    name: str
    makespan: Time | None
    peak_bytes: int | None
    host_bytes: int
    remark: str
    is_chosen: bool = False
    is_tried: bool = True


def table_of(alternatives: Sequence[Alternative]) -> str:
    """A line for each that was tried, the chosen one marked.

    Example:
        >>> print(table_of([
        ...     Alternative(name="keep all", makespan=None, peak_bytes=9000, host_bytes=0,
        ...                 remark="does not fit"),
        ...     Alternative(name="recompute", makespan=12000, peak_bytes=500, host_bytes=0,
        ...                 remark="the fastest", is_chosen=True)]))
           way        step   peak       host
           keep all   --     8.79 KiB   --    does not fit
        *  recompute  12 µs  500 bytes  --    the fastest
    """
    rows = [
        ("", "way", "step", "peak", "host", ""),
        *(_cells(alternative) for alternative in alternatives if alternative.is_tried),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join(
            (*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=True)), row[-1])
        ).rstrip()
        for row in rows
    )


def _cells(alternative: Alternative) -> tuple[str, ...]:
    return (
        "*" if alternative.is_chosen else "",
        alternative.name,
        "--" if alternative.makespan is None else format_time(alternative.makespan),
        "--" if alternative.peak_bytes is None else format_bytes(alternative.peak_bytes),
        format_bytes(alternative.host_bytes) if alternative.host_bytes else "--",
        alternative.remark,
    )
