"""The picture of time against memory: the optimum, and what people use instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from chainstay import (
    BASELINES,
    DP,
    ChainProfile,
    InfeasibleBudgetError,
    Schedule,
    fastest_within,
    simulate,
    unrestricted_bound,
)

__all__ = ["tradeoff_figure"]

_SHARES: Final = range(20, 101, 5)
"""Budgets, in percent of plain training's peak."""
_HIGHEST: Final = 80
"""What is above, in percent, is off the chart: nobody would take it."""
_COMPARED: Final = {
    "checkpoint-sequential": "equal segments, the best number",
    "revolve": "revolve",
    "greedy": "greedy by ratio",
}


def tradeoff_figure(networks: dict[str, ChainProfile]) -> Figure:
    """One panel for each network, by its title."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for axes, (title, profile) in zip(
        figure.subplots(1, len(networks)), networks.items(), strict=True
    ):
        _draw(axes, profile)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("budget, in % of plain training's peak")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_ylim(0, _HIGHEST)
    figure.axes[0].set_ylabel("time above plain training, in %")
    figure.axes[0].legend(frameon=False, fontsize=9)
    return figure


def _draw(axes: Axes, profile: ChainProfile) -> None:
    peak = simulate(profile, Schedule.keep_all(len(profile))).peak_bytes
    budgets = {share: share * peak // 100 for share in _SHARES}
    for name, label in _COMPARED.items():
        axes.plot(*_points(profile, budgets, partial(_of_baseline, profile, name)), label=label)
    for label, method in (("optimal", DP()), ("optimal, free discards", DP(discards="free"))):
        points = _points(profile, budgets, partial(_of_method, profile, method))
        axes.plot(*points, label=label, linewidth=2.4)
    bound = _points(profile, budgets, partial(unrestricted_bound, profile))
    axes.fill_between(*bound, color="0.85", label="no schedule gets here")


def _points(
    profile: ChainProfile, budgets: dict[int, int], makespan: Callable[[int], int]
) -> tuple[list[int], list[float]]:
    """Shares of memory, and time above plain training in percent, where anything fits."""
    points: dict[int, float] = {}
    for share, budget in budgets.items():
        try:
            points[share] = 100 * (makespan(budget) / profile.least_time - 1)
        except InfeasibleBudgetError:
            continue
    return list(points), list(points.values())


def _of_baseline(profile: ChainProfile, name: str, budget: int) -> int:
    judge = partial(simulate, profile)
    schedule = fastest_within(BASELINES[name](profile, budget), judge, budget)
    return simulate(profile, schedule).makespan


def _of_method(profile: ChainProfile, method: DP, budget: int) -> int:
    return method(profile, budget).makespan
