"""The method `CPSAT`: settings, outcomes under limits, hints, families, every sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from chainstay.errors import (
    BackendError,
    CertificateError,
    InvalidProfileError,
    InvalidScheduleError,
    SolverLimitError,
    UnknownMethodError,
)
from chainstay.formulations import CPSAT
from chainstay.formulations.cpsat import chain, chain_claims, ortools_backend
from chainstay.formulations.cpsat.chain_constraints import CONSTRAINTS
from chainstay.formulations.cpsat.chain_variables import ChainVariables
from chainstay.formulations.cpsat.ortools_backend import CpSatResult
from chainstay.formulations.settings import Limits, TerminationStatus
from chainstay.profiles import ChainProfile, Stage
from chainstay.schedule import Discards, Schedule
from chainstay.validation import search
from chainstay.validation.simulate import simulate
from formulation_support import BY_NAME, CHAIN, NO_TIME, PAIR, PERIODIC, STAGE
from golden_chains import GOLDEN, GoldenChain

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
    program = chain.build(CHAIN, 40, discards=Discards.TABLE1)
    assert program.start_from(PERIODIC, MINUTE)
    program.model.maximize(chain._forward_time(program.variables, program.time_unit))
    outcome = ortools_backend.solve(program.model, MINUTE)
    assert outcome.objective * program.time_unit == 9 * STAGE.forward_time


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("Fa0 Fa1 Fa2 Fa3 Fa4 Fa5 B5 B4 B3 B2 B1 B0", 20),  # exceeds the budget
        ("Fa0 Fa1 B1 B0", 40),  # of a shorter chain
        ("Fc0 Fa1 Fa2 Fa3 Fa4 Fa5 B5 B4 B3 B2 Da1 Fa0 Fa1 B1 B0", 40),  # discards
    ],
)
def test_a_hint_that_the_model_lacks_does_no_harm(text: str, budget: int) -> None:
    program = chain.build(CHAIN, budget, discards=Discards.TABLE1)
    assert not program.start_from(Schedule.parse(text), MINUTE)
    hinted = CPSAT()(CHAIN, budget, hint=Schedule.parse(text))
    assert hinted.makespan == CPSAT()(CHAIN, budget).makespan


@pytest.mark.parametrize("golden", GOLDEN, ids=lambda golden: golden.name)
@pytest.mark.parametrize("discards", Discards)
def test_golden_optima_are_hints_or_nothing(golden: GoldenChain, discards: Discards) -> None:
    """Encoded and decoded, an optimum that the model has is still valid and as fast."""
    schedule = golden.schedules.get(discards)
    if schedule is None:
        return
    program = chain.build(golden.profile, golden.budget, discards=discards, cuts=False)
    if not program.start_from(schedule, MINUTE):
        return
    outcome = ortools_backend.solve(program.model, MINUTE, only_the_hint=True)
    replay = simulate(golden.profile, program.decode(outcome), discards=discards)
    assert replay.peak_bytes <= golden.budget
    assert replay.makespan == golden.optimum[discards]


def test_most_golden_optima_are_in_the_model() -> None:
    """Free optima of the search lean on odd orders; those of Table 1 seldom do."""
    known = 0
    for golden in GOLDEN:
        schedule = golden.schedules.get("persistent")
        if schedule is not None:
            program = chain.build(golden.profile, golden.budget, discards=Discards.TABLE1)
            known += program.start_from(schedule, MINUTE)
    assert known >= 30


@pytest.mark.parametrize("name", ["table2@9000", "K4_orphaned_tape_trick@9"])
def test_free_discards_in_mid_sweep_are_encoded(name: str) -> None:
    """To the byte: without them, these optima would not fit in their budgets."""
    golden = BY_NAME[name]
    schedule = golden.schedules["free"]
    assert schedule is not None
    program = chain.build(golden.profile, golden.budget, discards=Discards.FREE)
    assert program.start_from(schedule, MINUTE)


def test_without_time_the_hint_comes_back() -> None:
    claim = CPSAT(time_limit_s=NO_TIME)(CHAIN, 32, hint=PERIODIC)
    assert claim.schedule == PERIODIC
    assert claim.makespan == simulate(CHAIN, PERIODIC).makespan
    assert CHAIN.least_time <= claim.lower_bound < claim.makespan


def test_least_budget_that_no_time_is_left_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SolverLimitError, match="6-stage chain is not known after 1e-09 s"):
        chain_claims.minimum_budget(CHAIN, limits=Limits(time_s=NO_TIME))
    outcomes = iter(
        [
            CpSatResult(status=TerminationStatus.INFEASIBLE),
            CpSatResult(status=TerminationStatus.LIMIT),
        ]
    )
    monkeypatch.setattr(chain_claims, "solve", lambda *_: next(outcomes))
    with pytest.raises(SolverLimitError, match="nothing fits in 5 bytes, and the least"):
        CPSAT()(CHAIN, 5)


def test_least_budget_that_is_known_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    late = CpSatResult(status=TerminationStatus.LIMIT, values=(), objective=30, bound=20)
    monkeypatch.setattr(chain_claims, "solve", lambda *_: late)
    with pytest.raises(SolverLimitError, match="is at most 30 bytes after 60 s"):
        chain_claims.minimum_budget(CHAIN)


def test_a_solver_that_denies_its_start_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        chain_claims, "solve", lambda *_: CpSatResult(status=TerminationStatus.INFEASIBLE)
    )
    denial = r"cpsat \(60 s, table1\) says that nothing fits, and had accepted a schedule of 132 ns"
    with pytest.raises(CertificateError, match=denial) as caught:
        CPSAT()(CHAIN, 32, hint=PERIODIC)
    assert json.loads(caught.value.report)["answers"][0]["schedule"] == str(PERIODIC)


def test_a_bound_without_schedule_counts_backwards_and_units(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        chain_claims, "solve", lambda *_: CpSatResult(status=TerminationStatus.LIMIT, bound=8)
    )
    with pytest.raises(SolverLimitError, match="nor a proof") as caught:
        CPSAT()(CHAIN, 28)
    assert caught.value.best_bound == 6 * 7 + 10 * 8


def test_a_model_that_cp_sat_refuses_is_our_bug() -> None:
    model = ortools_backend.new_model()
    model.minimize(sum(2**61 * model.new_int_var(0, 2**61, "") for _ in range(3)))
    with pytest.raises(BackendError, match="CP-SAT ended with 'MODEL_INVALID'"):
        ortools_backend.solve(model, MINUTE)


def test_sums_beyond_exact_floats_are_refused() -> None:
    stages = (Stage(output_bytes=2**48, saved_bytes=2**48 - 1, gradient_bytes=2**48),)
    profile = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=stages * 40)
    with pytest.raises(
        InvalidProfileError, match=r"exact up to 2\*\*53; measure in coarser units, or use"
    ):
        CPSAT()(profile, 10**15)


@pytest.mark.parametrize("sentence", CONSTRAINTS, ids=lambda sentence: sentence.__name__)
def test_without_a_sentence_an_answer_is_wrong(
    sentence: Callable[[ChainVariables], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = tuple(other for other in CONSTRAINTS if other is not sentence)
    golden = BY_NAME["partition_1_1@3"]
    chosen = golden.profile, golden.budget, Discards.TAPE
    if sentence.__name__ == "records_of_several_stages_are_closed":
        chosen = PAIR, 21, Discards.TABLE1
    profile, budget, discards = chosen
    true = search.optimum(profile, budget, discards=discards).makespan
    assert _answer(*chosen) == (true, budget, "")
    monkeypatch.setattr(chain, "CONSTRAINTS", rest)
    makespan, _, refusal = _answer(*chosen)
    assert refusal or makespan < true


def test_without_a_limit_on_memory_it_overruns(monkeypatch: pytest.MonkeyPatch) -> None:
    golden = BY_NAME["partition_1_1@3"]
    monkeypatch.setattr(chain, "limit_memory", lambda *_, **__: None)
    _, peak, _ = _answer(golden.profile, golden.budget, Discards.TAPE)
    assert peak > golden.budget


def _answer(profile: ChainProfile, budget: int, discards: Discards) -> tuple[int, int, str]:
    """Makespan and peak of what the model without cuts finds, or why it is invalid."""
    program = chain.build(profile, budget, discards=discards, cuts=False)
    schedule = program.decode(ortools_backend.solve(program.model, MINUTE))
    try:
        replay = simulate(profile, schedule, discards=discards)
    except InvalidScheduleError as error:
        return 0, 0, error.reason
    return replay.makespan, replay.peak_bytes, ""
