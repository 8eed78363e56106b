"""What models with transfers may claim, for every way in which a solver can end."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from chainstay.errors import CertificateError, InvalidProfileError, SolverLimitError
from chainstay.formulations import CPSAT, MIP
from chainstay.formulations import highs_backend as backends
from chainstay.formulations.cpsat import hybrid as cpsat_hybrid
from chainstay.formulations.cpsat import hybrid_claims
from chainstay.formulations.cpsat import offload as cpsat_offload
from chainstay.formulations.cpsat.hybrid_truncation import ModelSize
from chainstay.formulations.highs_backend import HighsResult
from chainstay.formulations.offload import claims as offload_claims
from chainstay.formulations.offload import formulation as offload
from chainstay.formulations.offload import interruptible
from chainstay.formulations.ortools_backend import CpSatResult as CPOutcome
from chainstay.formulations.settings import TerminationStatus
from chainstay.problems.hybrid import HybridClaim, HybridProblem
from chainstay.problems.offload import OffloadClaim, OffloadProblem
from chainstay.profiles import Link, OffloadProfile, Stage
from chainstay.schedule import Schedule
from chainstay.solution import Family
from chainstay.solve.offload import IntegerProgramOffload
from chainstay.solve.offload_heuristics import Heuristics
from chainstay.timetable import Transfers
from chainstay.validation.hybrid.simulate import simulate_hybrid
from chainstay.validation.offload.search import offload_optimum
from chainstay.validation.replay import replay_transfers
from golden_offloads import GAP
from hybrid_support import CHAIN

HYBRID = HybridProblem(CHAIN, 16, Link(bandwidth=2))
PROGRAM = Schedule.parse("Oa0 Fa0 Fa1 B1 Pa0 B0")  # of 19
LARGEST = ModelSize(sweeps=4, prefetches=5)


def offload_problem(transfers: str = "integral", **link: Any) -> OffloadProblem:
    asked = OffloadProblem(GAP.profile, GAP.budget, GAP.link, Transfers(transfers))
    return replace(asked, link=replace(asked.link, **link))


def known_answer() -> OffloadClaim:
    problem = offload_problem()
    known = Heuristics()(problem)
    return replace(known, timetable=replay_transfers(problem, known).timetable)


def ends(
    monkeypatch: pytest.MonkeyPatch, verdict: TerminationStatus, bound: float = -math.inf
) -> None:
    """Let HiGHS end like this, with nothing found."""
    outcome = HighsResult(status=verdict, has_values=False, bound=bound)
    monkeypatch.setattr(backends, "solve", lambda *_, **__: outcome)


@pytest.mark.parametrize("transfers", ["integral", "interruptible"])
def test_the_known_schedule_comes_back_with_what_was_proved(
    transfers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, known = offload_problem(transfers), known_answer()
    ends(monkeypatch, TerminationStatus.LIMIT)
    claim = offload_claims.claim(problem, MIP(), known=known, least=12)
    assert (claim.schedule, claim.makespan, claim.lower_bound) == (known.schedule, 15, 12)
    ends(monkeypatch, TerminationStatus.LIMIT, 1000.0)
    claim = offload_claims.claim(problem, MIP(), known=known, least=12)
    assert claim.lower_bound == 15  # a bound never exceeds what is there


@pytest.mark.parametrize("transfers", ["integral", "interruptible", "fractional"])
def test_without_any_schedule_the_bound_is_in_the_error(
    transfers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends(monkeypatch, TerminationStatus.LIMIT)
    with pytest.raises(SolverLimitError, match="found no schedule of this") as caught:
        offload_claims.claim(offload_problem(transfers), MIP(), least=Fraction(21, 2))
    assert caught.value.best_bound == 11


def test_a_bound_of_whole_units_is_rounded_up(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = offload_problem()
    unit = Fraction(offload.build(problem).unit, problem.link.ticks)
    ends(monkeypatch, TerminationStatus.LIMIT, float(13 / unit) - 0.9)
    with pytest.raises(SolverLimitError) as caught:
        offload_claims.claim(problem, MIP())
    assert caught.value.best_bound == 13


def test_that_nothing_fits_is_a_lie_unless_the_host_has_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends(monkeypatch, TerminationStatus.INFEASIBLE)
    with pytest.raises(CertificateError, match="the MIP says that nothing fits") as caught:
        offload_claims.claim(offload_problem(), MIP())
    assert "counter-example" in caught.value.report
    monkeypatch.undo()
    # Nothing may be away, and with all of it here the budget is too small: HiGHS proves it.
    for method in (MIP(time_limit_s=20), CPSAT(time_limit_s=20)):
        with pytest.raises(SolverLimitError, match="nothing fits with so little room on the host"):
            IntegerProgramOffload(method, alone=True)(offload_problem(capacity=0))


def test_other_links_are_refused_where_transfers_are_parted() -> None:
    with pytest.raises(InvalidProfileError, match="interruptible transfers are solved over half-"):
        offload_claims.claim(offload_problem("interruptible", duplex="full"), MIP())


def test_whole_transfers_in_both_directions_at_once() -> None:
    """Over a full-duplex link, an offload and a prefetch need not wait for each other."""
    problem = offload_problem(duplex="full")
    best = offload_optimum(problem.profile, budget=problem.budget, link=problem.link)
    claim = offload_claims.claim(problem, MIP(time_limit_s=20))
    assert claim.makespan == claim.lower_bound == best.makespan
    assert replay_transfers(problem, claim).makespan == best.makespan


def test_values_that_are_no_plan_are_not_decoded() -> None:
    """They are of one small denominator, what leaves comes back, and that takes its time."""
    of = interruptible.build(offload_problem("interruptible"))
    values = [v for name in ("wait", "out", "back") for v in of.model.component(name).values()]
    for variable in values:
        variable.set_value(0)
    plan = of.decode()
    assert plan is not None
    assert not plan.moves
    of.model.wait[0].set_value(1 / 1441)
    assert of.decode() is None
    j = of.movable[0]
    of.model.wait[0].set_value(0)
    of.model.out[j, of.outs(j)[0]].set_value(of.size(j))
    assert of.decode() is None  # it leaves and never comes back
    of.model.back[j, of.backs(j)[0]].set_value(of.size(j))
    assert of.decode() is None  # in an interval that takes no time
    of.model.wait[of.outs(j)[0] // 2].set_value(of.size(j))
    of.model.wait[of.backs(j)[0] // 2].set_value(of.size(j))
    found = of.decode()
    assert found is not None
    assert [str(move.op) for move in found.moves] == [f"Oa{j}", f"Pa{j}"]


def test_a_plan_that_cannot_be_read_is_not_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interruptible.InterruptibleFormulation, "decode", lambda _: None)
    problem, known = offload_problem("interruptible"), known_answer()
    claim = offload_claims.claim(problem, MIP(time_limit_s=20), known=known)
    assert (claim.schedule, claim.makespan) == (known.schedule, 15)
    assert 11 < claim.lower_bound <= Fraction(23, 2)  # what HiGHS proved holds all the same


def known_program(problem: HybridProblem) -> HybridClaim:
    replayed = simulate_hybrid(problem.profile, PROGRAM, budget=problem.budget, link=problem.link)
    return HybridClaim(
        schedule=PROGRAM,
        makespan=replayed.makespan,
        lower_bound=0,
        timetable=replayed.timetable,
    )


def assert_nothing_faster_is_stated(claim: HybridClaim) -> None:
    """Models state all that prefetches twice, and not all that does so more often."""
    assert (claim.family, claim.makespan, claim.lower_bound) == (Family.TWICE, 19, 19)
    assert claim.unrestricted_bound == LARGEST.bound_outside(HYBRID) == 14


def test_a_model_in_which_nothing_fits_proves_nothing_beyond_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        hybrid_claims, "solve", lambda *_: CPOutcome(status=TerminationStatus.INFEASIBLE)
    )
    with pytest.raises(SolverLimitError, match="found no schedule of this 2-stage chain") as caught:
        hybrid_claims.claim(HYBRID, CPSAT(), least=10)
    assert caught.value.best_bound == LARGEST.bound_outside(HYBRID)


def test_out_of_time_the_known_program_and_bound_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    known = known_program(HYBRID)
    monkeypatch.setattr(
        hybrid_claims,
        "solve",
        lambda *_: CPOutcome(status=TerminationStatus.LIMIT, bound=None),
    )
    claim = hybrid_claims.claim(HYBRID, CPSAT(), known=known, least=11)
    assert (claim.schedule, claim.makespan, claim.lower_bound) == (PROGRAM, 19, 11)
    with pytest.raises(SolverLimitError, match="raise time_limit_s, or use method='auto'"):
        hybrid_claims.claim(HYBRID, CPSAT(), least=11)


def test_cpsat_that_finds_nothing_faster_has_proved_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        hybrid_claims, "solve", lambda *_: CPOutcome(status=TerminationStatus.INFEASIBLE)
    )
    claim = hybrid_claims.claim(HYBRID, CPSAT(), known=known_program(HYBRID), least=11)
    assert_nothing_faster_is_stated(claim)


def test_cpsat_out_of_time_says_what_it_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    problem, known = offload_problem(), known_answer()
    late = CPOutcome(status=TerminationStatus.LIMIT, bound=13 * problem.link.ticks)
    monkeypatch.setattr(cpsat_offload, "solve", lambda *_: late)
    with pytest.raises(SolverLimitError, match="use method='heuristics'") as caught:
        cpsat_offload.claim(problem, CPSAT())
    assert caught.value.best_bound == 13
    claim = cpsat_offload.claim(problem, CPSAT(), known=known)
    assert (claim.schedule, claim.makespan, claim.lower_bound) == (known.schedule, 15, 13)


def test_sizes_beyond_what_cpsat_computes_exactly_are_refused() -> None:
    stage = Stage(output_bytes=2**48, saved_bytes=2**48)
    huge = replace(CHAIN, stages=(stage,) * 40)
    with pytest.raises(InvalidProfileError, match="exact up to 2"):
        cpsat_hybrid.build(replace(HYBRID, profile=huge, budget=2**60), ModelSize())
    profile = OffloadProfile.from_chain(huge)
    with pytest.raises(InvalidProfileError, match="exact up to 2"):
        cpsat_offload.build(OffloadProblem(profile, 2**60, Link(bandwidth=2)))
