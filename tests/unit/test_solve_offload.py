"""The front door of offloading: methods by name and settings, errors, certificates, documents."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

import chainstay
from chainstay.dp import DP
from chainstay.dp.offload import Algorithm1, Greedy
from chainstay.errors import (
    BackendError,
    CertificateError,
    InfeasibleBudgetError,
    InvalidBudgetError,
    InvalidProfileError,
    InvalidSolutionError,
    SolverLimitError,
    UnknownMethodError,
)
from chainstay.formulations import CPSAT, MIP, ortools_backend
from chainstay.formulations.settings import TerminationStatus
from chainstay.problems.offload import OffloadClaim, OffloadProblem, OffloadSolution
from chainstay.profiles import ChainProfile, Link, OffloadProfile, Stage
from chainstay.schedule import Schedule
from chainstay.solution import Family
from chainstay.solve.offload import AutoOffload, solve_offload
from chainstay.solve.offload_heuristics import Heuristics
from chainstay.timetable import Transfers
from golden_offloads import GOLDEN, require_solvers

require_solvers()

(GAP,) = [golden for golden in GOLDEN if golden.name == "pub008"]
LINK = Link(bandwidth=1)


def solved(method: Any = "auto", **options: Any) -> OffloadSolution:
    return solve_offload(GAP.profile, GAP.budget, link=GAP.link, method=method, **options)


@pytest.mark.parametrize(
    ("method", "transfers", "makespan"),
    [
        ("auto", "integral", 14),
        ("heuristics", "integral", 15),
        ("greedy", "integral", 15),
        ("dp", "integral", 15),
        (DP(slots=100), "integral", 15),
        ("cpsat", "integral", 14),
        (CPSAT(time_limit_s=5), "integral", 14),
        ("mip", "integral", 14),
        ("auto", "interruptible", Fraction(23, 2)),
        ("dp", "interruptible", 12),
        (DP(slots=100), "interruptible", 12),
        (MIP(time_limit_s=5), "interruptible", Fraction(23, 2)),
        ("auto", "fractional", 11),
        (DP(), "fractional", 11),
        ("mip", "fractional", 11),
    ],
)
def test_methods_by_name_and_settings(
    method: object, transfers: str, makespan: Fraction | int
) -> None:
    solution = solved(method, transfers=transfers)
    assert solution.makespan == makespan
    assert isinstance(solution.makespan, int | Fraction)
    assert solution.lower_bound <= makespan
    if solution.family is Family.ALL:
        assert solution.unrestricted_bound == solution.lower_bound
    assert solution.peak_bytes <= GAP.budget
    assert solution.timetable.program() is not None
    assert OffloadSolution.from_json(solution.to_json()) == solution


def test_budgets_in_words() -> None:
    whole = solve_offload(GAP.profile, "100%", link=LINK)
    assert (whole.budget, whole.makespan) == (GAP.profile.peak_bytes, GAP.profile.least_time)
    assert not any(op.kind.is_transfer for op in whole.schedule)
    assert solve_offload(GAP.profile, "14B", link=LINK).budget == 14


def test_the_public_names_are_there() -> None:
    assert chainstay.solve_offload is solve_offload
    assert chainstay.OffloadProfile is OffloadProfile
    assert chainstay.Link is Link


def test_descriptions_say_what_moves() -> None:
    text = solved("dp", transfers="interruptible").describe()
    assert "proved optimal among offload-before-prefetch schedules" in text
    assert text.endswith("2 activations move, interruptible transfers")


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"method": "dp2"}, UnknownMethodError, "method is 'dp2'; for integral .* 'heuristics'"),
        ({"method": "cpsat", "transfers": "fractional"}, UnknownMethodError, "method is 'cpsat'"),
        ({"method": CPSAT(), "transfers": "interruptible"}, UnknownMethodError, "use MIP"),
        ({"method": CPSAT(discards="free")}, UnknownMethodError, "discards is 'free'"),
        ({"method": DP(persistence="weak")}, UnknownMethodError, "persistence is 'weak'"),
        ({"method": 3}, UnknownMethodError, "method is 3"),
        ({"transfers": "half"}, InvalidProfileError, "transfers is 'half', must be one of"),
        ({"method": Greedy()}, InvalidProfileError, "transfers are integral; use"),
        ({"method": Algorithm1()}, InvalidProfileError, "not integral ones"),
        (
            {"method": Heuristics(), "transfers": "fractional"},
            InvalidProfileError,
            "not fractional ones",
        ),
    ],
)
def test_wrong_calls_are_refused(
    options: dict[str, Any], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        solved(**options)


def test_wrong_profiles_links_and_budgets_are_refused() -> None:
    chain: Any = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(Stage(),))
    bandwidth: Any = 5
    with pytest.raises(InvalidProfileError, match=r"must be an OffloadProfile; .*from_chain"):
        solve_offload(chain, 10, link=LINK)
    with pytest.raises(InvalidProfileError, match=r"link is 5, must be a Link"):
        solve_offload(GAP.profile, 10, link=bandwidth)
    with pytest.raises(InvalidBudgetError, match="budget is 0"):
        solve_offload(GAP.profile, 0, link=LINK)


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        (Link(bandwidth=1, latency=1), "latency is 1, and {} transfers have none; use latency=0"),
        (Link(bandwidth=1, capacity=7), "capacity is 7 bytes, and {} transfers know no limit"),
        (Link(bandwidth=1, duplex="full"), "{} transfers are solved over half-duplex links"),
    ],
    ids=["latency", "capacity", "full duplex"],
)
@pytest.mark.parametrize(
    ("transfers", "method"),
    [
        *(("interruptible", method) for method in ("auto", "dp", DP(slots=9), "mip")),
        *(("fractional", method) for method in ("auto", "greedy", "dp", "mip")),
    ],
)
def test_links_that_only_whole_transfers_know(
    link: Link, reason: str, transfers: str, method: object
) -> None:
    with pytest.raises(InvalidProfileError, match=reason.format(transfers)) as caught:
        solve_offload(GAP.profile, 14, link=link, transfers=transfers, method=method)  # type: ignore[arg-type]
    assert "transfers='integral'" in str(caught.value)
    whole = solve_offload(GAP.profile, 14, link=link, method="heuristics")
    assert whole.makespan >= whole.lower_bound > 0


@pytest.mark.parametrize("transfers", Transfers)
def test_an_infeasible_budget_names_the_least_feasible_one(transfers: Transfers) -> None:
    least = GAP.required_bytes
    with pytest.raises(InfeasibleBudgetError, match=f"least feasible budget is {least}") as caught:
        solve_offload(GAP.profile, least - 1, link=LINK, transfers=transfers)
    assert caught.value.required == least
    assert solve_offload(GAP.profile, least, link=LINK, transfers=transfers).peak_bytes <= least


@dataclass(frozen=True)
class Liar:
    """The heuristics, with one lie."""

    lie: str

    def __str__(self) -> str:
        return "liar"

    def __call__(self, problem: OffloadProblem) -> Any:
        claim = Heuristics()(problem)
        match self.lie:
            case "makespan":
                return replace(claim, makespan=claim.makespan - 1)
            case "bound":
                return replace(claim, lower_bound=claim.makespan + 1)
            case "schedule":
                return replace(claim, schedule=Schedule.keep_all(len(problem.profile)))
        return "nothing"


@pytest.mark.parametrize(
    ("lie", "transfers", "reason"),
    [
        ("makespan", "integral", "the schedule takes 15, the solver claimed 14"),
        ("bound", "integral", "the schedule takes 15, less than the lower bound of 16"),
        ("schedule", "integral", "waits for ever"),
        ("fast", "interruptible", "the schedule takes 12, the solver claimed 11"),
        ("timetable", "interruptible", "interruptible transfers need a timetable"),
        ("program", "interruptible", "the timetable is not that of the schedule"),
    ],
)
def test_false_claims_are_refused_with_a_report(lie: str, transfers: str, reason: str) -> None:
    method = Liar(lie) if transfers == "integral" else partial(_lied, lie)
    with pytest.raises(CertificateError, match=reason) as caught:
        solved(method, transfers=transfers)
    report = json.loads(caught.value.report)
    assert report["problem"] == "offload"
    assert OffloadProfile.from_json(report["profile"]) == GAP.profile
    assert Link.from_json(report["link"]) == GAP.link


def _lied(lie: str, problem: OffloadProblem) -> OffloadClaim:
    honest = Algorithm1()(problem)
    match lie:
        case "timetable":
            return replace(honest, timetable=None)
        case "program":
            return replace(honest, schedule=Schedule(honest.schedule.ops[::-1]))
    return replace(honest, makespan=11)


def test_a_method_must_return_a_claim() -> None:
    with pytest.raises(UnknownMethodError, match="method liar returned a str, must return an"):
        solved(Liar("nothing"))


def test_auto_does_without_a_missing_solver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise BackendError("method 'cpsat' needs OR-Tools, which cannot be imported")

    monkeypatch.setattr("chainstay.formulations.cpsat.offload.claim", missing)
    assert solved().makespan == 15
    with pytest.raises(BackendError, match="needs OR-Tools"):
        solved("cpsat")


def test_solvers_that_say_that_nothing_fits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def infeasible(*_: object, **__: object) -> ortools_backend.CpSatResult:
        return ortools_backend.CpSatResult(status=TerminationStatus.INFEASIBLE)

    monkeypatch.setattr("chainstay.formulations.cpsat.offload.solve", infeasible)
    with pytest.raises(CertificateError, match="says that nothing fits"):
        solved("cpsat")


def test_without_time_the_best_known_plan_is_the_answer() -> None:
    solution = solved(AutoOffload(time_limit_s=1e-6))
    assert solution.makespan == 15
    assert solution.lower_bound <= 14


def test_too_many_states_are_refused_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chainstay.dp.offload.subsets.MOST_STATES", 3)
    with pytest.raises(SolverLimitError, match=r"more than 3 states .* DP\(slots=500\)"):
        solved("dp", transfers="interruptible")


@pytest.mark.parametrize("slots", [0, -1, 1.5, True])
def test_slots_are_a_positive_number(slots: Any) -> None:
    with pytest.raises(UnknownMethodError, match="slots is"):
        Algorithm1(slots=slots)


def test_malformed_documents_are_refused() -> None:
    document = json.loads(solved("heuristics").to_json())
    for change, reason in (
        ({"makespan": 1}, "lower_bound is 11, must be from 0 to the makespan of 1"),
        ({"makespan": 1.5}, "field 'makespan' is 1.5, must be a whole number or a fraction"),
        ({"moves": [{"op": "Oa0 Oa1", "start": 0, "end": 1}]}, "has 2 operations, not one"),
        ({"transfers": "half"}, "field 'transfers' is 'half', must be one of integral"),
    ):
        with pytest.raises(InvalidSolutionError, match=reason):
            OffloadSolution.from_json(json.dumps(document | change))
