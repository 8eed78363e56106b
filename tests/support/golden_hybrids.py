"""The shared golden instances of recomputing and offloading together."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from chainstay.profiles import ChainProfile, Link, Stage

_FILE = Path(__file__).parents[1] / "golden" / "offload.json"


@dataclass(frozen=True)
class GoldenHybrid:
    """One instance: `None` among the optima means infeasible, or unknown where unchecked."""

    name: str
    profile: ChainProfile
    budget: int
    link: Link
    fractional: Fraction | None
    recompute_only: Fraction | None
    keep_all_peak: int
    integral: Fraction | None
    integral_is_known: bool
    sequence: tuple[tuple[str, int], ...]
    offloaded: tuple[int, ...]


def _rational(pair: list[int] | None) -> Fraction | None:
    return None if pair is None else Fraction(*pair)


def _load(i: dict[str, Any]) -> GoldenHybrid:
    stages = tuple(
        Stage(
            forward_time=i["uf"][k],
            backward_time=i["ub"][k],
            output_bytes=i["a"][k],
            saved_bytes=i["abar"][k],
            gradient_bytes=i["delta"][k],
            forward_overhead_bytes=i["of"][k],
            backward_overhead_bytes=i["ob"][k],
        )
        for k in range(1, i["L"] + 2)
    )
    return GoldenHybrid(
        name=i["name"],
        profile=ChainProfile(
            input_bytes=i["a"][0], input_gradient_bytes=i["delta"][0], stages=stages
        ),
        budget=i["M"],
        link=Link(bandwidth=Fraction(*i["beta"])),
        fractional=_rational(i["pofo_opt"]),
        recompute_only=_rational(i["remat_only_persistent_opt"]),
        keep_all_peak=i["no_remat_peak"],
        integral=_rational(i["combined_integral_opt"]),
        integral_is_known=i["combined_integral_check"] is not None,
        sequence=tuple((kind, stage) for kind, stage in i["pofo_sequence"] or ()),
        offloaded=tuple(i["pofo_offloaded_layers"] or ()),
    )


GOLDEN_HYBRIDS = [_load(instance) for instance in json.loads(_FILE.read_text())["pofo_instances"]]
