"""The shared golden offloading instances; their optima come from searches of their own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from chainstay.profiles import Link, OffloadProfile
from chainstay.schedule import Op, OpKind, Schedule

_FILE = Path(__file__).parents[1] / "golden" / "offload.json"
_TRANSFERS = {"O": OpKind.OFFLOAD_ACTIVATION, "P": OpKind.PREFETCH_ACTIVATION}


@dataclass(frozen=True)
class GoldenOffload:
    """One instance: `None` among the optima means infeasible."""

    name: str
    category: str
    profile: OffloadProfile
    budget: int
    link: Link
    is_feasible: bool
    peak_bytes: int
    required_bytes: int
    lower_bound: Fraction
    integral: Fraction | None
    integral_ordered: Fraction | None
    interruptible: Fraction | None
    interruptible_ordered: Fraction | None
    fractional: Fraction | None
    witness: Schedule | None
    greedy: tuple[int, ...] | None
    greedy_integral: Fraction | None

    @property
    def last(self) -> int:
        """The paper's L: one less than there are stages."""
        return len(self.profile) - 1


def _rational(pair: list[int] | None) -> Fraction | None:
    return None if pair is None else Fraction(*pair)


def _program(items: list[tuple[str, int]] | None, stages: int) -> Schedule | None:
    if items is None:
        return None
    computations = Schedule.keep_all(stages)
    return Schedule(
        tuple(
            computations[index] if kind == "C" else Op(_TRANSFERS[kind], index)
            for kind, index in items
        )
    )


def _load(i: dict[str, Any]) -> GoldenOffload:
    profile = OffloadProfile(
        activations=i["x"],
        gradients=i["y"],
        forward_overheads=i["exF"],
        backward_overheads=i["exB"],
        forward_times=i["uF"],
        backward_times=i["uB"],
    )
    return GoldenOffload(
        name=i["name"],
        category=i["category"],
        profile=profile,
        budget=i["M"],
        link=Link(bandwidth=Fraction(*i["beta"])),
        is_feasible=i["feasible"],
        peak_bytes=i["M_peak"],
        required_bytes=i["M_min"],
        lower_bound=Fraction(*i["LB"]),
        integral=_rational(i["p1_opt"]),
        integral_ordered=_rational(i["p1_ordered_opt"]),
        interruptible=_rational(i["p2_opt"]),
        interruptible_ordered=_rational(i["p2_ordered_opt"]),
        fractional=_rational(i["frac_opt"]),
        witness=_program(i["p1_program"], len(profile)),
        greedy=None if i["greedy_set"] is None else tuple(i["greedy_set"]),
        greedy_integral=_rational(i["greedy_p1"]),
    )


GOLDEN = [_load(instance) for instance in json.loads(_FILE.read_text())["instances"]]
FEASIBLE = [golden for golden in GOLDEN if golden.is_feasible]
(GAP,) = [golden for golden in GOLDEN if golden.name == "pub008"]
"""Whole transfers: 14 at best, 15 by heuristics; interruptible ones: 23/2."""


def require_solvers() -> None:
    """Skip the calling module, by name of the solver that is not installed."""
    for solver in ("ortools", "pyomo", "highspy"):
        if find_spec(solver) is None:
            pytest.skip(f"{solver} is not installed", allow_module_level=True)
