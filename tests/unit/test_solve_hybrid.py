"""Methods for recomputing and offloading together: by name, refused, and held to their word."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from chainstay import CPSAT, DP, MIP, solve_chain, solve_hybrid, solve_offload
from chainstay.errors import (
    BackendError,
    CertificateError,
    HostBudgetError,
    InfeasibleBudgetError,
    InvalidProfileError,
    SolverLimitError,
    UnknownMethodError,
)
from chainstay.problems.hybrid import HybridClaim, HybridProblem
from chainstay.problems.offload import OffloadClaim, OffloadProblem
from chainstay.profiles import ChainProfile, Link, OffloadProfile, Stage
from chainstay.solve.hybrid import AutoHybrid, IntegerProgramHybrid, Pofo
from chainstay.solve.offload import AutoOffload, IntegerProgramOffload
from chainstay.timetable import Transfers
from chainstay.validation.hybrid.search import hybrid_optimum
from golden_offloads import GAP
from hybrid_support import CHAIN, tiny

LINK = Link(bandwidth=2)
PROBLEM = HybridProblem(CHAIN, 16, LINK)
QUICK_CPSAT = IntegerProgramHybrid(CPSAT(time_limit_s=0.5))
NO_ROOM = replace(PROBLEM, budget=PROBLEM.required_bytes, link=Link(bandwidth=2, capacity=0))
"""Something has to leave, and there is no room for it."""


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_mixed_integer_program_by_name_finds_what_search_finds(seed: int) -> None:
    """From what [POFO] finds, over links of all kinds."""
    problem = tiny(seed)
    best = hybrid_optimum(problem.profile, budget=problem.budget, link=problem.link)
    assert best is not None
    found = solve_hybrid(problem.profile, problem.budget, link=problem.link, method="mip")
    assert found.makespan == best.makespan
    assert found.lower_bound <= best.makespan


@pytest.mark.parametrize("settings", [MIP(time_limit_s=20), CPSAT(time_limit_s=20)], ids=str)
def test_a_chain_of_the_loss_alone(settings: MIP | CPSAT) -> None:
    one = replace(CHAIN, stages=CHAIN.stages[1:])
    problem = HybridProblem(one, HybridProblem(one, 1, LINK).required_bytes, LINK)
    claim = IntegerProgramHybrid(settings, alone=True)(problem)
    best = hybrid_optimum(one, budget=problem.budget, link=LINK)
    assert best is not None
    assert claim.makespan == claim.unrestricted_bound == best.makespan


def test_wrong_calls_are_refused() -> None:
    other: Any = OffloadProfile.from_chain(CHAIN)
    with pytest.raises(InvalidProfileError, match="is an OffloadProfile, must be a ChainProfile; "):
        solve_hybrid(other, 16, link=LINK)
    with pytest.raises(UnknownMethodError, match="where data may move, DP takes slots only"):
        solve_hybrid(CHAIN, 16, link=LINK, method=DP(persistence="weak"))
    with pytest.raises(UnknownMethodError, match="discards is 'free'; where data may move, all ma"):
        solve_hybrid(CHAIN, 16, link=LINK, method=MIP(discards="free"))
    fractional = replace(PROBLEM, transfers=Transfers.FRACTIONAL)
    with pytest.raises(
        UnknownMethodError, match="for integral transfers, not fractional ones; use"
    ):
        IntegerProgramHybrid(CPSAT())(fractional)
    with pytest.raises(InvalidProfileError, match="2 stages and 100000000 slots need a table of"):
        solve_hybrid(CHAIN, 16, link=LINK, method=DP(slots=10**8))
    slots = solve_hybrid(CHAIN, 16, link=LINK, method=DP(slots=16))
    assert slots.makespan >= solve_hybrid(CHAIN, 16, link=LINK).makespan


@pytest.mark.long
@pytest.mark.parametrize(
    "method",
    [AutoHybrid(exact_stages=0), AutoHybrid(time_limit_s=0.5), Pofo(), QUICK_CPSAT],
    ids=str,
)
def test_too_little_host_memory_names_enough(method: Any) -> None:
    with pytest.raises(SolverLimitError):
        method(NO_ROOM)
    with pytest.raises(HostBudgetError) as caught:
        solve_hybrid(CHAIN, NO_ROOM.budget, link=NO_ROOM.link, method=method)
    assert caught.value.budget == 0
    room = replace(NO_ROOM.link, capacity=caught.value.required)
    found = solve_hybrid(CHAIN, NO_ROOM.budget, link=room, method=method)
    assert found.host_bytes <= caught.value.required


def test_without_its_solver_auto_says_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object) -> HybridClaim:
        raise BackendError("no ortools")

    monkeypatch.setattr(IntegerProgramHybrid, "improve", missing)
    found = solve_hybrid(CHAIN, 16, link=LINK)
    quick = AutoHybrid(exact_stages=0)
    assert found.makespan == solve_hybrid(CHAIN, 16, link=LINK, method=quick).makespan
    with pytest.raises(SolverLimitError, match="no plan of this 2-stage chain was found") as caught:
        AutoHybrid()(NO_ROOM)
    assert isinstance(caught.value.__cause__, BackendError)


def test_over_a_slow_link_auto_recomputes_under_its_own_rules() -> None:
    """It may drop anything at any time: saved data outlive their input here."""
    stage = Stage(
        forward_time=1, backward_time=2, output_bytes=10, saved_bytes=30, gradient_bytes=10
    )
    chain = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(stage,) * 12)
    quick = AutoHybrid(combined=Pofo(slots=16, tries=5))
    found = solve_hybrid(chain, 195, link=Link(bandwidth=Fraction(1, 1000)), method=quick)
    alone = solve_chain(chain, 195, DP(discards="free")).makespan
    assert found.makespan == dict(found.alternatives)["recompute"] == alone == 43


@pytest.mark.parametrize("method", ["dp", AutoHybrid(exact_stages=0)], ids=str)
def test_the_least_budget_named_has_a_plan(method: Any) -> None:
    """One that drops what the first stage saved, and runs it again: no persistent one fits."""
    sizes = ((6, 10, 6, 4, 0), (1, 6, 1, 1, 1), (1, 1, 1, 0, 1))
    stages = tuple(
        Stage(
            output_bytes=output,
            saved_bytes=saved,
            gradient_bytes=gradient,
            forward_overhead_bytes=forward,
            backward_overhead_bytes=backward,
        )
        for output, saved, gradient, forward, backward in sizes
    )
    chain = ChainProfile(input_bytes=1, input_gradient_bytes=1, stages=stages)
    with pytest.raises(InfeasibleBudgetError) as caught:
        solve_hybrid(chain, 1, link=LINK, method=method)
    assert caught.value.required == 20
    assert solve_hybrid(chain, 20, link=LINK, method=method).peak_bytes == 20
    with pytest.raises(SolverLimitError, match="a little, or try transfers='integral'"):
        solve_hybrid(chain, 20, link=LINK, method=method, transfers="fractional")


def test_a_bound_above_what_is_known_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Pofo()(PROBLEM)

    def too_high(*_: object, **__: object) -> HybridClaim:
        return replace(known, lower_bound=known.makespan + 1, unrestricted_bound=known.makespan + 1)

    monkeypatch.setattr("chainstay.solve.hybrid_exact.claim", too_high)
    text = f"cpsat.* says that nothing is faster than {known.makespan + 1}, yet {known.makespan} is"
    with pytest.raises(CertificateError, match=text) as caught:
        IntegerProgramHybrid(CPSAT()).improve(PROBLEM, known)
    assert '"known"' in caught.value.report


def test_a_bound_on_offloading_above_what_is_known_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = OffloadProblem(GAP.profile, GAP.budget, GAP.link)

    def too_high(*_: object, **__: object) -> OffloadClaim:
        return replace(AutoOffload(exact_stages=0)(problem), lower_bound=16)

    monkeypatch.setattr("chainstay.solve.offload.cpsat.claim", too_high)
    with pytest.raises(CertificateError, match="says that nothing is faster than 16, yet 15 is"):
        IntegerProgramOffload(CPSAT())(problem)


@pytest.mark.parametrize(
    "method", [AutoOffload(exact_stages=0), AutoOffload(), "greedy", "dp"], ids=repr
)
def test_offloading_without_room_on_the_host_names_enough(method: Any) -> None:
    none = replace(GAP.link, capacity=0)
    with pytest.raises(HostBudgetError) as caught:
        solve_offload(GAP.profile, GAP.budget, link=none, method=method)
    enough = replace(GAP.link, capacity=caught.value.required)
    found = solve_offload(GAP.profile, GAP.budget, link=enough)
    assert found.host_bytes <= caught.value.required
