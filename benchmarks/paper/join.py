"""Figures 8, 9 and 10 of [BHPS20]: tables beside the accepted values, and pictures.

    .venv/bin/python -m benchmarks.paper.join [--folder .] [--accepted FILE]

Every step takes one unit of time. Three joins of 6 L steps in all: *CM*, cross-modal, branches
of L and 5 L; *SNN*, Siamese, three of 2 L; *RNN*, a single chain of 6 L.

Figure 8: makespan by slots, L = 5, 10, 15. Figure 9: makespan by L for 7, 9, 11, 13 slots.
Figure 10: EQUIV-CHAIN over the optimum for three branches, by their length.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, ScalarFormatter
from rich.console import Console
from rich.table import Table

from chainstay import HomogeneousJoin, JoinProfile, join_curve, simulate_join
from chainstay.baselines.join import equivalent_chain

SHAPES: Final = ("RNN", "CM", "SNN")
SIZES: Final = (5, 10, 15)
SLOTS: Final = (7, 9, 11, 13)
GROUPED_SLOTS: Final = (9, 12, 15)
_COLOURS: Final = {"RNN": "#4c72b0", "CM": "#dd8452", "SNN": "#55a868"}

Curve = dict[int, float]


def main() -> None:
    """Print the tables, write the pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path(), help="for the pictures")
    golden = Path(__file__).parents[2] / "tests" / "golden" / "join_figures.json"
    parser.add_argument("--accepted", type=Path, default=golden, help="JSON of accepted values")
    arguments = parser.parse_args()
    accepted = json.loads(arguments.accepted.read_text())
    console, start = Console(), time.process_time()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    differences = figure_8(console, accepted["fig8"], arguments.folder)
    differences += figure_9(console, accepted["fig9"], arguments.folder)
    differences += figure_10(console, accepted["fig10"], arguments.folder)
    console.print(
        f"{differences} values differ from the accepted ones; "
        f"{time.process_time() - start:.1f} s of CPU"
    )


def join_of(shape: str, size: int) -> HomogeneousJoin:
    """A join of 6 `size` steps."""
    lengths = {"CM": (size, 5 * size), "SNN": (2 * size,) * 3, "RNN": (6 * size,)}[shape]
    return unit_join(*lengths)


def unit_join(*lengths: int) -> HomogeneousJoin:
    """A join whose steps take one unit of time each."""
    return JoinProfile.homogeneous(lengths, forward_time=1, backward_time=1, turn_time=1)


def figure_8(console: Console, accepted: Mapping[str, Any], folder: Path) -> int:
    """Makespan by slots; how many values differ."""
    table = Table("join", "c_min", "makespan from c_min up", "enough", "Span*", "accepted")
    picture, axes = panels("Figure 8: makespan by memory, every step one unit", len(SIZES))
    differences = 0
    for axis, size in zip(axes, SIZES, strict=True):
        for shape in SHAPES:
            curve = join_curve(join_of(shape, size))
            found = dict(zip(curve.slots, curve.makespans, strict=True))
            printed = {int(c): v for c, v in accepted[f"{shape}{size}"]["makespan"].items()}
            wrong = differing(found, printed)
            differences += wrong
            first = ", ".join(map(str, curve.makespans[:6]))
            table.add_row(
                f"{shape} L={size}",
                str(curve.slots[0]),
                first,
                str(curve.slots[-1]),
                str(curve.makespans[-1]),
                verdict(wrong, len(printed)),
            )
            draw(axis, shape, dict(found))
        axis.set(title=f"L = {size}", xlabel="slots c", yscale="log")
        axis.yaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
        axis.yaxis.set_major_formatter(ScalarFormatter())
        axis.yaxis.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel("makespan")
    table.title = "Figure 8"
    return finish(console, table, picture, folder / "join_figure8.png", differences)


