"""The front door: budgets, methods, what auto does, and that a lying solver is refused."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import chainstay
from chainstay import (
    CPSAT,
    DP,
    MIP,
    BackendError,
    CertificateError,
    ChainProfile,
    ChainstayError,
    Claim,
    Discards,
    Family,
    InfeasibleBudgetError,
    InvalidBudgetError,
    InvalidProfileError,
    InvalidSolutionError,
    Schedule,
    Solution,
    SolverLimitError,
    Stage,
    Status,
    UnknownMethodError,
    simulate,
    solve_chain,
)
from chainstay.profiles import RunCost, StageOption
from chainstay.solve import AutoChain
from chainstay.solve.budgets import Budget
from golden_chains import GOLDEN

STAGE = Stage(forward_time=1, backward_time=2, output_bytes=10, saved_bytes=30)
CHAIN = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(STAGE,) * 4)
KEEP_ALL_PEAK = 130  # the input and four times the saved data


@pytest.mark.parametrize(
    "budget", [100, "100", "100 B", "0.1 kB", "77%", "76.93%", 0.77, Fraction(10, 13)]
)
def test_budget_in_any_spelling(budget: Budget) -> None:
    assert solve_chain(CHAIN, budget, method="dp").budget == 100


def test_percentages_are_of_plain_training() -> None:
    whole = solve_chain(CHAIN, "100%", method="dp")
    assert whole.budget == KEEP_ALL_PEAK
    assert whole.schedule == Schedule.keep_all(4)
    assert whole.makespan == CHAIN.least_time


@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (0, "budget is 0; it must be at least 1 byte"),
        (-5, "budget is -5; it must be at least 1"),
        ("0%", "budget is '0%'; it must be at least 1"),
        ("0.0001%", "of what plain training needs: no whole byte; write bytes"),
        ("1.5 apples", r"budget is '1.5 apples'; write bytes, '8GiB'"),
        ("", "budget is ''; write bytes"),
        ("-3 GiB", "budget is '-3 GiB'; write bytes"),
        ("9" * 100, "write bytes"),
        (1.5, r"budget is 1.5; a number with a fraction is a share .* above 0 and up to 1"),
        (0.0, r"budget is 0.0; a number with a fraction"),
        (float("nan"), r"budget is nan; a number with a fraction"),
        (2**63, r"budget is a number of 64 bits; it must be below 2\*\*63 bytes"),
        ("99999999999 GiB", "number of 67 bits"),
        (True, "budget is True; write bytes"),
        (np.array(0.5), r"budget is array\(0.5\); write bytes"),
        (None, "budget is None; write bytes"),
    ],
)
def test_bad_budgets_are_named(budget: int, message: str) -> None:
    with pytest.raises(InvalidBudgetError, match=message):
        solve_chain(CHAIN, budget)


@pytest.mark.parametrize("method", ["simplex", "", 7, None, DP])
def test_unknown_methods_are_named_with_the_choices(method: str) -> None:
    with pytest.raises(UnknownMethodError, match=f"method is {method!r}; choose 'auto', 'cpsat'"):
        solve_chain(CHAIN, 100, method=method)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"persistence": "very"}, "'very'"), ({"slots": 0}, "slots is 0"), ({"slots": -1}, "-1")],
)
def test_unknown_settings_are_named(settings: dict[str, str], message: str) -> None:
    with pytest.raises(UnknownMethodError, match=message):
        DP(**settings)  # type: ignore[arg-type]  # the point of the test


def test_a_profile_must_be_a_profile() -> None:
    with pytest.raises(InvalidProfileError, match="profile is a list, must be a ChainProfile"):
        solve_chain([STAGE], 100)  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize("method", ["dp", "mip", "cpsat", "auto"])
def test_an_infeasible_budget_names_the_least_feasible_one(method: str) -> None:
    with pytest.raises(InfeasibleBudgetError, match="4-stage chain fits in 49 bytes") as caught:
        solve_chain(CHAIN, 49, method=method)
    assert caught.value.budget == 49
    required = caught.value.required
    assert solve_chain(CHAIN, required, method=method).peak_bytes == required
    assert isinstance(caught.value, ChainstayError)


@pytest.mark.parametrize("method", ["dp", "mip", "cpsat", "auto"])
@pytest.mark.parametrize("budget", [60, 80, 100, 130, 10**9])
def test_methods_agree(method: str, budget: int) -> None:
    solution = solve_chain(CHAIN, budget, method=method)
    assert solution.makespan == DP()(CHAIN, budget).makespan
    assert solution.is_optimal
    replay = simulate(CHAIN, solution.schedule)
    assert (solution.makespan, solution.peak_bytes) == (replay.makespan, replay.peak_bytes)


def test_auto_finds_what_persistent_schedules_miss() -> None:
    # Golden instance K7: the least budget of persistent schedules is 15, of all schedules 14.
    golden = next(g for g in GOLDEN if g.name.startswith("K7"))
    assert solve_chain(golden.profile, 14).makespan == golden.optimum["table1"]
    with pytest.raises(InfeasibleBudgetError):
        solve_chain(golden.profile, 14, method="dp")


GROWING = replace(CHAIN, stages=(STAGE, replace(STAGE, output_bytes=20), STAGE))


@pytest.mark.parametrize(
    "error", [BackendError("no solver here"), SolverLimitError("slow"), InvalidProfileError("big")]
)
def test_auto_does_without_exact_solvers(
    monkeypatch: pytest.MonkeyPatch, error: ChainstayError
) -> None:
    def fail(*_: object, **__: object) -> Claim:
        raise error

    monkeypatch.setattr(MIP, "__call__", fail)
    monkeypatch.setattr(CPSAT, "__call__", fail)
    solution = solve_chain(GROWING, 70)
    assert solution.makespan == solve_chain(GROWING, 70, method="dp").makespan
    assert solution.family is Family.PERSISTENT
    with pytest.raises(InfeasibleBudgetError, match="no persistent schedule"):
        solve_chain(GROWING, 30)


def test_auto_takes_the_mip_where_cpsat_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Claim:
        raise BackendError("no ortools here")

    monkeypatch.setattr(CPSAT, "__call__", fail)
    assert solve_chain(GROWING, 70).family is not Family.PERSISTENT


def test_a_method_must_return_a_claim() -> None:
    with pytest.raises(UnknownMethodError, match="returned None, must return a Claim"):
        solve_chain(CHAIN, 100, method=lambda *_: None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Liar:
    """A method that claims what it is told to."""

    claim: Claim

    def __str__(self) -> str:
        return "liar"

    def __call__(
        self,
        profile: ChainProfile,  # noqa: ARG002  # the protocol's signature
        budget: int,  # noqa: ARG002
        *,
        hint: Schedule | None = None,  # noqa: ARG002
    ) -> Claim:
        return self.claim


HONEST = Claim(schedule=Schedule.keep_all(4), makespan=12, lower_bound=12, family=Family.PERSISTENT)


@pytest.mark.parametrize(
    ("lie", "budget", "message"),
    [
        ({"makespan": 11, "lower_bound": 11}, 130, "takes 12 ns, the solver claimed 11"),
        ({"lower_bound": 13}, 130, "less than the claimed lower bound of 13"),
        ({}, 129, "needs 130 bytes, 1 more than the budget of 129"),
        ({"schedule": Schedule.parse("Fa0 B0")}, 130, "step 2: B0 needs the gradient of a1"),
        ({"schedule": Schedule.parse("Fa0")}, 130, "ends before B3"),
    ],
)
def test_a_lying_solver_is_refused(lie: dict[str, Any], budget: int, message: str) -> None:
    with pytest.raises(CertificateError, match=f"(?s)liar: .*{message}") as caught:
        solve_chain(CHAIN, budget, method=Liar(replace(HONEST, **lie)))
    error = caught.value
    assert (error.profile, error.budget) == (CHAIN, budget)
    assert error.__notes__ == [error.report]
    report = json.loads(error.report)
    assert ChainProfile.from_json(report["profile"]) == CHAIN
    assert report["answers"][0]["schedule"] == str(lie.get("schedule", HONEST.schedule))


RERUN_ALL = Schedule.parse("Fc0 Fn1 Fn2 Fa3 B3 Fc0 Fn1 Fa2 B2 Fc0 Fa1 B1 Fa0 B0")  # 18 ns


def claimed(schedule: Schedule, bound: int, family: Family = Family.ALL) -> Claim:
    """A claim about `CHAIN` whose schedule is what it says; its bound may not be."""
    makespan = simulate(CHAIN, schedule).makespan
    return Claim(schedule=schedule, makespan=makespan, lower_bound=bound, family=family)


@pytest.mark.parametrize("method", ["mip", "cpsat", "auto"])
@pytest.mark.parametrize("family", [Family.ALL, Family.SINGLE_SWEEP])
def test_a_proved_optimum_above_the_persistent_one_is_a_contradiction(
    method: str, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie = claimed(RERUN_ALL, 18, family)
    monkeypatch.setattr(CPSAT, "__call__", lambda *_, **__: lie)
    monkeypatch.setattr(MIP, "__call__", lambda *_, **__: lie)
    monkeypatch.setattr(DP, "__call__", restricted(DP.__call__))
    text = r"faster than 18 ns, and dp has a schedule of 14 ns\n.*report it with error\.report"
    with pytest.raises(CertificateError, match=text) as caught:
        solve_chain(CHAIN, 90, method=method)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.profile, error.budget) == (CHAIN, 90)
    shown, stated = error.statements
    assert (shown.method, shown.claim.makespan) == ("dp", 14)
    assert stated.claim == lie
    report = json.loads(error.report)
    assert ChainProfile.from_json(report["profile"]) == CHAIN
    assert [answer["makespan"] for answer in report["answers"]] == [14, 18]


def restricted(solve: Callable[..., Claim]) -> Callable[..., Claim]:
    """The dynamic program, but unaware that `CHAIN` needs no other method."""
    return lambda *given, **options: replace(solve(*given, **options), family=Family.PERSISTENT)


@pytest.mark.parametrize("method", ["mip", "cpsat"])
def test_a_bound_above_the_persistent_optimum_is_a_contradiction(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie = claimed(RERUN_ALL, 15)
    monkeypatch.setattr(CPSAT, "__call__", lambda *_, **__: lie)
    monkeypatch.setattr(MIP, "__call__", lambda *_, **__: lie)
    with pytest.raises(CertificateError, match="nothing is faster than 15 ns, and dp has a sch"):
        solve_chain(CHAIN, 90, method=method)
    honest = claimed(RERUN_ALL, 14)
    monkeypatch.setattr(CPSAT, "__call__", lambda *_, **__: honest)
    monkeypatch.setattr(MIP, "__call__", lambda *_, **__: honest)
    assert solve_chain(CHAIN, 90, method=method).makespan == 18


@pytest.mark.parametrize("method", ["mip", "cpsat"])
def test_a_persistent_optimum_of_all_schedules_that_is_beaten_is_a_contradiction(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lie = claimed(RERUN_ALL, 18)
    monkeypatch.setattr(DP, "__call__", lambda *_, **__: lie)
    with pytest.raises(CertificateError, match="dp says that nothing is faster than 18 ns, and"):
        solve_chain(CHAIN, 90, method=method)


@pytest.mark.parametrize("method", ["mip", "cpsat", "auto"])
def test_infeasible_though_a_schedule_is_known_is_a_contradiction(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_fits(*_: object, **__: object) -> Claim:
        raise InfeasibleBudgetError(budget=90, required=91, stages=4, family="all")

    monkeypatch.setattr(CPSAT, "__call__", nothing_fits)
    monkeypatch.setattr(MIP, "__call__", nothing_fits)
    monkeypatch.setattr(DP, "__call__", restricted(DP.__call__))
    text = "fits in less than 91 bytes, and dp has a schedule that does, of 14 ns"
    with pytest.raises(CertificateError, match=text) as caught:
        solve_chain(CHAIN, 90, method=method)
    assert json.loads(caught.value.report)["answers"][1]["required"] == 91


@pytest.mark.parametrize("method", ["mip", "cpsat", "auto"])
def test_a_least_budget_above_that_of_persistent_schedules_is_a_contradiction(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_fits(*_: object, **__: object) -> Claim:
        raise InfeasibleBudgetError(budget=49, required=51, stages=4, family="all")

    monkeypatch.setattr(CPSAT, "__call__", nothing_fits)
    monkeypatch.setattr(MIP, "__call__", nothing_fits)
    with pytest.raises(CertificateError, match="less than 51 bytes, and dp has a schedule for 50"):
        solve_chain(CHAIN, 49, method=method)


@pytest.mark.parametrize("method", [MIP(time_limit_s=1e-9), CPSAT(time_limit_s=1e-9)], ids=str)
def test_exact_solvers_start_from_the_persistent_optimum(method: MIP | CPSAT) -> None:
    solution = solve_chain(CHAIN, 90, method=method)  # without a start: SolverLimitError
    assert solution.schedule == DP()(CHAIN, 90).schedule


@pytest.mark.parametrize("method", ["mip", "cpsat"])
def test_sizes_beyond_the_dynamic_program_are_solved_without_it(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overflow(*_: object, **__: object) -> Claim:
        raise InvalidProfileError("beyond 64 bits")

    monkeypatch.setattr(DP, "__call__", overflow)
    assert solve_chain(CHAIN, 90, method=method).makespan == 14


def test_an_own_method_is_judged_like_ours() -> None:
    solution = solve_chain(CHAIN, 130, method=Liar(HONEST))
    assert solution.method == "liar"
    assert solution.status is Status.OPTIMAL


@pytest.mark.parametrize("family", [Family.PERSISTENT, Family.SINGLE_SWEEP, Family.ALL])
def test_the_bound_of_an_own_method_is_held_against_the_persistent_optimum(family: Family) -> None:
    text = "(?s)liar says that nothing is faster than 18 ns, and dp has a .*method of your own is w"
    with pytest.raises(CertificateError, match=text):
        solve_chain(CHAIN, 90, method=Liar(claimed(RERUN_ALL, 18, family)))
    assert solve_chain(CHAIN, 90, method=Liar(claimed(RERUN_ALL, 14, family))).lower_bound == 14


def test_an_own_method_may_say_what_it_likes_of_families_that_need_not_be_persistent() -> None:
    lie = claimed(RERUN_ALL, 18, Family.CANONICAL_PERSISTENT)
    assert solve_chain(CHAIN, 90, method=Liar(lie)).lower_bound == 18


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"family": "mine"}, "family of a claim is 'mine', must be a Family, such as Family.ALL"),
        ({"discards": "free"}, "discards of a claim is 'free', must be a Discards, such as Disc"),
    ],
)
def test_claims_are_about_known_schedules(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSolutionError, match=message):
        replace(HONEST, **given)


def test_an_own_method_is_named_by_its_function() -> None:
    def twice(profile: ChainProfile, budget: int, *, hint: Schedule | None = None) -> Claim:
        del profile, hint
        raise InfeasibleBudgetError(budget=budget, required=budget, stages=4, family="mine")

    text = "^twice says that nothing fits, and that 90 bytes are enough"
    with pytest.raises(CertificateError, match=text) as caught:
        solve_chain(CHAIN, 90, method=twice)
    assert json.loads(caught.value.report)["answers"][0]["required"] == 90


def test_a_bound_below_the_sum_of_all_times_is_raised_to_it() -> None:
    solution = solve_chain(CHAIN, 130, method=Liar(replace(HONEST, lower_bound=3)))
    assert solution.lower_bound == CHAIN.least_time == solution.makespan


SOLUTION = solve_chain(CHAIN, 100, method="dp")


def test_solutions_read_back() -> None:
    assert Solution.from_json(SOLUTION.to_json()) == SOLUTION


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"chainstay": "solution"',
            '"chainstay": "schedule"',
            "is a 'schedule', must be a 'solution'",
        ),
        ('"version": 1', '"version": 2', "'version' is 2; this chainstay reads version 1"),
        ('"family": "', '"family": "x', "field 'family' is 'x"),
        ('"discards": "', '"discards": "x', "field 'discards' is 'xtable1'"),
        ('"budget": 100', '"budget": 1', "peak_bytes is 90, must be from 0 to the budget of 1"),
        ('"lower_bound": 1', '"lower_bound": 10', "lower_bound is 10"),
        ('"budget": 100', '"budget": "100"', "field 'budget' is '100', must be a whole number"),
    ],
)
def test_malformed_solutions_are_named(old: str, new: str, message: str) -> None:
    text = SOLUTION.to_json()
    assert old in text
    with pytest.raises(InvalidSolutionError, match=message):
        Solution.from_json(text.replace(old, new))


def test_a_solution_says_how_sure_it_is() -> None:
    assert "proved optimal among" in SOLUTION.describe()
    loose = replace(SOLUTION, lower_bound=SOLUTION.makespan // 2)
    assert loose.status is Status.FEASIBLE
    assert loose.gap == pytest.approx(0.5)
    assert "at most 50.00% above the optimum" in loose.describe()
    close = replace(loose, makespan=10**6, lower_bound=10**6 - 1)
    assert "at most 0.01% above the optimum" in close.describe()
    assert "tape" in replace(SOLUTION, discards=Discards.TAPE, family=Family.ALL).describe()


def test_a_solution_says_what_any_other_could_gain() -> None:
    assert solve_chain(CHAIN, 90, method="dp").unrestricted_bound == 14
    proved = solve_chain(CHAIN, 100, method=CPSAT(discards="free"))
    assert (proved.makespan, proved.unrestricted_bound, proved.unrestricted_gap) == (13, 13, 0)
    loose = replace(SOLUTION, unrestricted_bound=13, family=Family.PERSISTENT)
    assert loose.unrestricted_gap == pytest.approx(1 / 14)
    assert "no schedule at all saves more than 7.15% of that" in loose.describe()
    assert str(loose) == loose.describe()
    with pytest.raises(InvalidSolutionError, match="unrestricted_bound is 15"):
        replace(SOLUTION, unrestricted_bound=15)


def test_a_schedule_faster_than_any_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chainstay.solve.chain.unrestricted_bound", lambda _profile, _budget: 15)
    with pytest.raises(CertificateError, match="nothing is faster than 15 ns, yet dp has 14 ns"):
        solve_chain(CHAIN, 90, method="dp")


@pytest.mark.parametrize("discards", list(Discards))
def test_auto_keeps_to_its_rules(discards: Discards) -> None:
    solution = solve_chain(CHAIN, 90, method=AutoChain(discards=discards))
    assert solution.discards in {discards, Discards.TABLE1}
    assert solution.makespan == 14


@pytest.mark.parametrize("discards", [Discards.FREE, Discards.TAPE])
@pytest.mark.parametrize(
    "changes",
    [
        {"environment_bytes": 1},
        {"options": (StageOption(saved_bytes=0, first=RunCost(time=1), stages=2),)},
    ],
)
def test_auto_asks_the_program_that_knows_environments_and_options_of_several_stages(
    discards: Discards, changes: dict[str, Any]
) -> None:
    stages = (replace(CHAIN.stages[0], **changes), *CHAIN.stages[1:])
    profile = replace(CHAIN, stages=stages)
    with pytest.raises(InvalidProfileError):
        solve_chain(profile, 90, method=DP(discards=Discards.FREE))
    answer = solve_chain(profile, 90, method=AutoChain(discards=discards, exact_stages=1))
    assert answer.makespan == solve_chain(profile, 90, method=DP()).makespan
    assert answer.discards is Discards.TABLE1


def test_auto_refuses_rules_that_there_are_not() -> None:
    with pytest.raises(UnknownMethodError, match="discards is 'none'"):
        AutoChain(discards="none")


def test_public_names_are_there() -> None:
    assert all(hasattr(chainstay, name) for name in chainstay.__all__)
    assert set(chainstay.__all__) == set(chainstay._HOME)
    assert set(chainstay.__all__) <= set(dir(chainstay))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = chainstay.nothing
