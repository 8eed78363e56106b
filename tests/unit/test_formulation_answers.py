"""What an answer of a formulation may promise, whoever solved it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chainstay.errors import (
    CertificateError,
    InfeasibleBudgetError,
    InvalidScheduleError,
    SolverLimitError,
)
from chainstay.formulations.chain.claim_builder import ClaimBuilder
from chainstay.formulations.settings import TerminationStatus
from chainstay.profiles import ChainProfile, Stage
from chainstay.schedule import Discards, Schedule

STAGE = Stage(forward_time=10, backward_time=7, output_bytes=3, saved_bytes=5, gradient_bytes=3)
CHAIN = ChainProfile(input_bytes=3, input_gradient_bytes=0, stages=(STAGE,) * 2)
KEEP_ALL = Schedule.keep_all(2)  # 34 ns
RERUN = Schedule.parse("Fc0 Fa1 B1 Fa0 B0")  # 44 ns
STARTED = ClaimBuilder(
    profile=CHAIN,
    budget=20,
    discards=Discards.TABLE1,
    method="solver",
    hint=RERUN,
    has_start=True,
)
UNSTARTED = replace(STARTED, has_start=False)
ALONE = replace(UNSTARTED, hint=None)


def test_an_optimum_is_its_own_bound() -> None:
    claim = STARTED.claim(TerminationStatus.OPTIMAL, (KEEP_ALL, 34), 20)
    assert (claim.schedule, claim.makespan, claim.lower_bound) == (KEEP_ALL, 34, 34)
    assert claim.scope == STARTED.scope


def test_without_a_proof_the_bound_stays_below() -> None:
    claim = STARTED.claim(TerminationStatus.LIMIT, (RERUN, 44), 40)
    assert (claim.makespan, claim.lower_bound) == (44, 40)


def test_a_bound_just_above_what_was_found_is_a_rounding_error() -> None:
    assert STARTED.claim(TerminationStatus.LIMIT, (RERUN, 44), 45).lower_bound == 44
    assert STARTED.claim(TerminationStatus.OPTIMAL, (RERUN, 44), 45).lower_bound == 44


def test_a_hint_comes_back_when_nothing_was_found() -> None:
    claim = STARTED.claim(TerminationStatus.LIMIT, None, 40)
    assert (claim.schedule, claim.makespan, claim.lower_bound) == (RERUN, 44, 40)


def test_a_hint_from_outside_the_model_may_beat_its_bound() -> None:
    assert UNSTARTED.claim(TerminationStatus.LIMIT, None, 50).lower_bound == 44


@pytest.mark.parametrize(
    ("verdict", "found", "bound"),
    [
        (TerminationStatus.OPTIMAL, (RERUN, 54), 40),  # an optimum slower than the start
        (TerminationStatus.LIMIT, (RERUN, 54), 54),  # a bound above it
        (TerminationStatus.LIMIT, None, 54),  # with nothing found, too
        (TerminationStatus.OPTIMAL, None, 54),
    ],
)
def test_a_solver_that_denies_its_start_is_caught(
    verdict: TerminationStatus, found: tuple[Schedule, int] | None, bound: int
) -> None:
    text = "solver says that nothing is faster than 54 ns, and had accepted a schedule of 44 ns"
    with pytest.raises(CertificateError, match=text) as caught:
        STARTED.claim(verdict, found, bound)
    assert (caught.value.profile, caught.value.budget) == (CHAIN, 20)


def test_nothing_at_all_is_an_error_with_the_bound() -> None:
    with pytest.raises(SolverLimitError, match="solver found no schedule of this 2-") as caught:
        ALONE.claim(TerminationStatus.LIMIT, None, 40)
    assert caught.value.best_bound == 40


def test_a_hint_for_a_longer_chain_is_refused() -> None:
    question = replace(UNSTARTED, hint=Schedule.keep_all(3))
    with pytest.raises(InvalidScheduleError, match="Fa2 of the hint names stage 2, the last one"):
        question.claim(TerminationStatus.LIMIT, None, 40)


def late() -> int:
    raise SolverLimitError("the least one is not known")


def test_what_is_said_when_nothing_fits() -> None:
    error = UNSTARTED.nothing_fits(lambda: 21)
    assert isinstance(error, InfeasibleBudgetError)
    assert (error.budget, error.required) == (20, 21)
    assert (
        str(ALONE.nothing_fits(late)) == "nothing fits in 20 bytes, and the least one is not known"
    )


@pytest.mark.parametrize("required", [19, 20])
def test_a_least_budget_that_is_there_already_is_caught(required: int) -> None:
    error = ALONE.nothing_fits(lambda: required)
    assert isinstance(error, CertificateError)
    assert f"fits in 20 bytes, and has a schedule that needs {required}" in str(error)


def test_a_denied_start_carries_both_words() -> None:
    error = STARTED.nothing_fits(late)
    assert isinstance(error, CertificateError)
    hint, said = error.statements
    assert (hint.claim.schedule, hint.claim.makespan, said.method) == (RERUN, 44, "solver")  # type: ignore[attr-defined]
