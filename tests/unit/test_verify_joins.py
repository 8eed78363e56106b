"""Random joins and simpler ones, and joins on which methods disagree made small."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace

import pytest

from chainstay.dp import DP
from chainstay.problems import AnyProblem, JoinProblem
from chainstay.profiles import ChainProfile, HomogeneousJoin, Join, JoinProfile, Stage
from chainstay.solution import Claim, Family
from chainstay.solve.join import join_claim
from chainstay.verify import JoinSuite, MethodUnderTest
from chainstay.verify.join_instances import random_join

DRAWN = [random_join(4, number) for number in range(200)]


def weight(instance: AnyProblem) -> tuple[int, int, int]:
    """Chains and stages, gradients to keep, and the sum of all numbers."""
    assert isinstance(instance, JoinProblem)
    profile, kept = instance.profile, sum(instance.keep)
    if isinstance(profile, HomogeneousJoin):
        tail = -1 if profile.tail_steps is None else profile.tail_steps
        times = profile.forward_time + profile.backward_time + profile.turn_time
        return len(profile.lengths) + sum(profile.lengths) + tail + 1, kept, instance.budget + times
    chains = [*profile.branches, *([] if profile.tail is None else [profile.tail])]
    numbers = sum(map(numbers_of, chains)) + numbers_of(profile.shared)
    return len(chains) + sum(map(len, chains)), kept, instance.budget + numbers


def numbers_of(record: object) -> int:
    """The sum of all numbers in a record, and 1 for whatever a plain chain has not."""
    if isinstance(record, tuple):
        return sum(map(numbers_of, record))
    if isinstance(record, bool) or not is_dataclass(record):
        return record if type(record) is int else record is False
    more = not isinstance(record, ChainProfile | Stage)
    return more + sum(numbers_of(getattr(record, field.name)) for field in fields(record))


def has_a_tail(profile: Join) -> bool:
    if isinstance(profile, HomogeneousJoin):
        return profile.tail_steps is not None
    return profile.tail is not None


@pytest.mark.long
@pytest.mark.parametrize("kind", [HomogeneousJoin, JoinProfile])
def test_joins_a_little_simpler_are_simpler_and_have_what_joins_need(kind: type[Join]) -> None:
    drawn = [instance for instance in DRAWN[:60] if isinstance(instance.profile, kind)]
    assert len(drawn) > 10
    for instance in drawn:
        for simpler in instance.simpler():
            # Without its last stage, a chain may have a larger output: the stages come first.
            assert weight(simpler) < weight(instance), (instance, simpler)
            assert len(simpler.keep) == branches_of(simpler.profile) >= 1
            assert simpler.budget >= 1
            assert isinstance(simpler.profile, kind)


def test_half_of_the_joins_in_bytes_have_options_or_costs_by_kind_of_run() -> None:
    profiles = [instance.profile for instance in DRAWN if isinstance(instance.profile, JoinProfile)]
    share = sum(not profile.is_plain for profile in profiles) / len(profiles)
    assert 0.3 < share < 0.7
    stages = [stage for p in profiles for chain in p.branches for stage in chain.stages]
    assert any(not option.needs_input for stage in stages for option in stage.options)
    assert any(stage.dropped_first for stage in stages)


def branches_of(profile: Join) -> int:
    return len(profile.lengths if isinstance(profile, HomogeneousJoin) else profile.branches)


def test_every_part_of_a_join_can_go() -> None:
    instance = next(
        candidate
        for candidate in DRAWN
        if isinstance(candidate.profile, JoinProfile)
        and len(candidate.profile.branches) == 3
        and candidate.profile.tail is not None
        and len(candidate.profile.tail) > 1
        and any(candidate.keep)
    )
    profile = instance.profile
    assert isinstance(profile, JoinProfile)
    assert profile.tail is not None
    simpler = list(instance.simpler())
    assert replace(instance, keep=(False, False, False)) in simpler
    assert replace(instance, budget=instance.budget - 1) in simpler
    joins = [
        candidate.profile for candidate in simpler if isinstance(candidate.profile, JoinProfile)
    ]
    for j, branch in enumerate(profile.branches):
        others = profile.branches[:j] + profile.branches[j + 1 :]
        (fewer,) = [
            candidate
            for candidate in simpler
            if others == getattr(candidate.profile, "branches", ())
        ]
        assert fewer.keep == instance.keep[:j] + instance.keep[j + 1 :]
        sizes = {join.branches[j].input_bytes for join in joins if len(join.branches) == 3}
        assert {0, branch.input_bytes - branch.input_bytes // 2, branch.input_bytes} <= sizes
    lengths = {len(join.tail) if join.tail else 0 for join in joins}
    assert lengths == {0, len(profile.tail) - 1, len(profile.tail)}


@pytest.mark.parametrize("with_tail", [False, True])
@pytest.mark.parametrize("kind", [HomogeneousJoin, JoinProfile])
def test_the_simplest_join_is_one_branch_of_nothing(kind: type[Join], *, with_tail: bool) -> None:
    """Whatever fails, the simplest that fails is found: each step is simpler, so they end."""
    for instance in DRAWN[:60]:
        if not isinstance(instance.profile, kind) or has_a_tail(instance.profile) < with_tail:
            continue
        small, found = instance, iter([instance])
        while (step := next(found, None)) is not None:
            small = step
            found = (s for s in small.simpler() if has_a_tail(s.profile) >= with_tail)
        # A branch of unit slots may have no stage; other chains have one, and a tail's input
        # is as large as the branch's output.
        least = 1 + with_tail if kind is HomogeneousJoin else 2 + 2 * with_tail
        assert weight(small) == (least, 0, 1)


@dataclass(frozen=True)
class Late:
    """The dynamic program, but claims a nanosecond too much wherever there is a tail."""

    def __str__(self) -> str:
        return "late"

    def __call__(self, profile: Join, budget: int, *, keep: tuple[bool, ...]) -> Claim:
        claim = join_claim(DP(), profile, budget, keep=keep)
        return replace(claim, makespan=claim.makespan + has_a_tail(profile))


@pytest.mark.parametrize("kind", [HomogeneousJoin, JoinProfile])
def test_a_lie_about_tails_is_made_as_small_as_a_join_with_a_tail_gets(kind: type[Join]) -> None:
    liar = MethodUnderTest(method=Late(), family=Family.CANONICAL_PERSISTENT, most_stages=30)
    checks = JoinSuite((liar,)).checks(range(60), seed=4)
    check = next(c for c in checks if c.reason and isinstance(c.problem.profile, kind))
    assert "the solver claimed" in check.reason
    small = JoinSuite().minimised(check, seconds=20)
    assert "the solver claimed" in small.reason
    assert small.number == check.number
    assert isinstance(small.problem, JoinProblem)
    assert isinstance(small.problem.profile, kind)
    assert has_a_tail(small.problem.profile)
    assert weight(small.problem)[:2] == ((2, 0) if kind is HomogeneousJoin else (4, 0))
