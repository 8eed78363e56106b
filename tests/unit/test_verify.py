"""Random instances, answers held against each other, and counter-examples made small."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import re
import time
from collections.abc import Iterator

import numpy as np
import pytest

from chainstay.dp import DP, least_budget
from chainstay.errors import BackendError, InfeasibleBudgetError, SolverLimitError
from chainstay.problems import AnyProblem, ChainProblem
from chainstay.problems.consistency import MethodResult
from chainstay.profiles import ChainProfile, Skip, Stage
from chainstay.schedule import Discards, Op, OpKind, Schedule
from chainstay.solution import Claim, Family, Method, Scope, Solution
from chainstay.validation import search
from chainstay.validation.simulate import simulate
from chainstay.verify import Answer, ChainSuite, Check, MethodUnderTest, Tally
from chainstay.verify.chain_instances import CHAIN_FAMILIES, random_chain
from chainstay.verify.chains import CHAIN_METHODS, exhaustive_search
from chainstay.verify.option_instances import random_chain_with_options
from chainstay.verify.processes import in_batches
from slow_checks import checked_in_a_minute

TRUTH = MethodUnderTest(
    method=exhaustive_search(), family=Family.ALL, most_stages=4, only=("no environments",)
)


@dataclasses.dataclass(frozen=True)
class Liar:
    """Says what the DP says, but for one lie about chains of more than two stages."""

    lie: str

    def __str__(self) -> str:
        return f"liar ({self.lie})"

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        claim = DP()(profile, budget, hint=hint)
        if len(profile) <= 2:
            return claim
        match self.lie:
            case "bound":
                return dataclasses.replace(claim, family=Family.ALL)
            case "makespan":
                return dataclasses.replace(claim, makespan=claim.makespan + 1)
            case "op":
                ops = (Op(OpKind.FORWARD_DROP, 0), *claim.schedule)
                return dataclasses.replace(claim, schedule=Schedule(ops))
            case "infeasible" | "unreachable":
                raise nothing_fits(profile, budget, budget + (self.lie == "infeasible"))
            case "upside down":
                if budget > least_budget(profile):
                    raise nothing_fits(profile, budget, least_budget(profile))
                return claim
            case "crash":
                raise ZeroDivisionError
            case "refuses":
                raise BackendError("no licence")
        raise SolverLimitError("too late")


def nothing_fits(profile: ChainProfile, budget: int, required: int) -> InfeasibleBudgetError:
    return InfeasibleBudgetError(
        budget=budget, required=required, stages=len(profile), family=Family.ALL
    )


def under_test(method: Method, family: Family = Family.ALL) -> MethodUnderTest:
    return MethodUnderTest(method=method, family=family, most_stages=4, only=("plain",))


def first_contradiction(*methods: MethodUnderTest) -> Check:
    found = ChainSuite(methods).checks(range(400), seed=26)
    return next(check for check in found if check.reason)


def test_instances_depend_on_seed_and_number_alone() -> None:
    drawn = [random_chain(3, number) for number in range(50)]
    assert drawn[17] == random_chain(3, 17)
    assert drawn != [random_chain(4, number) for number in range(50)]


@pytest.mark.long
def test_instances_are_of_all_families_and_mostly_feasible() -> None:
    instances = [random_chain(0, number) for number in range(400)]
    lengths = {len(instance.profile) for instance in instances}
    assert {1, 2, 3, 4, 5, 20} <= lengths
    names = {stage.name for instance in instances for stage in instance.profile.stages}
    assert names == set(CHAIN_FAMILIES)
    small = [instance for instance in instances if len(instance.profile) <= 4]
    fitting = [i for i in small if search.least_budget(i.profile) <= i.budget]
    assert 0.7 < len(fitting) / len(small) < 1


SKIPPING = next(
    instance
    for instance in (random_chain(1, number) for number in range(1000))
    if len(instance.profile) == 4 and len(instance.profile.skips) == 3
)


@pytest.mark.parametrize("instance", [random_chain(1, 2), SKIPPING], ids=["plain", "skips"])
def test_simpler_instances_are_simpler_and_end(instance: ChainProblem) -> None:
    steps = 0
    while (step := next(instance.simpler(), None)) is not None:
        assert weight(step) < weight(instance)
        instance, steps = step, steps + 1
    assert weight(instance) == (1, 0, 1)
    assert steps > 0


def test_simpler_instances_of_skips_lose_them_one_by_one_or_by_a_number() -> None:
    profiles = [step.profile for step in SKIPPING.simpler()]
    assert [len(profile.skips) for profile in profiles].count(2) >= 3
    reaches = {tuple((s.first, s.last) for s in profile.skips) for profile in profiles}
    sizes = {
        tuple(s.bytes for s in p.skips) for p in profiles if p.stages != SKIPPING.profile.stages
    }
    assert len(reaches) > 4
    assert len(sizes) > 1


def weight(instance: AnyProblem) -> tuple[int, int, int]:
    """Stages, skips, and the sum of all numbers."""
    profile = instance.profile
    assert isinstance(profile, ChainProfile)
    arrays = profile.arrays()._replace(fresh=np.array(0), gradients=np.array(0))
    skips = sum(skip.first + skip.last + skip.bytes + skip.gradient_bytes for skip in profile.skips)
    total = instance.budget + skips + sum(int(array.sum()) for array in arrays)
    return len(profile), len(profile.skips), total


def test_chains_with_options_depend_on_seed_and_number_and_simplify_to_plain_ones() -> None:
    drawn = [random_chain_with_options(3, number) for number in range(40)]
    assert drawn[17] == random_chain_with_options(3, 17)
    stages = [stage for instance in drawn for stage in instance.profile.stages]
    options = [option for stage in stages for option in stage.options]
    assert {option.stages for option in options} == {1, 2, 3}
    assert {option.needs_input for option in options} == {True, False}
    assert any(option.again for option in options)
    assert any(stage.dropped_first for stage in stages)
    problem = next(
        candidate for candidate in drawn if len(candidate.profile) == 4 and candidate.profile.skips
    )
    assert not problem.profile.is_plain
    while (step := next(problem.simpler(), None)) is not None:
        problem = step
    assert problem.profile.is_plain
    assert weight(problem) == (1, 0, 1)


@pytest.mark.long
def test_methods_that_take_options_agree() -> None:
    checks = list(ChainSuite().checks(range(3, 163, 4), seed=5))
    assert not [check.reason for check in checks if check.reason]
    names = {answer.tested.name for check in checks for answer in check.answers}
    assert {"dp", "search (persistent)", "search (free)"} <= names


@pytest.mark.long
def test_a_short_real_run_is_clean() -> None:
    names = set()
    for check in ChainSuite().checks(range(64), seed=1):
        assert not check.reason
        names |= {answer.tested.name for answer in check.answers}
    assert names == {tested.name for tested in CHAIN_METHODS}


def test_the_plan_is_said_in_words() -> None:
    assert dataclasses.replace(TRUTH, only=()).sampling == "all, n ≤ 4"
    assert under_test(exhaustive_search()).name == "search (table1)"
    assert dataclasses.replace(TRUTH, every=8, only=()).sampling == "1 in 8, n ≤ 4"
    assert dataclasses.replace(TRUTH, only=("no skips",)).sampling == "all, n ≤ 4, no skips"
    chain = ChainProfile(input_bytes=0, input_gradient_bytes=0, stages=(Stage(),) * 4)
    longer = dataclasses.replace(chain, stages=(Stage(),) * 5)
    skipping = dataclasses.replace(chain, skips=(Skip(first=0, last=1, bytes=0),))
    assert not takes(TRUTH, 0, longer)
    assert takes(dataclasses.replace(TRUTH, every=8), 16, chain)
    assert not takes(dataclasses.replace(TRUTH, every=8), 17, chain)
    assert takes(TRUTH, 0, skipping)
    assert takes(dataclasses.replace(TRUTH, only=("no skips",)), 0, chain)
    assert not takes(dataclasses.replace(TRUTH, only=("no skips",)), 0, skipping)


def takes(tested: MethodUnderTest, number: int, profile: ChainProfile) -> bool:
    return ChainSuite().takes(tested, number, ChainProblem(profile, 1))


def test_a_number_checked_alone_gives_the_same_answers() -> None:
    among = list(ChainSuite((TRUTH,)).checks(range(20, 30), seed=2))[4]
    (alone,) = ChainSuite((TRUTH,)).checks([24], seed=2)
    assert alone.problem == among.problem
    assert [a.result for a in alone.answers] == [a.result for a in among.answers]


@pytest.mark.long
def test_several_processes_give_the_answers_of_one_in_the_same_order() -> None:
    many = list(ChainSuite((TRUTH,)).checks(range(100), seed=3, workers=2))
    one = list(ChainSuite((TRUTH,)).checks(range(100), seed=3))
    assert [check.number for check in many] == list(range(100))
    assert [check.problem for check in many] == [check.problem for check in one]
    assert [said(check) for check in many] == [said(check) for check in one]


def said(check: Check) -> list[MethodResult]:
    return [answer.result for answer in check.answers]


def test_several_processes_end_when_their_checks_are_no_longer_wanted() -> None:
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in range(10**9):
            taken.append(number)
            yield number

    found = ChainSuite((TRUTH,)).checks(numbers(), seed=3, workers=2)
    assert next(found).number == 0
    found.close()  # type: ignore[attr-defined]  # it is a generator
    assert len(taken) <= 100  # a few batches ahead of the first result
    assert not multiprocessing.active_children()


@pytest.mark.long
def test_several_processes_end_at_once_in_the_middle_of_a_hard_instance() -> None:
    found = in_batches(range(10**9), checked_in_a_minute, workers=2)
    assert next(found) == 0
    start = time.monotonic()
    found.close()  # type: ignore[attr-defined]  # it is a generator
    assert time.monotonic() - start < 20  # a process left alone would take a minute
    assert not multiprocessing.active_children()


@pytest.mark.long
@pytest.mark.parametrize(
    ("lie", "text"),
    [
        ("bound", r"liar \(bound\) says that nothing is faster than \d+ ns, and search"),
        ("makespan", r"the schedule takes \d+ ns, the solver claimed \d+"),
        ("op", r"liar \(op\): step 2: "),
        (
            "infeasible",
            r"that nothing fits in \d+ bytes and that \d+ bytes would do, which is wrong",
        ),
        (
            "unreachable",
            r"that nothing fits in \d+ bytes and that \d+ bytes would do, which is wrong",
        ),
        (
            "upside down",
            r"that nothing fits in \d+ bytes and that \d+ bytes would do, which is wrong",
        ),
        ("refuses", "no licence"),
    ],
)
def test_a_lie_is_found_and_its_instance_made_as_small_as_it_gets(lie: str, text: str) -> None:
    check = first_contradiction(under_test(Liar(lie), Family.PERSISTENT), TRUTH)
    assert re.search(text, check.reason)
    small = ChainSuite().minimised(check)
    assert small.number == check.number
    assert re.search(text, small.reason)
    if lie == "bound":  # true up to 3 stages and of small numbers
        assert weight(small.problem) < (5, 200)
    else:
        assert weight(small.problem) <= (3, 2)
    document = json.loads(small.counter_example(seed=5))
    assert document["chainstay"] == "counter-example"
    assert document["problem"] == "chain"
    assert ChainProfile.from_json(document["profile"]) == small.problem.profile
    assert (document["number"], document["seed"]) == (check.number, 5)
    assert document["budget"] == small.problem.budget
    assert document["answers"][0]["method"].startswith(("liar", "search"))


def test_a_counter_example_holds_claims_and_replays() -> None:
    check = first_contradiction(under_test(Liar("bound"), Family.PERSISTENT), TRUTH)
    text = check.counter_example(seed=5)
    answers = {answer["method"]: answer for answer in json.loads(text)["answers"]}
    liar, truth = answers["liar (bound)"], answers["search (table1)"]
    assert truth["replay"]["makespan"] == truth["makespan"] < liar["lower_bound"]
    assert liar["family"] == "all"
    replay = simulate(profile_of(check), Schedule.parse(liar["schedule"]))
    assert liar["replay"] == {"makespan": replay.makespan, "peak_bytes": replay.peak_bytes}


def profile_of(check: Check) -> ChainProfile:
    assert isinstance(check.problem, ChainProblem)
    return check.problem.profile


def test_a_counter_example_says_why_a_schedule_is_invalid() -> None:
    check = first_contradiction(under_test(Liar("op"), Family.PERSISTENT))
    (answer,) = json.loads(check.counter_example(seed=5))["answers"]
    assert "needs" in answer["replay"]["invalid"]


def test_without_time_the_instance_stays_as_it_is() -> None:
    check = first_contradiction(under_test(Liar("makespan")))
    small = ChainSuite().minimised(check, seconds=0.0)
    assert (small.problem, small.reason) == (check.problem, check.reason)


def test_a_method_that_runs_out_of_time_contradicts_nobody() -> None:
    for check in ChainSuite(
        (
            under_test(Liar("late")),
            TRUTH,
        )
    ).checks(range(30), seed=0):
        assert not check.reason


def test_a_crash_names_the_instance() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(ChainSuite((under_test(Liar("crash")),)).checks(range(30), seed=9))
    assert caught.value.__notes__[0].endswith("of seed 9")


@pytest.mark.parametrize(
    ("family", "rules", "covers", "other_rules", "is_held_against"),
    [
        (Family.ALL, "table1", Family.ALL, "table1", True),
        (Family.ALL, "table1", Family.PERSISTENT, "table1", False),
        (Family.PERSISTENT, "table1", Family.SINGLE_SWEEP, "tape", True),
        (Family.SINGLE_SWEEP, "table1", Family.SINGLE_SWEEP, "tape", False),
        (Family.SINGLE_SWEEP, "table1", Family.ALL, "tape", False),
        (Family.SINGLE_SWEEP, "tape", Family.ALL, "free", True),
        (Family.SINGLE_SWEEP, "tape", Family.SINGLE_SWEEP, "free", False),
        (Family.PERSISTENT, "table1", Family.WEAKLY_PERSISTENT, "table1", True),
        (Family.WEAKLY_PERSISTENT, "table1", Family.PERSISTENT, "table1", False),
        (Family.WEAKLY_PERSISTENT, "table1", Family.SINGLE_SWEEP, "free", True),
        (Family.WEAKLY_PERSISTENT, "table1", Family.ALL, "tape", True),
    ],
)
def test_bounds_are_held_against_what_they_speak_about(
    family: Family, rules: str, covers: Family, other_rules: str, *, is_held_against: bool
) -> None:
    fast, slow = shown(2, family, family, rules), shown(3, covers, covers, other_rules)
    assert bool(contradiction(fast, slow)) == is_held_against
    assert bool(contradiction(slow, fast)) == is_held_against


def contradiction(*answers: Answer) -> str:
    return ChainSuite().find_contradiction(answers)[0]


PROBLEM = ChainProblem(
    ChainProfile(input_bytes=0, input_gradient_bytes=0, stages=(Stage(saved_bytes=1),)), 1
)


def shown(makespan: int, family: Family, covers: Family, rules: str) -> Answer:
    """An answer that claims an optimum of `makespan`."""
    claim = Claim(
        schedule=Schedule.keep_all(1),
        makespan=makespan,
        lower_bound=makespan,
        family=covers,
        discards=Discards(rules),
    )
    tested = MethodUnderTest(
        method=exhaustive_search(), family=family, discards=Discards(rules), most_stages=1
    )
    solution = Solution(
        schedule=claim.schedule,
        makespan=makespan,
        peak_bytes=1,
        budget=1,
        lower_bound=makespan,
        family=covers,
        method="",
        solve_seconds=0.0,
    )
    return Answer(tested=tested, problem=PROBLEM, claim=claim, solution=solution)


def refused(required: int) -> Answer:
    return Answer(tested=TRUTH, problem=PROBLEM, required=required)


def test_infeasible_is_held_against_a_schedule_and_against_a_smaller_need() -> None:
    found = contradiction(refused(5), shown(2, Family.ALL, Family.ALL, "table1"))
    assert "less than 5 bytes, and search (table1) has a schedule that does" in found
    found = contradiction(refused(5), refused(4))
    assert "nothing fits in less than 5 bytes, and search (table1) has a schedule for 4" in found
    assert not contradiction(refused(5), refused(5))


WEAK = next(tested for tested in CHAIN_METHODS if tested.name == "dp, weakly persistent")


@pytest.mark.parametrize(
    ("changes", "scope"),
    [
        ({}, Scope(Family.ALL, Discards.TABLE1)),
        ({"forward_overhead_bytes": 9}, Scope(Family.ALL, Discards.TAPE)),
        ({"gradient_bytes": 9}, Scope(Family.WEAKLY_PERSISTENT, Discards.TABLE1)),
        ({"saved_bytes": 1}, Scope(Family.WEAKLY_PERSISTENT, Discards.TABLE1)),
    ],
)
@pytest.mark.long
def test_the_weak_program_is_held_to_its_promise_on_the_domain_at_hand(
    changes: dict[str, int], scope: Scope
) -> None:
    stage = Stage(forward_time=1, output_bytes=3, saved_bytes=4, gradient_bytes=3)
    stages = (stage, dataclasses.replace(stage, **changes), stage)  # type: ignore[arg-type]
    profile = ChainProfile(input_bytes=3, input_gradient_bytes=0, stages=stages)
    refusal = Answer(tested=WEAK, problem=ChainProblem(profile, 1), required=2)
    assert ChainSuite.scope(refusal) == scope
    least = least_budget(profile, persistence="weak")
    claim = WEAK.method(profile, least)
    assert claim.scope == scope  # what it says of its bound is what it says of its least budget
    assert claim.makespan > profile.least_time


@dataclasses.dataclass(frozen=True)
class SlowWeak:
    """The persistent program in the weak one's place: right schedules, bounds too high."""

    def __str__(self) -> str:
        return "slow weak"

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        weak = DP(persistence="weak")(profile, budget)
        try:
            claim = DP()(profile, budget, hint=hint)
        except InfeasibleBudgetError:
            return weak
        return dataclasses.replace(claim, family=weak.family, discards=weak.discards)


@pytest.mark.long
def test_a_weak_program_that_misses_what_floats_is_found_out() -> None:
    liar = dataclasses.replace(WEAK, method=SlowWeak())
    honest = [WEAK, TRUTH, *(tested for tested in CHAIN_METHODS if "cpsat" in tested.name)]
    checks = ChainSuite((liar, *honest)).checks(range(0, 2400, 4), seed=1)
    found = next(check.reason for check in checks if check.reason)
    assert found.startswith("slow weak says that nothing is faster than")


def test_tallies_add_up() -> None:
    tally = Tally()
    gap = dataclasses.replace(shown(4, Family.ALL, Family.ALL, "table1"), seconds=1.5)
    assert gap.solution is not None
    loose = dataclasses.replace(gap, solution=dataclasses.replace(gap.solution, lower_bound=3))
    for answer in (gap, loose, refused(7)):
        tally.add(answer)
    assert tally == Tally(instances=3, optimal=1, infeasible=1, worst_gap=0.25, seconds=3.0)
