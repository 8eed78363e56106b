"""Pictures of *How it works*, drawn from plans that are solved while the pages are built.

The networks are real: profiles of a ResNet-50 and a GPT-2 as `chainstay.measure` found them,
in ``benchmarks/profiles``, and the toy of the rotor paper.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure

from chainstay import (
    DP,
    ChainProfile,
    JoinProfile,
    Link,
    OffloadProfile,
    Solution,
    Stage,
    solve_chain,
    solve_join,
    solve_offload,
)
from chainstay.profiles import AnyProfile
from chainstay.report import picture
from tradeoff import tradeoff_figure

__all__ = ["PICTURES"]

_PROFILES: Final = Path(__file__).parents[2] / "benchmarks" / "profiles"
_MIB: Final = 2**20
_MS: Final = 10**6

mpl.rcParams["svg.hashsalt"] = "chainstay"  # equal plans give equal files


def _network(name: str) -> ChainProfile:
    return ChainProfile.from_json((_PROFILES / f"{name}.json").read_text(encoding="utf-8"))


def _written(figure: Figure) -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()


def _drawn(solution: Solution, profile: AnyProfile, title: str) -> bytes:
    file = io.BytesIO()
    picture(solution, profile, file, kind="svg", title=title)
    return file.getvalue()


def _stages() -> bytes:
    """What the stages of a ResNet-50 cost: the numbers that everything else follows from."""
    stages = _network("resnet50").stages
    names = [each.name.replace("group", "g").replace("_block", ".") for each in stages]
    places = range(len(stages))
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    memory, times = figure.subplots(2, sharex=True)
    saved = [each.saved_bytes / _MIB for each in stages]
    memory.bar(places, saved, color="#4c78a8", label="saved for the backward")
    outputs = [each.output_bytes / _MIB for each in stages]
    memory.bar(places, outputs, color="#f2b447", width=0.4, label="of it the output")
    memory.set_ylabel("memory [MiB]")
    forward = [each.forward_time / _MS for each in stages]
    backward = [each.backward_time / _MS for each in stages]
    times.bar(places, forward, color="#59a14f", label="forward")
    times.bar(places, backward, bottom=forward, color="#b07aa1", label="backward")
    times.set_ylabel("time [ms]")
    times.set_xticks(places, names, rotation=40, ha="right", fontsize=8)
    for axes in (memory, times):
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    return _written(figure)


def _planned(budget: str, title: str) -> bytes:
    profile = _network("resnet50")
    return _drawn(solve_chain(profile, budget, method=DP()), profile, title)


def _of_toy(method: DP, title: str) -> bytes:
    """Table 2 of the rotor paper, of which 90 MB are little: times in 10 us, sizes in 10 kB."""
    forward = (160, 220, 244, 251, 210, 143, 0)
    backward = (305, 448, 509, 493, 421, 334, 0)
    outputs = (954, 1068, 1106, 1068, 954, 763, 0)
    saved = (954, 1068, 1108, 1066, 954, 763, 0)
    temporary = (2001, 2764, 3099, 3099, 2764, 1908, 0)
    profile = ChainProfile(
        input_bytes=763 * 10**4,
        input_gradient_bytes=763 * 10**4,
        stages=tuple(
            Stage(
                forward_time=f * 10**4,
                backward_time=b * 10**4,
                output_bytes=a * 10**4,
                saved_bytes=s * 10**4,
                gradient_bytes=a * 10**4,
                backward_overhead_bytes=o * 10**4,
            )
            for f, b, a, s, o in zip(forward, backward, outputs, saved, temporary, strict=True)
        ),
    )
    return _drawn(solve_chain(profile, 90 * 10**6, method=method), profile, title)


def _offloaded() -> bytes:
    profile = OffloadProfile.from_chain(_network("offload-resnet50-v100"))
    link = Link.from_bytes_per_second(12_000_000_000)
    solution = solve_offload(profile, "60%", link=link, method="heuristics")
    return _drawn(solution, profile, "ResNet-50 on a V100 (estimated), over a link of 12 GB/s")


def _joined() -> bytes:
    stage = Stage(
        forward_time=2 * _MS,
        backward_time=3 * _MS,
        output_bytes=10 * _MIB,
        saved_bytes=30 * _MIB,
        gradient_bytes=10 * _MIB,
    )
    left, right = (
        ChainProfile(input_bytes=10 * _MIB, input_gradient_bytes=0, stages=(stage,) * length)
        for length in (5, 4)
    )
    tail = ChainProfile(
        input_bytes=20 * _MIB, input_gradient_bytes=20 * _MIB, stages=(stage, stage)
    )
    profile = JoinProfile(branches=(left, right), tail=tail)
    return _drawn(solve_join(profile, "60%", method="dp"), profile, "Two towers and a tail")


def _tradeoff() -> bytes:
    networks = {"ResNet-50": _network("resnet50"), "GPT-2": _network("gpt2")}
    return _written(tradeoff_figure(networks))


PICTURES: Final[Mapping[str, Callable[[], bytes]]] = MappingProxyType(
    {
        "stages": _stages,
        "plain": partial(_planned, "100%", "ResNet-50, everything kept"),
        "half": partial(_planned, "50%", "ResNet-50, half the memory"),
        "toy": partial(_of_toy, DP(), "The rotor paper's toy in 90 MB, by its rules"),
        "toy-free": partial(_of_toy, DP(discards="free"), "The same, free discards"),
        "offload": _offloaded,
        "join": _joined,
        "tradeoff": _tradeoff,
    }
)
"""How to draw each, as SVG, by its file's name."""
