"""The shared golden chains with stage options as profiles; every optimum was searched for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from chainstay.profiles import ChainProfile, RunCost, Stage, StageOption
from chainstay.schedule import Schedule

_FOLDER = Path(__file__).parents[1] / "golden"
_UNAFFORDABLE: Final = 2**40
"""Bytes of option 0 where an instance gives other options only."""


@dataclass(frozen=True)
class GoldenOptions:
    """One instance: `None` among the optima means infeasible.

    Attributes:
        optimum: Least makespans in ns, by rules for discards or by family: ``"persistent"`` is
            Definition 4.1, ``"persistent_sweeps"`` the family of the dynamic program.
        min_budget: Least budgets in bytes, by the same names.
        schedules: A schedule for each optimum.
        dp: Values of recursions.
        recursion_schedule: A schedule of the persistent recursion, where the file has one.
        facts: The instance as the file has it.
    """

    name: str
    profile: ChainProfile
    budget: int
    optimum: dict[str, int | None]
    min_budget: dict[str, int]
    schedules: dict[str, Schedule | None]
    dp: dict[str, Any]
    recursion_schedule: Schedule | None
    facts: dict[str, Any]

    @property
    def family_optimum(self) -> int | None:
        """The optimum of the persistent dynamic program's family, as the file has it."""
        return self.optimum.get("persistent_sweeps", self.optimum["persistent"])

    @property
    def family_min_budget(self) -> int:
        """The least budget of that family."""
        return self.min_budget.get("persistent_sweeps", self.min_budget["persistent"])


def _stage(i: dict[str, Any], k: int) -> Stage:
    """Stage k, counted from 1, of an instance of ``options.json``."""
    whole, *others = (
        StageOption(
            saved_bytes=o["saved"],
            backward_overhead_bytes=o["ob"],
            first=RunCost(time=o["uf"], overhead_bytes=o["of"], backward_time=o["ub"]),
            needs_input=o["needs_input"],
        )
        for o in i["options"][k]
    )
    return Stage(
        name=f"F{k}",
        forward_time=i["uf"][k],
        forward_overhead_bytes=i["of"][k],
        backward_time=whole.first.backward_time,
        output_bytes=i["wa"][k],
        saved_bytes=whole.saved_bytes,
        gradient_bytes=i["wd"][k],
        backward_overhead_bytes=whole.backward_overhead_bytes,
        first=whole.first,
        again=whole.first,
        needs_input=whole.needs_input,
        options=tuple(others),
    )


def _stage_of_runs(i: dict[str, Any], k: int) -> Stage:
    """Stage k of an instance of ``options_first_again.json``."""

    def run(costs: dict[str, Any], kind: str) -> RunCost:
        return RunCost(
            time=costs[f"uf_{kind}"],
            overhead_bytes=costs[f"of_{kind}"],
            backward_time=costs.get(f"ub_{kind}", 0),
        )

    dropped = {f"{cost}_{kind}": i[f"{cost}_{kind}"][k] for cost in ("uf", "of") for kind in _KINDS}
    whole, *others = (
        StageOption(
            saved_bytes=o["saved"],
            backward_overhead_bytes=o["ob"],
            first=run(o, "first"),
            again=run(o, "again"),
        )
        for o in i["options"][k]
    )
    return Stage(
        name=f"F{k}",
        output_bytes=i["wa"][k],
        saved_bytes=whole.saved_bytes,
        gradient_bytes=i["wd"][k],
        backward_overhead_bytes=whole.backward_overhead_bytes,
        options=tuple(others),
        first=whole.first,
        again=whole.again,
        dropped_first=run(dropped, "first"),
        dropped_again=run(dropped, "again"),
    )


_KINDS: Final = ("first", "again")


def _stage_of_spans(i: dict[str, Any], k: int) -> Stage:
    """Stage k of an instance of ``super_stages.json``; its option 0 is option 1 here."""
    return Stage(
        name=f"F{k}",
        forward_time=i["uf"][k],
        forward_overhead_bytes=i["of"][k],
        output_bytes=i["wa"][k],
        saved_bytes=_UNAFFORDABLE,
        gradient_bytes=i["wd"][k],
        options=tuple(
            StageOption(
                saved_bytes=o["saved"],
                backward_overhead_bytes=o["ob"],
                first=RunCost(time=o["uf"], overhead_bytes=o["of"], backward_time=o["ub"]),
                stages=o["len"],
            )
            for o in i["options"][k]
        ),
    )


def _shifted(text: str) -> str:
    """Return the text of a schedule with every option's number one higher."""
    return re.sub(
        r"(Fa\d+)(?:\.(\d+))?", lambda found: f"{found[1]}.{int(found[2] or 0) + 1}", text
    )


def _load(
    name: str, stage: Callable[[dict[str, Any], int], Stage], *, shift: bool = False
) -> list[GoldenOptions]:
    text = _shifted if shift else str
    return [
        GoldenOptions(
            name=f"{i['name']}@{i['budget']}",
            profile=ChainProfile(
                input_bytes=i["wa"][0],
                input_gradient_bytes=i["wd"][0],
                stages=tuple(stage(i, k) for k in range(1, i["n"] + 1)),
            ),
            budget=i["budget"],
            optimum=i["optimum"],
            min_budget=i["min_budget"],
            schedules={
                rules: None if found is None else Schedule.parse(text(found))
                for rules, found in i["text"].items()
            },
            dp=i["dp"],
            recursion_schedule=Schedule.parse(text(found))
            if (found := i["dp"].get("persistent_schedule"))
            else None,
            facts=i,
        )
        for i in json.loads((_FOLDER / f"{name}.json").read_text())["instances"]
    ]


OPTIONS: Final = _load("options", _stage)
FIRST_AGAIN: Final = _load("options_first_again", _stage_of_runs)
SUPER_STAGES: Final = _load("super_stages", _stage_of_spans, shift=True)
ALL: Final = (*OPTIONS, *FIRST_AGAIN, *SUPER_STAGES)
