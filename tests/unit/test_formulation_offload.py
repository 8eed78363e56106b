"""The Pyomo models of offloading: every sentence is needed, and the models can be written out."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from chainstay.formulations import backends, interruptible, offload
from chainstay.formulations.algebra import pyo
from chainstay.formulations.settings import Limits
from chainstay.offloading import OffloadProblem
from chainstay.profiles import Link, OffloadProfile
from chainstay.timetable import Transfers
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


def least_time(golden: GoldenOffload, model: Any, transfers: str) -> float:  # noqa: ANN401
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
RETURNS = (interruptible.turning_points, interruptible.back_what_has_left)
"""Coming back before leaving helps nobody: these keep plans valid, not the optimum right."""


@pytest.mark.parametrize(
    "group",
    [group for group in offload.GROUPS if group is not USELESS_MOVES],
    ids=lambda group: group.__name__,
)
def test_every_sentence_about_whole_transfers_is_needed(
    group: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tuple(each for each in offload.GROUPS if each is not group)
    monkeypatch.setattr(offload, "GROUPS", others)
    for golden in SHORT:
        assert golden.integral is not None
        if least_time(golden, offload, "integral") < golden.integral - Fraction(1, 100):
            return
    pytest.fail("without it, no golden instance has too fast an answer")


@pytest.mark.parametrize(
    "group",
    [group for group in interruptible.GROUPS if group not in RETURNS],
    ids=lambda group: group.__name__,
)
def test_every_sentence_about_interruptible_transfers_is_needed(
    group: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = tuple(each for each in interruptible.GROUPS if each is not group)
    monkeypatch.setattr(interruptible, "GROUPS", others)
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
