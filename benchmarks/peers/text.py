"""The comparison with peers for people: tables, and a picture for each network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import torch
from matplotlib.figure import Figure

from benchmarks.peers.results import Duel, Outcome, Run
from benchmarks.training import cells, heading, machine, mebibytes

__all__ = ["draw", "text_of"]

MEBIBYTE: Final = 2**20
MARKS: Final = {
    "plain": ("plain PyTorch", "*", "#222222"),
    "checkpoint": ("checkpoint", "D", "#228833"),
    "sequential": ("checkpoint_sequential", "s", "#999999"),
    "compile": ("torch.compile, aot_eager", "^", "#4477aa"),
    "inductor": ("torch.compile, inductor", "v", "#66ccee"),
    "save_on_cpu": ("save_on_cpu", "P", "#ccbb44"),
    "chainstay": ("chainstay", "o", "#cc3311"),
}
"""For each peer: name, mark and colour."""
ABSENT: Final = (
    "Rockmate cannot run: of its two releases on PyPI, 2.0.0 needs rkgb 2.0.0, whose archive there "
    "lacks rkgb's own subpackages (`rkgb.core`, `rkgb.lowlevel`), and 1.0.1 imports gurobipy, a "
    "commercial solver; the sources of both in its repository run on the device `cuda` only. "
    "rotor, the program of the paper, is not on PyPI; its recursion is chainstay's `DP()`, which "
    "other benchmarks and the tests look at."
)


def text_of(
    outcomes: Sequence[Outcome],
    failures: Mapping[str, str],
    pictures: str,
    homogeneous: Sequence[str],
    seconds: float,
) -> str:
    """All of it.

    Args:
        outcomes: By network.
        failures: Networks without an outcome, and why.
        pictures: Folder that they are in.
        homogeneous: Lines about homogeneous chains.
        seconds: That the run took.
    """
    lines = [
        "# chainstay beside its peers, at equal measured peak",
        "",
        f"`python -m benchmarks.peers.compare`, {seconds:.0f} s on {machine(torch.device('cpu'))}.",
        "",
        *_introduction(),
        *_summary(outcomes),
        *(f"{name}: no result, {failure}." for name, failure in failures.items()),
        "",
    ]
    for outcome in outcomes:
        lines += _section(outcome, pictures)
    lines += ["## Homogeneous chains, by makespan", "", *homogeneous, "", "## Not here", "", ABSENT]
    return "\n".join(lines) + "\n"


def _introduction() -> Iterator[str]:
    yield (
        "Each way of each peer gives a peak; chainstay's plan is the fastest by its own account of "
        "those whose measured peak is no larger. Peaks are sums of the profiler's memory events, "
        "the sample included, and the output, which loops hold till the backward has ended; "
        "saved is what lives between forward and backward, the output apart. "
        "Times are the thread's own, the least of steps run in turns, in brackets the ratio of "
        "medians. A ratio is chainstay's time by the peer's: below 1, chainstay is faster. Equal "
        "means: loss, every gradient, every buffer and the random state are those of plain PyTorch "
        "with the same seed, bit for bit; else the largest difference is given, as a share of the "
        "largest gradient (or loss, or buffer)."
    )
    yield ""
    yield (
        "torch.compile runs its partitioner's graphs with eager kernels (`aot_eager`), which "
        "isolates what `activation_memory_budget` does; `--inductor` adds the default backend. "
        "`save_on_cpu` has nothing to move where the device is the CPU."
    )
    yield ""


COLUMNS: Final = (
    "network",
    "stages",
    "plain peak",
    "plain step",
    "plain against itself",
    "ways of peers",
    "chainstay at least as fast",
    "mean ratio",
    "worst ratio",
    "verdict",
)


def _summary(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield from heading(*COLUMNS)
    for outcome in outcomes:
        ratios = [duel.ratio for duel in outcome.duels if duel.plan]
        won = sum(map(outcome.is_won, outcome.duels))
        yield cells(
            outcome.name,
            str(outcome.stages),
            mebibytes(outcome.plain.peak_bytes),
            _milliseconds(outcome.plain.least_time),
            f"{outcome.noise:.3f}",
            str(len(outcome.duels)),
            str(won),
            f"{sum(ratios) / len(ratios):.3f}" if ratios else "",
            f"{max(ratios):.3f}" if ratios else "",
            "at least as fast as every peer"
            if won == len(outcome.duels)
            else f"not in {len(outcome.duels) - won} of {len(outcome.duels)}",
        )
    yield ""
    duels = [(outcome, duel) for outcome in outcomes for duel in outcome.duels]
    won = sum(outcome.is_won(duel) for outcome, duel in duels)
    whole = sum(all(map(outcome.is_won, outcome.duels)) for outcome in outcomes)
    plans = [plan for outcome in outcomes for plan in outcome.plans]
    yield (
        f"chainstay is at least as fast as the peer in {won} of {len(duels)} ways, as every peer "
        f"on {whole} of {len(outcomes)} networks. Its {len(plans)} plans: bit for bit equal "
        f"{sum(plan.is_equal for plan in plans)}, within their budgets "
        f"{sum(plan.peak_bytes <= plan.budget for plan in plans)}."
    )
    yield ""
    yield from _by_peer(duels)
    yield from _losses(duels)
    yield from _wrong(duels)
    yield ""


def _by_peer(duels: Sequence[tuple[Outcome, Duel]]) -> Iterator[str]:
    yield from heading("peer", "ways", "chainstay at least as fast", "mean ratio", "worst ratio")
    for peer, (name, _, _) in MARKS.items():
        own = [(outcome, duel) for outcome, duel in duels if duel.peer.peer == peer]
        ratios = [duel.ratio for _, duel in own if duel.plan]
        if ratios:
            yield cells(
                name,
                str(len(own)),
                str(sum(outcome.is_won(duel) for outcome, duel in own)),
                f"{sum(ratios) / len(ratios):.3f}",
                f"{max(ratios):.3f}",
            )


def _losses(duels: Sequence[tuple[Outcome, Duel]]) -> Iterator[str]:
    lost = [(outcome, duel) for outcome, duel in duels if not outcome.is_won(duel)]
    if lost:
        yield ""
        yield (
            "Where chainstay is slower, or knows no plan (torch.compile runs single operators "
            "again, those that cost next to nothing; chainstay runs stages):"
        )
        yield ""
    for outcome, duel in lost:
        what = (
            f"{duel.ratio:.3f} (medians {duel.median_ratio:.3f})"
            if duel.plan
            else f"needs {mebibytes(duel.least_budget)}"
        )
        peer = duel.peer
        remark = "" if peer.is_equal else ", whose gradients are not those of plain training"
        yield (
            f"- {outcome.name}, {peer.peer} {peer.setting} at {mebibytes(peer.peak_bytes)}: "
            f"{what}{remark}"
        )


def _wrong(duels: Sequence[tuple[Outcome, Duel]]) -> Iterator[str]:
    wrong = [
        f"{outcome.name} {duel.peer.peer} {duel.peer.setting} ({duel.peer.difference:.1e})"
        for outcome, duel in duels
        if duel.peer.is_loss_equal and duel.peer.difference > WRONG
    ]
    if wrong:
        yield ""
        yield (
            f"Gradients of another loss than the forward's: {', '.join(wrong)}. The loss is plain "
            "training's, its gradients are not: dropout that the partitioner runs again on the CPU "
            "draws other numbers there, and nobody is told (pytorch/pytorch#190758, open)."
        )


WRONG: Final = 1e-3
"""Differences above this are not those of rounding."""
DETAILS: Final = (
    "way",
    "peak",
    "saved",
    "saved / budget",
    "step",
    "of plain",
    "equal",
    "chainstay: peak",
    "step",
    "equal",
    "ratio",
    "",
)


def _section(outcome: Outcome, pictures: str) -> Iterator[str]:
    yield f"## {outcome.name}"
    yield ""
    yield f"![throughput against peak]({pictures}/{outcome.name.lower()}.png)"
    yield ""
    yield from heading(*DETAILS)
    yield cells(*_ways(outcome.plain, outcome), *[""] * 5)
    for duel in outcome.duels:
        yield cells(*_ways(duel.peer, outcome), *_rival(duel, outcome))
    yield ""
    for refusal in outcome.refusals:
        yield f"- {refusal.peer} {refusal.setting}: {refusal.reason}"
    if outcome.refusals:
        yield ""


def _ways(run: Run, outcome: Outcome) -> tuple[str, ...]:
    return (
        f"{run.peer} {run.setting}",
        mebibytes(run.peak_bytes),
        mebibytes(run.saved_bytes),
        f"{run.saved_bytes / run.budget:.0%}" if run.budget else "",
        _milliseconds(run.least_time),
        f"{run.least_time / outcome.plain.least_time:.3f}",
        _equality(run),
    )


def _rival(duel: Duel, outcome: Outcome) -> tuple[str, ...]:
    if duel.plan is None:
        return "", "", "", "", f"needs {mebibytes(duel.least_budget)}"
    return (
        mebibytes(duel.plan.peak_bytes),
        _milliseconds(duel.plan.least_time),
        _equality(duel.plan),
        f"{duel.ratio:.3f} ({duel.median_ratio:.3f})",
        ("faster" if duel.ratio < 1 / outcome.margin else "as fast")
        if outcome.is_won(duel)
        else "slower",
    )


def _equality(run: Run) -> str:
    return "yes" if run.is_equal else f"{run.difference:.0e}"


def _milliseconds(time: float) -> str:
    return f"{time / 1e6:.1f} ms"


def draw(outcome: Outcome, path: Path) -> None:
    """Throughput against measured peak."""
    figure = Figure(figsize=(7.2, 4.8), layout="constrained", dpi=130)
    axes = figure.subplots()
    runs = [outcome.plain, *(duel.peer for duel in outcome.duels), *outcome.plans]
    for peer, (name, mark, colour) in MARKS.items():
        own = sorted((run for run in runs if run.peer == peer), key=lambda run: run.peak_bytes)
        if not own:
            continue
        is_ours = peer == "chainstay"
        axes.plot(
            [run.peak_bytes / MEBIBYTE for run in own],
            [outcome.samples / run.least_time * 1e9 for run in own],
            f"{mark}-" if is_ours else mark,
            color=colour,
            markersize=12 if peer == "plain" else 6,
            linewidth=1.5,
            label=name,
            zorder=3 if is_ours else 2,
            alpha=0.9,
        )
        wrong = [run for run in own if run.difference > WRONG]
        axes.plot(
            [run.peak_bytes / MEBIBYTE for run in wrong],
            [outcome.samples / run.least_time * 1e9 for run in wrong],
            mark,
            color=colour,
            markerfacecolor="white",
            markersize=6,
            label=f"{name}, other gradients" if wrong else None,
            zorder=3,
        )
    axes.set_xlim(left=0)
    axes.set_xlabel("measured peak memory of a step in MiB")
    axes.set_ylabel("samples per second of processor time")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{outcome.name}, {outcome.samples} samples a step", loc="left")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(path)
