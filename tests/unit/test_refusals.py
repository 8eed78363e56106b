"""What referees and searches refuse: every invalid program, with the place where it goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from chainstay.baselines.selection import fastest_within
from chainstay.dp import DP, least_budget, unrestricted_bound
from chainstay.dp.join.lower_bound import waterfilling_bound
from chainstay.dp.join.slots import join_curve
from chainstay.dp.revolve import Revolve
from chainstay.errors import (
    CertificateError,
    InvalidBudgetError,
    InvalidProfileError,
    InvalidScheduleError,
    UnknownMethodError,
)
from chainstay.formulations.join.claims import AssignCuts
from chainstay.problems.hybrid import HybridClaim, HybridProblem
from chainstay.profiles import Join, JoinProfile, Link, OffloadProfile, Skip, kept_gradients
from chainstay.schedule import Schedule
from chainstay.solution import Family
from chainstay.solve import solve_chain, solve_join
from chainstay.solve.hybrid import solve_hybrid
from chainstay.solve.offload import solve_offload
from chainstay.validation.hybrid.fractional_transfers import fractional_makespan
from chainstay.validation.hybrid.search import hybrid_optimum
from chainstay.validation.hybrid.simulate import simulate_hybrid
from chainstay.validation.join.search import join_optimum
from chainstay.validation.join.simulate import simulate_join
from chainstay.validation.offload.simulate import simulate_offload
from chainstay.validation.simulate import simulate
from chainstay.verify.chain_instances import with_skip
from hybrid_support import CHAIN

TURNING = JoinProfile(branches=(CHAIN, CHAIN))
TAIL = replace(CHAIN, input_bytes=2, input_gradient_bytes=TURNING.output_gradient_bytes)
TAILED = JoinProfile(branches=(CHAIN, CHAIN), tail=TAIL)
LINK = Link(bandwidth=2)


def refused(text: str, error: InvalidScheduleError, step: int, reason: str) -> None:
    """That `error` says `reason` about the operation `step`, counted from 0, and points at it."""
    assert error.reason == reason
    assert error.index == step
    word = text.split()[step]
    assert str(error).startswith(f"step {step + 1}: {reason}\n")
    assert f"--> {step + 1:6}  {word}" in str(error)


OF_CHAINS = [
    ("Fa0 0:Fa1", 1, "0:Fa1 names a branch, and this chain has none"),
    ("Fa0 Fa1 T", 2, "T is an operation of joins, and this is a single chain"),
]


@pytest.mark.parametrize(("text", "step", "reason"), OF_CHAINS)
def test_a_chain_has_no_branches_and_no_turn(text: str, step: int, reason: str) -> None:
    with pytest.raises(InvalidScheduleError) as caught:
        simulate(CHAIN, Schedule.parse(text))
    refused(text, caught.value, step, reason)


@pytest.mark.parametrize(
    ("text", "step", "reason"),
    [
        *OF_CHAINS,
        ("Fa0 Fn1", 1, "Fn1 needs a1 itself to drop it, and it is not stored"),
        ("Fa0 Fa0", 1, "Fa0 makes what is stored"),
        ("Fc0 Fc0", 1, "Fc0 makes what is stored"),
        ("Fa0 Da0 Db1", 1, "Da0 would drop the network's input, which nothing can recompute"),
        ("Fa0 Db1", 1, "Db1 drops what is not stored"),
        ("Fa0 Da1", 1, "Da1 drops what is not stored"),
        ("Oa0 Fa0 Pa0 Pa0", 3, "Pa0 brings back what is stored"),
        ("Fa0 Ob1", 1, "Ob1 moves what is not stored"),
    ],
)
def test_program_lists_that_cannot_run_are_pointed_at(text: str, step: int, reason: str) -> None:
    with pytest.raises(InvalidScheduleError) as caught:
        simulate_hybrid(CHAIN, Schedule.parse(text), budget=100, link=LINK)
    refused(text, caught.value, step, reason)


@pytest.mark.parametrize(
    ("profile", "text", "step", "reason"),
    [
        (TURNING, "0:Fc0 0:Fc1 1:Fc0 1:Fc1 T T", 5, "T has run; it runs once"),
        (TURNING, "0:Fa0 Fa0", 1, "Fa0 names a stage of the tail, and there is none; write T"),
        (TURNING, "0:Fa0 0:Db1", 1, "0:Db1 drops what is not stored"),
        (TURNING, "0:Fa0 1:Da1", 1, "1:Da1 drops what is not stored"),
        (
            TURNING,
            "0:Fc0 0:Fc1 1:Fc0 1:Fc1 T 1:B1",
            5,
            "1:B1 needs what Fa1 saves, and it is not stored",
        ),
        (
            TAILED,
            "0:Fa0 0:Fa1 1:Fa0 1:Fa1 Fa0 Fc1 B1",
            6,
            "B1 needs what Fa1 saves, and it is not stored",
        ),
    ],
)
def test_schedules_of_joins_that_cannot_run_are_pointed_at(
    profile: Join, text: str, step: int, reason: str
) -> None:
    with pytest.raises(InvalidScheduleError) as caught:
        simulate_join(profile, Schedule.parse(text))
    refused(text, caught.value, step, reason)


@pytest.mark.parametrize(
    "replayed",
    [
        simulate,
        simulate_join,
        lambda profile, schedule: simulate_offload(profile, schedule, budget=9, link=LINK),
        lambda profile, schedule: simulate_hybrid(profile, schedule, budget=9, link=LINK),
    ],
)
def test_what_is_no_schedule_or_no_profile_is_told(replayed: Callable[[Any, Any], object]) -> None:
    with pytest.raises(InvalidProfileError, match=r"profile is a Link, must be a \w+Profile"):
        replayed(LINK, Schedule.keep_all(2))
    for profile in (CHAIN, TURNING, OffloadProfile.from_chain(CHAIN)):
        with suppress(InvalidProfileError):
            with pytest.raises(InvalidScheduleError, match=r"is a str, must be .*Schedule\.parse"):
                replayed(profile, "Fa0 B0")
            return
    pytest.fail("no profile was taken")


def test_what_is_offloaded_is_of_a_chain() -> None:
    with pytest.raises(InvalidProfileError, match="profile is a JoinProfile, must be a Chain"):
        OffloadProfile.from_chain(TURNING)  # type: ignore[arg-type]  # the point of the test


def test_questions_that_a_referee_does_not_know_are_refused() -> None:
    keep_all = Schedule.keep_all(2)
    with pytest.raises(ValueError, match="there are 3 overheads for 4 operations; give one to"):
        simulate_hybrid(CHAIN, keep_all, budget=100, link=LINK, overheads=[0, 0, 0])
    skipping = with_skip(CHAIN, Skip(first=0, last=1, bytes=3))
    with pytest.raises(InvalidProfileError, match="has 1 skips, which transfers do not support"):
        simulate_hybrid(skipping, keep_all, budget=100, link=LINK)
    both_ways = Link(bandwidth=2, duplex="full")
    with pytest.raises(InvalidProfileError, match="half-duplex link without latency, not for"):
        fractional_makespan(CHAIN, keep_all, budget=100, link=both_ways)


def test_parts_of_what_never_crosses_the_loss_cannot_move() -> None:
    kept = Schedule.parse("Ob0 Fa0 Fa1 B1 B0")  # made before the loss, read in its backward
    assert fractional_makespan(CHAIN, kept, budget=100, link=LINK) >= CHAIN.least_time
    never_made = Schedule.parse("Oa1 Fa0 Fa1 B1 B0")
    with pytest.raises(InvalidScheduleError, match="a1 moves, and no one copy of it is there"):
        fractional_makespan(CHAIN, never_made, budget=100, link=LINK)


def test_searches_say_how_long_a_chain_may_be() -> None:
    longer = replace(CHAIN, stages=CHAIN.stages[:1] * 4 + CHAIN.stages[1:])
    with pytest.raises(InvalidProfileError, match="at most 4 stages, this one has 5; use a solver"):
        hybrid_optimum(longer, budget=100, link=LINK)
    many = JoinProfile(branches=(replace(CHAIN, stages=CHAIN.stages * 6),) * 3)
    flags = kept_gradients(many, None)
    with pytest.raises(InvalidProfileError, match="at most 24 stages, this one has 36; use a sol"):
        join_optimum(many, 100, keep=flags)


def test_search_finds_nothing_where_nothing_fits() -> None:
    required = HybridProblem(CHAIN, 1, LINK).required_bytes
    assert hybrid_optimum(CHAIN, budget=required, link=LINK) is not None
    assert hybrid_optimum(CHAIN, budget=required - 1, link=LINK) is None
    assert hybrid_optimum(CHAIN, budget=CHAIN.input_bytes, link=LINK) is None  # no gradient fits


@pytest.mark.parametrize(
    ("text", "makespan", "lower_bound", "reason"),
    [
        ("Fa0 Fa1 B1 B0", 9, 0, "the schedule takes 10, the solver claimed 9"),
        ("Fa0 Fa1 B1 B0", 10, 11, "the schedule takes 10, less than the lower bound of 11"),
        ("Fa0 Fa1 B1", 8, 0, "ends before B0"),
    ],
)
@pytest.mark.parametrize("transfers", ["integral", "fractional"])
def test_what_a_method_claims_is_held_against_its_schedule(
    transfers: str, text: str, makespan: int, lower_bound: int, reason: str
) -> None:
    def liar(problem: HybridProblem) -> HybridClaim:
        del problem
        return HybridClaim(
            schedule=Schedule.parse(text),
            makespan=makespan,
            lower_bound=lower_bound,
            family=Family.PERSISTENT if transfers == "fractional" else Family.ALL,
        )

    with pytest.raises(CertificateError, match=reason) as caught:
        solve_hybrid(CHAIN, 100, link=LINK, method=liar, transfers=transfers)
    assert caught.value.budget == 100
    assert text in caught.value.report


@pytest.mark.parametrize("budget", ["50%", float("nan"), float("inf"), 90.5, 2**70, True])
def test_what_counts_in_bytes_refuses_all_else(budget: Any) -> None:
    asked: tuple[Callable[[], object], ...] = (
        lambda: DP()(CHAIN, budget),
        lambda: DP().curve(CHAIN).makespan(budget),
        lambda: DP().curve(CHAIN).schedule(budget),
        lambda: unrestricted_bound(CHAIN, budget),
        lambda: fastest_within([Schedule.keep_all(3)], lambda s: simulate(CHAIN, s), budget),
    )
    for ask in asked:
        with pytest.raises(InvalidBudgetError, match="must be a whole number below"):
            ask()


@pytest.mark.parametrize(
    ("ask", "needed"),
    [
        (DP().curve, "ChainProfile"),
        (lambda profile: DP()(profile, 3), "ChainProfile"),
        (least_budget, "ChainProfile"),
        (lambda profile: unrestricted_bound(profile, 3), "ChainProfile"),
        (join_curve, "HomogeneousJoin"),
        (lambda profile: waterfilling_bound(profile, 100), "HomogeneousJoin"),
    ],
)
def test_profiles_of_another_kind_are_named(ask: Callable[[Any], object], needed: str) -> None:
    with pytest.raises(InvalidProfileError, match=f"is a JoinProfile, must be a {needed}"):
        ask(TURNING)


@pytest.mark.parametrize(
    ("solve", "method"),
    [
        (lambda method: solve_join(TURNING, 200, method), Revolve()),
        (lambda method: solve_hybrid(CHAIN, 90, link=LINK, method=method), Revolve()),
        (
            lambda method: solve_offload(
                OffloadProfile.from_chain(CHAIN), 90, link=LINK, method=method
            ),
            Revolve(),
        ),
        (lambda method: solve_chain(CHAIN, 100, method), AssignCuts()),
    ],
)
def test_methods_for_another_problem_are_refused(solve: Callable[[Any], Any], method: Any) -> None:
    with pytest.raises(UnknownMethodError, match="is for another problem"):
        solve(method)
