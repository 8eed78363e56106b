"""The shared golden chains as profiles; every optimum in them was found by exhaustive search."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from chainstay.profiles import ChainProfile, Stage
from chainstay.schedule import Op, OpKind, Schedule

_FILE = Path(__file__).parents[1] / "golden" / "chain.json"
_KINDS = {
    "Fnone": OpKind.FORWARD_DROP,
    "Fck": OpKind.FORWARD_KEEP_INPUT,
    "Fall": OpKind.FORWARD_KEEP_ALL,
    "B": OpKind.BACKWARD,
    "Da": OpKind.DISCARD_ACTIVATION,
    "Db": OpKind.DISCARD_SAVED,
}


@dataclass(frozen=True)
class GoldenChain:
    """One instance: `None` among the optima means infeasible."""

    name: str
    profile: ChainProfile
    budget: int
    optimum: dict[str, int | None]
    min_budget: dict[str, int]
    schedules: dict[str, Schedule | None]

    @property
    def stages(self) -> int:
        return len(self.profile)

    @property
    def has_small_gradients(self) -> bool:
        """Whether no gradient is larger than its activation (δ ≤ a)."""
        p = self.profile
        return all(p.gradient_bytes(i) <= p.activation_bytes(i) for i in range(self.stages + 1))


def _schedule(ops: list[tuple[str, int]] | None) -> Schedule | None:
    """Stages there count from 1; a discarded a^i is the input of stage i here already."""
    if ops is None:
        return None
    return Schedule(
        tuple(Op(_KINDS[name], index if name == "Da" else index - 1) for name, index in ops)
    )


def load() -> list[GoldenChain]:
    """All instances of the file."""
    return [
        GoldenChain(
            name=f"{i['name']}@{i['budget']}",
            profile=ChainProfile(
                input_bytes=i["wa"][0],
                input_gradient_bytes=i["wd"][0],
                stages=tuple(
                    Stage(
                        name=f"F{k}",
                        forward_time=i["uf"][k],
                        backward_time=i["ub"][k],
                        output_bytes=i["wa"][k],
                        saved_bytes=i["wb"][k],
                        gradient_bytes=i["wd"][k],
                        forward_overhead_bytes=i["of"][k],
                        backward_overhead_bytes=i["ob"][k],
                    )
                    for k in range(1, i["n"] + 1)
                ),
            ),
            budget=i["budget"],
            optimum=i["optimum"],
            min_budget=i["min_budget"],
            schedules={k: _schedule(v) for k, v in i["schedules"].items()},
        )
        for i in json.loads(_FILE.read_text())["instances"]
    ]


GOLDEN = load()
