"""Offloading as [BES20] evaluates it: makespan over the lower bound, against memory.

    .venv/bin/python -m benchmarks.paper.offload [--output paper_offload.png]

ResNet-50, DenseNet-121 and Inception v3, each as measured on a CPU and as a roofline makes it
for a V100 (batch 32, as `chainstay.estimate` does stage by stage); the link has 12 GB/s for
the V100 and, for the slower CPU, as much less as it is slower, so that transfers matter alike.
Every method goes through the same referee; the bound is that of Proposition 3.

The profiles are stored in ``benchmarks/profiles``; how they were made is in the history of this
file (`make_profiles`). Prints a table of the worst and mean ratios, writes a picture.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from statistics import mean
from typing import Final

from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from benchmarks import PROFILES
from chainstay import ChainProfile, Link, OffloadProfile, simulate_offload, solve_offload
from chainstay.baselines.offload import OFFLOAD_BASELINES
from chainstay.problems.offload import OffloadMethod, OffloadProblem
from chainstay.solve.offload import AutoOffload
from chainstay.validation.offload.search import proposition3_bound

NETWORKS: Final = ("resnet50", "densenet121", "inception_v3")
DEVICES: Final = ("cpu", "v100")
BYTES_PER_SECOND: Final = 12 * 10**9
SHARES: Final = tuple(Fraction(step, 12) for step in range(13))
METHODS: Final[Mapping[str, OffloadMethod | str]] = {
    "auto": AutoOffload(time_limit_s=2),
    "heuristics": "heuristics",
    "dp": "dp",
    "greedy": "greedy",
}
COLOURS: Final = {
    "auto": "black",
    "heuristics": "#aa3377",
    "dp": "#4477aa",
    "greedy": "#66ccee",
    "vdnn": "#ccbb44",
    "autoswap": "#228833",
    "tflms": "#ee6677",
}


def main() -> None:
    """Print the table, write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=Path("paper_offload.png"), help="PNG or SVG")
    arguments = parser.parse_args()
    curves = {
        (network, device): ratios(load(network, device), link_of(network, device))
        for network in NETWORKS
        for device in DEVICES
    }
    console = Console()
    console.print(summary(curves))
    plot(curves, arguments.output)
    console.print(f"picture: [bold]{arguments.output}[/]")


def load(network: str, device: str) -> OffloadProfile:
    """A stored profile, whole stages as activations."""
    chain = ChainProfile.from_json((PROFILES / f"offload-{network}-{device}.json").read_text())
    return OffloadProfile.from_chain(chain)


def link_of(network: str, device: str) -> Link:
    """12 GB/s for the V100; elsewhere as many bytes of activations in the time of a step."""
    profile, fast = load(network, device), load(network, "v100")
    speed = Fraction(sum(profile.activations), profile.least_time)
    fast_speed = Fraction(sum(fast.activations), fast.least_time)
    share = round(speed / fast_speed * 1000)
    return Link.from_bytes_per_second(BYTES_PER_SECOND * share // 1000)


def ratios(profile: OffloadProfile, link: Link) -> Mapping[str, list[tuple[float, float]]]:
    """By method: (budget as a share of the peak, makespan over the bound), where it fits."""
    least, most = profile.required_bytes, profile.peak_bytes
    curves: dict[str, list[tuple[float, float]]] = {name: [] for name in COLOURS}
    for share in SHARES:
        budget = least + int((most - least) * share)
        bound = proposition3_bound(profile, budget=budget, link=link)
        for name in COLOURS:
            makespan = _makespan(name, profile, budget, link)
            if makespan is not None:
                curves[name].append((budget / most, float(makespan / bound)))
    return curves


def _makespan(name: str, profile: OffloadProfile, budget: int, link: Link) -> Fraction | int | None:
    if name in METHODS:
        return solve_offload(profile, budget, link=link, method=METHODS[name]).makespan
    schedule = OFFLOAD_BASELINES[name](OffloadProblem(profile, budget, link))
    if schedule is None:
        return None
    return simulate_offload(profile, schedule, budget=budget, link=link).makespan


def summary(curves: Mapping[tuple[str, str], Mapping[str, list[tuple[float, float]]]]) -> Table:
    """Worst and mean ratio to the bound of every method on every profile."""
    table = Table(title=f"makespan / bound of Proposition 3, at {len(SHARES)} budgets")
    table.add_column("profile")
    table.add_column("method")
    for heading in ("worst", "mean", "budgets that fit"):
        table.add_column(heading, justify="right")
    for (network, device), found in curves.items():
        table.add_section()
        for place, name in enumerate(COLOURS):
            values = [ratio for _, ratio in found[name]]
            figures = (f"{max(values):.3f}", f"{mean(values):.3f}") if values else ("–", "–")
            heading = "" if place else f"{network}, {device}"
            table.add_row(heading, name, *figures, str(len(values)))
    return table


def plot(
    curves: Mapping[tuple[str, str], Mapping[str, list[tuple[float, float]]]], path: Path
) -> None:
    """A row per device, a column per network."""
    figure = Figure(figsize=(13, 7), layout="constrained", dpi=130)
    grid = figure.subplots(len(DEVICES), len(NETWORKS), squeeze=False)
    for row, device in enumerate(DEVICES):
        for column, network in enumerate(NETWORKS):
            axes = grid[row, column]
            for name, colour in COLOURS.items():
                points = curves[network, device][name]
                axes.plot(
                    [100 * share for share, _ in points],
                    [ratio for _, ratio in points],
                    "o-",
                    ms=3,
                    lw=2.2 if name == "auto" else 1.2,
                    color=colour,
                    label=name,
                    zorder=3 if name == "auto" else 2,
                )
            axes.set_title(f"{network}, {device}", loc="left", fontsize=10)
            # TFLMS-like, which prefetches in time or fails, would hide all differences else.
            others = [
                ratio
                for name, points in curves[network, device].items()
                for _, ratio in points
                if name != "tflms"
            ]
            axes.set(xlabel="budget [% of plain training]", ylim=(0.98, 1.03 * max(others)))
            axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set_ylabel("makespan / lower bound")
    grid[1, 0].set_ylabel("makespan / lower bound")
    handles, names = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    figure.suptitle("Offloading whole activations: makespan over the bound of Proposition 3")
    figure.savefig(path)


if __name__ == "__main__":
    main()
