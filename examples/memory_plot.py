"""Plots of memory over time with matplotlib: planned against measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from pathlib import Path
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chainstay.validation.simulate import Replay

__all__ = ["MemoryPanel", "plot_memory"]

_MEBIBYTE = 2**20
_TITLE_COLUMNS = 120
_CATEGORIES = (
    ("activations", "#4477aa"),
    ("saved for backward", "#66ccee"),
    ("gradients", "#ccbb44"),
    ("while an operation runs", "#dddddd"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPanel:
    """One model's memory over one training step.

    Attributes:
        title: Title above the panel.
        planned: Simulation of the schedule.
        plain_peak_bytes: Bytes that plain training needs.
        budget: Bytes.
        measured_times: Times at which memory was measured, ascending, in any unit; may be empty.
        measured_bytes: Bytes in use at these times.
    """

    title: str
    planned: Replay
    plain_peak_bytes: int
    budget: int
    measured_times: Sequence[float]
    measured_bytes: Sequence[int]


def plot_memory(panels: Sequence[MemoryPanel], path: Path) -> None:
    """Write an image with one row per panel to `path` (PNG or SVG, by its suffix).

    Time is shown as a share of the step, so that a plan and a measurement under a memory
    profiler, which slows every operation down, can be laid over each other.
    """
    figure = Figure(figsize=(10, 4.2 * len(panels)), layout="constrained", dpi=130)
    for axes, panel in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        _draw(axes, panel)
    figure.savefig(path)


def _draw(axes: Axes, panel: MemoryPanel) -> None:
    timeline = panel.planned.timeline
    edges = [snapshot.start for snapshot in timeline] + [panel.planned.makespan]
    shares = [100 * edge / max(panel.planned.makespan, 1) for edge in edges]
    layers = [
        [snapshot.activation_bytes for snapshot in timeline],
        [snapshot.saved_bytes for snapshot in timeline],
        [snapshot.gradient_bytes for snapshot in timeline],
        [max(0, snapshot.during_bytes - snapshot.after_bytes) for snapshot in timeline],
    ]
    axes.stackplot(
        list(chain.from_iterable(pairwise(shares))),
        [[value / _MEBIBYTE for value in _doubled(layer)] for layer in layers],
        labels=[f"planned: {name}" for name, _ in _CATEGORIES],
        colors=[colour for _, colour in _CATEGORIES],
        linewidth=0,
    )
    if panel.measured_times:
        first, last = panel.measured_times[0], panel.measured_times[-1]
        axes.plot(
            [100 * (time - first) / max(last - first, 1) for time in panel.measured_times],
            [size / _MEBIBYTE for size in panel.measured_bytes],
            color="black",
            drawstyle="steps-post",
            linewidth=0.9,
            label="measured",
        )
    for size, style, name in (
        (panel.budget, "-", "budget"),
        (panel.plain_peak_bytes, ":", "peak of plain training"),
    ):
        axes.axhline(size / _MEBIBYTE, color="#cc3311", linestyle=style, linewidth=1.4, label=name)
    title = "\n".join(fill(line, _TITLE_COLUMNS) for line in panel.title.splitlines())
    axes.set_title(title, loc="left", fontsize=10)
    axes.set(xlim=(0, 100), xlabel="share of the training step [%]", ylabel="memory [MiB]")
    axes.set_ylim(0, 1.08 * max(panel.plain_peak_bytes, panel.budget) / _MEBIBYTE)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=9)


def _doubled(values: Sequence[int]) -> list[int]:
    """Return each value twice in a row: the two ends of a stair."""
    return list(chain.from_iterable(repeat(value, 2) for value in values))