def figure_9(console: Console, accepted: Mapping[str, int], folder: Path) -> int:
    """Makespan by size with few slots; how many values differ."""
    table = Table("join", "slots", "L: makespan", "accepted", title="Figure 9")
    picture, axes = panels("Figure 9: makespan by size, every step one unit", len(SLOTS))
    sizes = sorted({int(key.rpartition("-L")[2]) for key in accepted})
    curves = {(s, n): join_curve(join_of(s, n)) for s in SHAPES for n in sizes}
    differences = 0
    for axis, slots in zip(axes, SLOTS, strict=True):
        for shape in SHAPES:
            printed = {
                n: accepted[f"{shape}-c{slots}-L{n}"]
                for n in sizes
                if f"{shape}-c{slots}-L{n}" in accepted
            }
            found = {n: curves[shape, n].makespan(slots) for n in printed}
            wrong = differing(found, printed)
            differences += wrong
            values = ", ".join(f"{n}: {makespan}" for n, makespan in found.items())
            table.add_row(shape, str(slots), values, verdict(wrong, len(printed)))
            draw(axis, shape, dict(found), marker="o")
        axis.set(title=f"c = {slots}", xlabel="L")
    axes[0].set_ylabel("makespan")
    return finish(console, table, picture, folder / "join_figure9.png", differences)


def figure_10(console: Console, accepted: Mapping[str, Sequence[int]], folder: Path) -> int:
    """EQUIV-CHAIN beside the optimum; how many values differ."""
    table = Table("slots", "branches", "EQUIV-CHAIN", "optimum", "ratio", "accepted")
    table.title = "Figure 10: three branches, grouped or not"
    picture, axes = panels("Figure 10: what grouping three branches into one chain costs", 1)
    differences = 0
    for slots, colour in zip(GROUPED_SLOTS, _COLOURS.values(), strict=True):
        ratios: Curve = {}
        keys = [key for key in accepted if key.startswith(f"c{slots}-")]
        for length in (2 * int(key.rpartition("-L")[2]) for key in keys):
            join = unit_join(length, length, length)
            grouped = simulate_join(join, equivalent_chain(join, slots)).makespan
            optimum = join_curve(join).makespan(slots)
            printed = tuple(accepted[f"c{slots}-L{length // 2}"])
            differences += (grouped, optimum) != printed
            ratios[length] = grouped / optimum
            table.add_row(
                str(slots),
                f"3 x {length}",
                str(grouped),
                str(optimum),
                f"{ratios[length]:.3f}",
                verdict((grouped, optimum) != printed, 1),
            )
        axes[0].plot([*ratios], [*ratios.values()], "o-", color=colour, label=f"c = {slots}")
    axes[0].set(xlabel="steps of each branch", ylabel="EQUIV-CHAIN / optimum", ylim=(0.9, None))
    return finish(console, table, picture, folder / "join_figure10.png", differences)


def panels(title: str, count: int) -> tuple[Figure, list[Axes]]:
    """A picture of `count` panels side by side."""
    picture = Figure(figsize=(max(6.5, 3.6 * count), 4.2), layout="constrained")
    picture.suptitle(title)
    axes = [picture.add_subplot(1, count, number + 1) for number in range(count)]
    for axis in axes:
        axis.grid(visible=True, alpha=0.3)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    return picture, axes


def draw(axis: Axes, shape: str, values: Curve, marker: str = "") -> None:
    """One line of one shape."""
    axis.plot([*values], [*values.values()], color=_COLOURS[shape], marker=marker, label=shape)


def differing(found: Mapping[int, int], accepted: Mapping[int, int]) -> int:
    """How many accepted values were not found."""
    return sum(found.get(key) != value for key, value in accepted.items())


def verdict(wrong: int, of: int) -> str:
    """What the table says about accepted values."""
    return f"[red]{wrong} of {of} differ[/]" if wrong else f"{of} of {of}"


def finish(console: Console, table: Table, picture: Figure, path: Path, differences: int) -> int:
    """Print the table and save the picture."""
    picture.axes[-1].legend()
    picture.savefig(path, dpi=120)
    console.print(table)
    console.print(f"picture: [bold]{path}[/]")
    return differences


if __name__ == "__main__":
    main()
