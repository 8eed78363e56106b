"""Figure 4 of [BEHJS24]: where keeping a value until its backward costs up to half more.

    .venv/bin/python -m benchmarks.paper.figure4 [--largest 40] [--output figure4.png]

The chains, and a proof that nothing is faster, are in `testbed/figure4.py`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from rich.console import Console
from rich.table import Table

from figure4 import Row, measure


def main() -> None:
    """Print the table, write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--largest", type=int, default=40, help="n of the last instance, from 5")
    parser.add_argument("--output", type=Path, default=Path("figure4.png"), help="PNG or SVG")
    arguments = parser.parse_args()
    rows = [measure(n) for n in range(5, arguments.largest + 1)]
    table = Table("n", "persistent", "drifting, optimal", "ratio", title="Figure 4, k = n - 2")
    for row in rows:
        table.add_row(str(row.n), str(row.persistent), str(row.optimum), f"{float(row.ratio):.4f}")
    console = Console()
    console.print(table)
    plot(rows, arguments.output)
    console.print(f"picture: [bold]{arguments.output}[/]")


def plot(rows: Sequence[Row], path: Path) -> None:
    """Makespans on the left, their ratio on the right."""
    figure = Figure(figsize=(9, 3.6), layout="constrained", dpi=130)
    times, ratios = figure.subplots(1, 2)
    n = [row.n for row in rows]
    times.plot(
        n,
        [row.persistent for row in rows],
        "o-",
        ms=3,
        color="#cc3311",
        label="best persistent: 3n - 2",
    )
    times.plot(
        n,
        [row.optimum for row in rows],
        "o-",
        ms=3,
        color="#4477aa",
        label="best of all (drifting): 2n + 2",
    )
    times.set(ylabel="makespan", ylim=(0, None))
    times.legend(frameon=False)
    ratios.plot(n, [float(row.ratio) for row in rows], "o-", ms=3, color="black")
    ratios.axhline(1.5, color="#cc3311", linestyle=":")
    ratios.annotate("3/2", (n[0], 1.5), va="bottom", color="#cc3311")
    ratios.set(ylabel="persistent / best of all", ylim=(1, 1.55))
    for axes in (times, ratios):
        axes.set_xlabel("n (with k = n - 2)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Keeping a value until its backward can cost half more [BEHJS24, Figure 4]")
    figure.savefig(path)


if __name__ == "__main__":
    main()
