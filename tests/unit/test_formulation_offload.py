"""The Pyomo models of offloading: every sentence is needed, and the models can be written out."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from chainstay.formulations import highs_backend as backends
from chainstay.formulations.offload import formulation as offload
from chainstay.formulations.offload import interruptible
from chainstay.formulations.pyomo_types import pyo
from chainstay.formulations.settings import Limits
from chainstay.problems.offload import OffloadProblem
from chainstay.profiles import Link, OffloadProfile
from chainstay.timetable import Transfers
from chainstay.validation.offload.search import offload_optimum
from golden_offloads import FEASIBLE, GoldenOffload

SHORT = [golden for golden in FEASIBLE if golden.last <= 4]
ODD = OffloadProfile(
    activations=(5, 1, 1, 1),
    gradients=(0, 0, 0, 0),
    forward_overheads=(0, 0, 0),
    backward_overheads=(0, 0, 0),
    forward_times=(2, 1, 1),
    backward_times=(1, 1, 1),
)


def least_time(golden: GoldenOffload, model: Any, transfers: str) -> float:
    """The optimum of a model as it is, in the profile's time units."""
    asked = OffloadProblem(golden.profile, golden.budget, golden.link, Transfers(transfers))
    formulation = model.build(asked)
    backends.solve(formulation.model, Limits(time_s=20), gap=1e-6)
    (objective,) = formulation.model.component_data_objects(pyo.Objective)
    unit = Fraction(formulation.unit, golden.link.ticks)
    idle = float(pyo.value(objective) * unit)
    return idle + (golden.profile.least_time if model is interruptible else 0)


USELESS_MOVES = offload.returns_after_it_is_gone
"""Keeps moves valid of which no memory is claimed; what is claimed says the same by itself."""
HOST = (offload.held_unless_back_or_later, offload.memory_of_the_host)
"""About a limit on host memory, which golden instances have not."""
RETURNS = (interruptible.turning_points, interruptible.back_what_has_left)
"""Coming back before leaving helps nobody: these keep plans valid, not the optimum right."""


@pytest.mark.parametrize(
    "group",
    [group for group in offload.CONSTRAINTS if group not in (USELESS_MOVES, *HOST)],
    ids=lambda group: group.__name__,
)
def test_every_sentence_about_whole_transfers_is_needed(
    group: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tuple(other for other in offload.CONSTRAINTS if other is not group)
    monkeypatch.setattr(offload, "CONSTRAINTS", others)
    for golden in SHORT:
        assert golden.integral is not None
        if least_time(golden, offload, "integral") < golden.integral - Fraction(1, 100):
            return
    pytest.fail("without it, no golden instance has too fast an answer")


def limited(
    activations: tuple[int, ...],
    times: tuple[tuple[int, ...], tuple[int, ...]],
    budget: int,
    capacity: int,
) -> OffloadProblem:
    none = (0,) * len(times[0])
    profile = OffloadProfile(
        activations=activations,
        gradients=(0, *none),
        forward_overheads=none,
        backward_overheads=none,
        forward_times=times[0],
        backward_times=times[1],
    )
    return OffloadProblem(profile, budget, Link(bandwidth=2, capacity=capacity))


@pytest.mark.parametrize(
    ("group", "asked", "optimum"),
    [
        (HOST[0], limited((4, 3, 3, 2, 4), ((4, 4, 3, 4), (2, 1, 4, 3)), 10, 6), 28),
        (HOST[1], limited((4, 4, 3, 3, 4), ((1, 4, 1, 1), (2, 3, 1, 3)), 17, 3), 18),
    ],
    ids=["held", "memory"],
)
def test_every_sentence_about_the_host_is_needed(
    group: object, asked: OffloadProblem, optimum: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def solved() -> Fraction:
        built = offload.build(asked)
        backends.solve(built.model, Limits(time_s=20), gap=0.5)
        makespan = round(pyo.value(built.model.makespan))
        return Fraction(makespan * built.unit, asked.link.ticks)

    found = offload_optimum(asked.profile, budget=asked.budget, link=asked.link)
    assert solved() == found.makespan == optimum
    monkeypatch.setattr(
        offload, "CONSTRAINTS", tuple(g for g in offload.CONSTRAINTS if g is not group)
    )
    assert solved() < optimum


@pytest.mark.parametrize(
    "group",
    [group for group in interruptible.CONSTRAINTS if group not in RETURNS],
    ids=lambda group: group.__name__,
)
def test_every_sentence_about_interruptible_transfers_is_needed(
    group: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tuple(other for other in interruptible.CONSTRAINTS if other is not group)
    monkeypatch.setattr(interruptible, "CONSTRAINTS", others)
    for golden in FEASIBLE:
        assert golden.interruptible is not None
        found = least_time(golden, interruptible, "interruptible")
        if found < golden.interruptible - Fraction(1, 100):
            return
    pytest.fail("without it, no golden instance has too fast an answer")


def test_models_can_be_written_out(tmp_path: Path) -> None:
    asked = OffloadProblem(ODD, 7, Link(bandwidth=1))
    path = tmp_path / "offload.lp"
    offload.build(asked).model.write(str(path), io_options={"symbolic_solver_labels": True})
    assert "moves(0)" in path.read_text()
