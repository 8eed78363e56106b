"""The method `CPSAT`: settings, outcomes under limits, hints, families."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from chainstay.errors import (
    BackendError,
    CertificateError,
    InvalidProfileError,
    SolverLimitError,
    UnknownMethodError,
)
from chainstay.formulations import CPSAT, ortools_backend, program_by_cpsat
from chainstay.formulations.chain.claims import minimum_budget
from chainstay.formulations.chain.formulation import build
from chainstay.formulations.ortools_backend import CpSatResult
from chainstay.formulations.settings import Limits, TerminationStatus
from chainstay.profiles import ChainProfile, Stage
from chainstay.schedule import Discards, Schedule
from chainstay.validation.simulate import simulate
from formulation_support import BY_NAME, CHAIN, NO_TIME, PERIODIC
from golden_chains import GOLDEN

MINUTE = Limits(time_s=60.0)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"workers": 0}, "workers is 0, must be a positive integer"),
        ({"workers": 1.5}, "workers is 1.5"),
    ],
)
def test_settings_that_do_not_exist_are_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(UnknownMethodError, match=text):
        CPSAT(**settings)


def test_text_of_a_method() -> None:
    assert str(CPSAT()) == "cpsat (60 s, table1)"
    assert str(CPSAT(time_limit_s=0.5, discards="tape")) == "cpsat (0.5 s, tape)"
    assert CPSAT(discards="free").discards is Discards.FREE


def test_settings_and_import_need_neither_pyomo_nor_a_solver() -> None:
    program = (
        "import sys; from chainstay.formulations import CPSAT; CPSAT(seed=1);"
        "print(sorted({'pyomo', 'highspy', 'ortools'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "[]\n"


def test_solving_needs_no_pyomo() -> None:
    program = (
        "import sys; from chainstay.formulations import CPSAT;"
        "from chainstay.profiles import ChainProfile, Stage;"
        "chain = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(Stage(),));"
        "print(CPSAT()(chain, 9).schedule, 'pyomo' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "Fa0 B0 False\n"


def test_a_missing_solver_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(BackendError, match=r'pip install "ortools>=9\.10"'):
        CPSAT()(CHAIN, 28)


def test_a_hint_is_a_cutoff() -> None:
    formulation = build(CHAIN, 40)
    start = formulation.encode(PERIODIC)
    assert start is not None
    model, variables = program_by_cpsat.cpsat_model(formulation.program, start)
    terms = formulation.program.objective.terms
    model.maximize(sum(n * variables[key] for key, n in terms.items()))
    slowest = ortools_backend.solve(model, MINUTE).objective
    assert slowest == formulation.program.cost(start) == 9


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("Fa0 Fa1 Fa2 Fa3 Fa4 Fa5 B5 B4 B3 B2 B1 B0", 20),  # exceeds the budget
        ("Fa0 Fa1 B1 B0", 40),  # of a shorter chain
        ("Fc0 Fa1 Fa2 Fa3 Fa4 Fa5 B5 B4 B3 B2 Da1 Fa0 Fa1 B1 B0", 40),  # discards
    ],
)
def test_a_hint_that_the_model_lacks_does_no_harm(text: str, budget: int) -> None:
    assert build(CHAIN, budget).encode(Schedule.parse(text)) is None
    hinted = CPSAT()(CHAIN, budget, hint=Schedule.parse(text))
    assert hinted.makespan == CPSAT()(CHAIN, budget).makespan


def test_most_golden_optima_are_in_the_program() -> None:
    """Free optima of the search lean on odd orders; those of Table 1 seldom do."""
    found = [
        build(golden.profile, golden.budget).encode(schedule)
        for golden in GOLDEN
        if (schedule := golden.schedules.get("persistent")) is not None
    ]
    assert len(found) - found.count(None) >= 30


@pytest.mark.parametrize("name", ["table2@9000", "K4_orphaned_tape_trick@9"])
def test_free_discards_in_mid_sweep_are_encoded(name: str) -> None:
    """To the byte: without them, these optima would not fit in their budgets."""
    golden = BY_NAME[name]
    schedule = golden.schedules["free"]
    assert schedule is not None
    assert build(golden.profile, golden.budget, discards="free").encode(schedule) is not None


def test_without_time_the_hint_comes_back() -> None:
    claim = CPSAT(time_limit_s=NO_TIME)(CHAIN, 32, hint=PERIODIC)
    assert claim.schedule == PERIODIC
    assert claim.makespan == simulate(CHAIN, PERIODIC).makespan
    assert CHAIN.least_time <= claim.lower_bound < claim.makespan


def test_least_budget_that_no_time_is_left_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SolverLimitError, match="6-stage chain is not known after 1e-09 s"):
        minimum_budget(CHAIN, CPSAT(time_limit_s=NO_TIME), program_by_cpsat.solve_by_cpsat)
    outcomes = iter(
        [
            CpSatResult(status=TerminationStatus.INFEASIBLE),
            CpSatResult(status=TerminationStatus.LIMIT),
        ]
    )
    monkeypatch.setattr(ortools_backend, "solve", lambda *_: next(outcomes))
    with pytest.raises(SolverLimitError, match="nothing fits in 5 bytes, and the least"):
        CPSAT()(CHAIN, 5)


def test_least_budget_that_is_known_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = ortools_backend.solve
    least = minimum_budget(CHAIN, CPSAT(), program_by_cpsat.solve_by_cpsat)

    def late(model: ortools_backend.Model, limits: Limits) -> CpSatResult:
        return replace(solve(model, limits), status=TerminationStatus.LIMIT)

    monkeypatch.setattr(ortools_backend, "solve", late)
    with pytest.raises(SolverLimitError, match=f"is at most {least} bytes after 60 s"):
        minimum_budget(CHAIN, CPSAT(), program_by_cpsat.solve_by_cpsat)


def test_a_solver_that_denies_its_start_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ortools_backend, "solve", lambda *_: CpSatResult(status=TerminationStatus.INFEASIBLE)
    )
    denial = r"cpsat \(60 s, table1\) says that nothing fits, and had accepted a schedule of 132 ns"
    with pytest.raises(CertificateError, match=denial) as caught:
        CPSAT()(CHAIN, 32, hint=PERIODIC)
    assert json.loads(caught.value.report)["answers"][0]["schedule"] == str(PERIODIC)


def test_a_bound_without_schedule_counts_backwards_and_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        ortools_backend, "solve", lambda *_: CpSatResult(status=TerminationStatus.LIMIT, bound=8)
    )
    with pytest.raises(SolverLimitError, match="nor a proof") as caught:
        CPSAT()(CHAIN, 28)
    assert caught.value.best_bound == 6 * 7 + 10 * 8


def test_a_model_that_cp_sat_refuses_is_our_bug() -> None:
    model = ortools_backend.new_model()
    model.minimize(sum(2**61 * model.new_int_var(0, 2**61, "") for _ in range(3)))
    with pytest.raises(BackendError, match="CP-SAT ended with 'MODEL_INVALID'"):
        ortools_backend.solve(model, MINUTE)


@pytest.mark.long
def test_sums_beyond_exact_floats_are_refused() -> None:
    stages = (Stage(output_bytes=2**48, saved_bytes=2**48 - 1, gradient_bytes=2**48),)
    profile = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=stages * 40)
    with pytest.raises(
        InvalidProfileError, match=r"exact up to 2\*\*53; measure in coarser units, or use"
    ):
        CPSAT()(profile, 10**15)
