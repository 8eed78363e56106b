"""A part of the fault matrix; more of it by CHAINSTAY_FAULT_POINTS=100 in the environment."""

from __future__ import annotations

import os
import sys

import pytest

from fault_conditions import CONDITIONS, condition_trial
from fault_matrix import condition_rows, fault_row
from fault_subjects import MAKERS, subject
from faults import FAULTS, Fault, trial

_MOST = int(os.environ.get("CHAINSTAY_FAULT_POINTS", "4"))
"""Points of each kind."""
_OFFLOADING = ("offloaded", "combined")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.long
def test_training_goes_on_after_a_fault(name: str, fault: Fault) -> None:
    if fault.needs_engine and name not in _OFFLOADING:
        return
    if fault.is_sent and sys.gettrace() is not None and sys.version_info < (3, 12):
        pytest.skip("CPython 3.11 hangs where an exception is sent to a thread while it is traced")
    row = fault_row(subject(name), fault, _MOST)
    assert row.tried >= 3, "the fault can happen"
    assert row.wrong == {}


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.long
def test_a_model_in_other_conditions_is_right_or_refused(name: str) -> None:
    row = condition_rows(subject(name), len(CONDITIONS) // 2)
    assert row.tried >= 3
    assert row.wrong == {}


@pytest.mark.parametrize("place", ["before a step", "between forward and backward"])
@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("layered", "a layer is replaced"),
        ("layered", "dropout is raised"),
        ("layered", "a forward hook is added"),
        ("layered", "a parameter's data are re-assigned"),
        ("convolutional", "dropout is raised"),
        ("convolutional", "a momentum is changed"),
        ("convolutional", "a global hook is added"),
        ("dense", "a layer's forward is replaced"),
        ("transformer by blocks", "a layer is replaced"),
    ],
)
def test_models_edited_after_planning(name: str, edit: str, place: str) -> None:
    """Each of these once ran silently as it was, in one of the two places."""
    (condition,) = (known for known in CONDITIONS if known.name == f"{edit} {place}")
    assert condition_trial(subject(name), condition) == []


def test_the_trial_finds_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recomputation that leaves its random numbers behind, whatever makes them again."""
    there = subject("transformer by blocks")  # at its least budget no dropout is kept
    place = FAULTS[0].points(there) - 1  # planning, which would find it, is done by now
    for module in ("execute.environment", "options.replay"):
        monkeypatch.setattr(
            f"chainstay.runtime.{module}.restore_random_states", lambda _states: None
        )
    found = trial(there, FAULTS[0], place)
    assert "random numbers go on from elsewhere" in found
