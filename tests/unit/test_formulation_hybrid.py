"""Every group of constraints of the hybrid program is needed."""

from __future__ import annotations

import pytest

from chainstay.formulations.cpsat import hybrid
from chainstay.formulations.cpsat.hybrid_truncation import ModelSize
from chainstay.formulations.ortools_backend import solve
from chainstay.formulations.settings import Limits, TerminationStatus
from chainstay.problems.hybrid import HybridProblem
from chainstay.timetable import Time
from hybrid_support import tiny

NEEDED = ["_move_one_at_a_time", "_store_in_budget"]
"""Without `_read`, what is made would be made in vain, and there is no answer at all."""


def optimum(problem: HybridProblem) -> Time:
    program = hybrid.build(problem, ModelSize())
    outcome = solve(program.model, Limits(time_s=60))
    assert outcome.status is TerminationStatus.OPTIMAL
    return program.to_time(outcome.objective)


@pytest.mark.parametrize("name", NEEDED)
def test_without_a_group_the_answer_is_too_fast(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = tiny(1)
    assert optimum(problem) == 10
    monkeypatch.setattr(hybrid, name, lambda _: None)
    assert optimum(problem) < 10
