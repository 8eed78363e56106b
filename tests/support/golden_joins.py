"""The shared golden joins as profiles; every optimum in them was found by exhaustive search."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chainstay.profiles import ChainProfile, HomogeneousJoin, JoinProfile, Stage

_FOLDER = Path(__file__).parents[1] / "golden"


@dataclass(frozen=True)
class GoldenSlots:
    """One homogeneous instance: `None` as the optimum means infeasible."""

    name: str
    profile: HomogeneousJoin
    keep: tuple[bool, ...]
    slots: int
    optimum: int | None
    least_slots: int | None


@dataclass(frozen=True)
class GoldenBytes:
    """One join of any stages under one budget, and the least budget known for it."""

    name: str
    profile: JoinProfile
    budget: int
    optimum: int | None
    persistent: int | None
    least_budget: int


def homogeneous() -> list[GoldenSlots]:
    """Instances without a tail, and then those with one."""
    joins = [_slots(i, None, i["b"]) for i in _instances("join")]
    tails = [_slots(i, i["tail_steps_after_join"], None) for i in _instances("join_tail")]
    return joins + tails


def heterogeneous() -> list[GoldenBytes]:
    """Every budget of every instance; the first of each is infeasible, the second the least."""
    found = []
    for number, i in enumerate(_instances("join_hetero")):
        profile = _join(i)
        found += [
            GoldenBytes(
                name=f"{i['kind']}{number}@{budget}",
                profile=profile,
                budget=budget,
                optimum=optimum,
                persistent=persistent,
                least_budget=i["M"][1],
            )
            for budget, optimum, persistent in zip(
                i["M"], i["optimal"], i["persistent_dp"], strict=True
            )
        ]
    return found


def figures() -> dict[str, dict[str, Any]]:
    """The values behind Figures 8, 9 and 10 of [BHPS20]."""
    document: dict[str, dict[str, Any]] = _document("join_figures")
    return document


def _slots(i: dict[str, Any], tail_steps: int | None, keep: list[int] | None) -> GoldenSlots:
    profile = JoinProfile.homogeneous(
        i["lengths"],
        forward_time=i["u_f"],
        backward_time=i["u_b"],
        turn_time=i["u_t"],
        tail_steps=tail_steps,
    )
    flags = tuple(map(bool, keep or [0] * len(i["lengths"])))
    tail = "" if tail_steps is None else f"+{tail_steps}"
    lengths = "-".join(map(str, i["lengths"]))
    return GoldenSlots(
        name=f"{lengths}{tail}@{i['c']}",
        profile=profile,
        keep=flags,
        slots=i["c"],
        optimum=i["optimal"],
        least_slots=i.get("c_min"),
    )


def _join(i: dict[str, Any]) -> JoinProfile:
    branches = tuple(_chain(b, b["a"][0], b["delta"][0]) for b in i["branches"])
    joined = JoinProfile(branches=branches)
    tail = _chain(i["tail"], joined.output_bytes, joined.output_gradient_bytes)
    return JoinProfile(branches=branches, tail=tail)


def _chain(c: dict[str, Any], input_bytes: int, input_gradient_bytes: int) -> ChainProfile:
    stages = (
        Stage(
            forward_time=c["uf"][l],
            backward_time=c["ub"][l],
            output_bytes=c["a"][l + 1],
            saved_bytes=c["abar"][l],
            gradient_bytes=c["delta"][l + 1],
            forward_overhead_bytes=c["of"][l],
            backward_overhead_bytes=c["ob"][l],
        )
        for l in range(c["L"])  # noqa: E741 - the paper's l
    )
    return ChainProfile(
        input_bytes=input_bytes,
        input_gradient_bytes=input_gradient_bytes,
        stages=tuple(stages),
    )


def _instances(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = _document(name)["instances"]
    return found


def _document(name: str) -> Any:
    return json.loads((_FOLDER / f"{name}.json").read_text())
