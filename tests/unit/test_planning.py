"""Plans for measured chains, against every persistent schedule judged by its own profile."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import permutations

import pytest
import torch
from torch import nn

from chainstay import (
    CPSAT,
    DP,
    MIP,
    Claim,
    Discards,
    Family,
    InfeasibleBudgetError,
    InvalidBudgetError,
    InvalidProfileError,
    Method,
    OpKind,
    Schedule,
    Solution,
    SolverLimitError,
    UnknownMethodError,
    least_budget,
    measure,
    simulate,
    solve_chain,
    solve_measured,
)
from chainstay.planning import chain
from chainstay.planning.questions import counts_environments
from chainstay.profiles import ChainProfile, Skip
from chainstay.runtime.measures.account import Account
from chainstay.runtime.measures.measured import Measurement
from chainstay.runtime.measures.stage_cost import OptionCost, StageCost
from chainstay.units import format_bytes
from chainstay.validation.simulate import Replay

_MEASURED = measure(nn.Sequential(nn.Linear(2, 2)), torch.zeros(1, 2), repeats=1)


def some_account(seed: int, stages: int, largest: int = 40) -> Account:
    """Overheads and environments as large as what is kept, and larger; at times a skip."""
    draw = random.Random(seed)
    costs = []
    for index in range(stages):
        environment = draw.choice((0, 0, draw.randint(1, largest)))
        output = draw.randint(5, 30)
        costs.append(
            StageCost(
                name=str(index),
                forward_time=draw.randint(1, 50),
                backward_time=draw.randint(1, 50),
                output_bytes=output,
                saved_bytes=output + draw.randint(0, 80),
                gradient_bytes=draw.randint(5, 30),
                recording_bytes=draw.randint(0, largest),
                dropping_bytes=draw.randint(0, largest),
                backward_bytes=draw.randint(0, largest),
                environment_bytes=environment,
                random_bytes=draw.randint(0, environment),
            )
        )
    skips: tuple[Skip, ...] = ()
    if stages > 2 and draw.random() < 0.4:  # the loss may read it, or not
        skips = (Skip(first=1, last=stages - 1 - seed % 2 * (stages > 3), bytes=4),)
    return Account(input_bytes=10, input_gradient_bytes=0, stages=tuple(costs), skips=skips)


def measured_as(account: Account) -> Measurement:
    """Any chain, but for what it costs."""
    return replace(_MEASURED, account=account, freed_bytes=())


def persistent_schedules(first: int, end: int) -> Iterator[str]:
    """All for stages from `first` up to `end`, whose gradient is there."""
    if first == end:
        yield ""
        return
    for rest in persistent_schedules(first + 1, end):
        yield f"Fa{first} {rest} B{first} "
    for restart in range(first + 1, end):
        sweep = f"Fc{first} " + " ".join(f"Fn{stage}" for stage in range(first + 1, restart))
        for later in persistent_schedules(restart, end):
            for earlier in persistent_schedules(first, restart):
                yield f"{sweep} {later} {earlier} "


def own_overheads(account: Account, schedule: Schedule) -> list[int]:
    """What each operation needs besides what is stored, read off the definition."""
    ops = schedule.ops
    needs = []
    for here, op in enumerate(ops):
        cost = account.stages[op.stage]
        before = [earlier.stage for earlier in ops[:here] if earlier.kind.is_forward]
        later = [following for following in ops[here + 1 :] if following.kind.is_forward]
        if op.kind is OpKind.BACKWARD:
            need = cost.backward_bytes
        elif op.kind is not OpKind.FORWARD_KEEP_ALL:
            need = cost.dropping_bytes
        elif any(following == op for following in later):  # the backward uses that one
            need = max(cost.recording_bytes, cost.dropping_bytes)
        else:
            need = cost.recording_bytes
        over = {earlier.stage for earlier in ops[:here] if earlier.kind is OpKind.BACKWARD}
        runs = Counter(run.stage for run in ops if run.kind.is_forward)
        left = {following.stage for following in later} | (
            {op.stage} if op.kind.is_forward else set()
        )
        for stage, other in enumerate(account.stages):
            if runs[stage] > 1 and (stage in before or stage == op.stage) and stage not in over:
                random_gone = stage not in left
                need += other.environment_bytes - other.random_bytes * random_gone
        if op.kind.is_forward and op.stage in before:  # its present environment, put aside
            need += cost.environment_bytes
        for skip in account.skips:
            makes_again = before.count(skip.first - 1) > 1 and skip.last == len(account.stages) - 1
            need += skip.bytes * (makes_again and op.stage >= skip.first)
        needs.append(need if op.kind.is_computation else 0)
    return needs


def own_replay(account: Account, schedule: Schedule, discards: str = "table1") -> Replay:
    overheads = own_overheads(account, schedule)
    return simulate(account.profile(), schedule, discards=discards, overheads=overheads)


def own_peak(account: Account, schedule: Schedule, discards: str = "table1") -> int:
    return own_replay(account, schedule, discards).peak_bytes


def outcomes(account: Account) -> list[tuple[int, int]]:
    """Makespan and own peak of every persistent schedule."""
    found = []
    for text in persistent_schedules(0, len(account.stages)):
        replay = own_replay(account, Schedule.parse(text))
        found.append((replay.makespan, replay.peak_bytes))
    return found


def budgets_of(account: Account) -> list[int]:
    """From the least own peak of any persistent schedule to plain training's, and below."""
    peaks = [peak for _, peak in outcomes(account)]
    plain = own_peak(account, Schedule.keep_all(len(account.stages)))
    least = min(peaks)
    return [least - 1, *(least + (plain - least) * part // 6 for part in range(7))]


def own_time(account: Account, schedule: Schedule) -> int:
    """Every operation's time, and what no profile for all schedules has a place for."""
    runs = Counter(op.stage for op in schedule if op.kind.is_forward)
    time = int(own_replay(account, schedule, "free").makespan)
    for stage, cost in enumerate(account.stages):
        if runs[stage] > 1:
            time += (runs[stage] - 1) * cost.rerun_time + cost.hooks_time
        elif f"Da{stage}" in str(schedule).split():
            time += cost.hooks_time
    return time


@pytest.mark.parametrize("method", [DP(), DP(discards="free")], ids=str)
@pytest.mark.long
def test_what_dropping_takes_besides_counts_in_plans_and_in_no_bound(method: DP) -> None:
    for seed in range(8):
        plain = some_account(seed, 5)
        slow = (replace(stage, rerun_time=seed % 3 * 20, hooks_time=15) for stage in plain.stages)
        account = replace(plain, stages=tuple(slow))
        schedules = [Schedule.parse(text) for text in persistent_schedules(0, 5)]
        known = [
            (own_time(account, schedule), own_peak(account, schedule)) for schedule in schedules
        ]
        for budget in budgets_of(account)[1::2]:
            try:
                solution = solve_measured(measured_as(account), budget, method)
            except InfeasibleBudgetError:
                continue
            assert solution.makespan == own_time(account, solution.schedule)
            fitting = [time for time, peak in known if peak <= budget]
            assert solution.lower_bound <= min([*fitting, solution.makespan])
            assert solution.unrestricted_bound <= solution.makespan


@pytest.mark.long
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 5])
def test_plans_are_bounded_by_the_optimum_among_all_and_mostly_attain_it(stages: int) -> None:
    attained = total = 0
    for seed in range(12):
        account = some_account(seed, stages)
        everything = outcomes(account)
        for budget in budgets_of(account):
            makespans = [time for time, peak in everything if peak <= budget]
            total += bool(makespans)
            try:
                solution = solve_measured(measured_as(account), budget, DP())
            except InfeasibleBudgetError:
                continue
            assert own_peak(account, solution.schedule) == solution.peak_bytes <= budget
            assert solution.budget == budget
            assert solution.lower_bound <= min(makespans) <= solution.makespan
            assert solution.unrestricted_bound <= min(makespans)
            attained += solution.makespan == min(makespans)
    assert total == 7 * 12
    assert attained >= 0.9 * total


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_plans_are_proved_optimal_with_their_environments(stages: int) -> None:
    """As long as what the caller holds of the output is not made again."""
    for seed in range(8):
        account = replace(some_account(seed, stages, largest=80), skips=())
        everything = outcomes(account)
        for budget in budgets_of(account)[1:]:
            solution = solve_measured(measured_as(account), budget, DP())
            fitting = [time for time, peak in everything if peak <= budget]
            assert solution.is_optimal
            assert solution.makespan == min(fitting)
            assert own_peak(account, solution.schedule) == solution.peak_bytes <= budget


def test_environments_of_a_profile_are_those_of_the_run() -> None:
    for seed in range(6):
        account = replace(with_options(some_account(seed, 4)), skips=())
        for text in persistent_schedules(0, 4):
            for words in (text, text.replace("Fa1 ", "Fa1.1 ")):
                schedule = Schedule.parse(words)
                own = measured_as(account).costs_of(schedule)
                expected = simulate(own[0], schedule, overheads=own[1])
                for profile in (
                    account.by_kind_in(schedule, apart=True),
                    account.by_kind(apart=True),
                ):
                    found = simulate(profile, schedule)
                    assert [snapshot.during_bytes for snapshot in found.timeline] == [
                        snapshot.during_bytes for snapshot in expected.timeline
                    ]


@pytest.mark.long
@pytest.mark.parametrize("method", [DP(), DP(discards="free"), "auto"])
def test_no_plan_is_slower_or_larger_than_with_one_profile_for_all(method: DP | str) -> None:
    faster = 0
    for seed in range(5):
        account = some_account(seed, 4 if method == "auto" else 9)
        pessimistic = account.profile()
        least = least_budget(pessimistic)
        plain = simulate(pessimistic, Schedule.keep_all(len(pessimistic))).peak_bytes
        for budget in (least, (least + plain) // 2):
            before = solve_chain(pessimistic, budget, "dp" if method == "auto" else method)
            solution = solve_measured(measured_as(account), budget, method)
            discards = solution.discards
            assert own_peak(account, solution.schedule, discards) == solution.peak_bytes
            assert solution.makespan <= before.makespan
            faster += solution.makespan < before.makespan
    assert faster > 0


def of_ones_own(profile: ChainProfile, budget: int, *, hint: Schedule | None = None) -> Claim:
    """A user's method, which knows neither options nor kinds of runs."""
    assert profile.is_plain
    return DP()(profile, budget, hint=hint)


@pytest.mark.parametrize(
    "method",
    [DP(), DP(discards="free"), "dp", CPSAT(time_limit_s=5), DP(slots=40), of_ones_own],
)
@pytest.mark.parametrize("seed", range(3))
def test_what_an_error_asks_for_is_enough(method: Method | str, seed: int) -> None:
    account = some_account(seed, 3 if isinstance(method, CPSAT) else 8)
    measured = measured_as(account)
    with pytest.raises(InfeasibleBudgetError, match="no known schedule of this") as error:
        solve_measured(measured, 1, method)
    required = error.value.required
    assert required <= least_budget(account.profile())
    assert required >= least_budget(account.by_kind(is_sound=False), discards="free") or isinstance(
        method, CPSAT
    )
    assert solve_measured(measured, required, method).peak_bytes <= required


@pytest.mark.parametrize("method", ["dp", pytest.param("auto", marks=pytest.mark.long)])
def test_what_an_error_asks_for_is_enough_whatever_the_times(method: str) -> None:
    """Times differ whenever they are measured, and options by them; the next call finds others."""
    for seed in (0, 6, 13):  # with their own times, least peaks would differ
        account, draw = some_account(seed, 10, largest=200), random.Random(seed)
        again = replace(
            account,
            stages=tuple(
                replace(stage, forward_time=draw.randint(1, 50)) for stage in account.stages
            ),
        )
        required = set()
        for costs in (with_options(account, is_steady=False), again):
            with pytest.raises(InfeasibleBudgetError) as error:
                solve_measured(measured_as(costs), 1, method)
            required.add(error.value.required)
        (enough,) = required
        assert solve_measured(measured_as(again), enough, method).peak_bytes <= enough


@pytest.mark.parametrize("seed", [9, 29, 40])
def test_an_error_asks_for_no_more_than_plain_training(seed: int) -> None:
    """Here plans that run all again hold more than they save."""
    measured = measured_as(some_account(seed, 8, largest=200))
    plain = solve_measured(measured, "100%", "dp").peak_bytes
    with pytest.raises(InfeasibleBudgetError) as error:
        solve_measured(measured, 1, "dp")
    assert error.value.required <= plain
    assert solve_measured(measured, error.value.required, "dp").peak_bytes <= error.value.required


class Told:
    """A user's method that gives known schedules, one after the other, whatever it is asked."""

    def __init__(self, *schedules: Schedule) -> None:
        self.schedules = schedules
        self.asked: list[tuple[ChainProfile, int]] = []

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        del hint
        schedule = self.schedules[len(self.asked) % len(self.schedules)]
        self.asked.append((profile, budget))
        replay = simulate(profile, schedule, discards="free")
        if replay.peak_bytes > budget:
            required = replay.peak_bytes
            raise InfeasibleBudgetError(
                budget=budget, required=required, stages=len(profile), family="known"
            )
        return Claim(
            schedule=schedule,
            makespan=replay.makespan,
            lower_bound=0,
            family=Family.ALL,
            discards=Discards.FREE,
        )


def test_of_plans_that_fit_the_fastest_is_kept_in_whatever_order_they_come() -> None:
    account = some_account(1, 6)
    profile, plain = account.profile(), own_peak(account, Schedule.keep_all(6))
    least = least_budget(profile)
    budgets = (least + step * (plain - least) // 4 for step in range(3))
    plans = [solve_chain(profile, budget, DP()).schedule for budget in budgets]
    makespans = [own_replay(account, plan).makespan for plan in plans]
    assert len(set(makespans)) == 3
    for order in permutations(plans):
        method = Told(*order)
        solution = solve_measured(measured_as(account), plain - 1, method)
        assert len(method.asked) == 4
        assert solution.makespan == min(makespans)
        assert solution.lower_bound <= solution.makespan


def test_a_method_of_ones_own_is_asked_again_for_what_it_left() -> None:
    account = some_account(1, 6)
    budget = own_peak(account, Schedule.keep_all(6)) - 1
    small = solve_chain(account.profile(), least_budget(account.profile()), DP()).schedule
    method = Told(small)
    solution = solve_measured(measured_as(account), budget, method)
    left = budget - own_peak(account, small)
    assert left > 0
    assert [nominal for _, nominal in method.asked] == [budget + left * n for n in range(4)]
    assert all(profile.is_plain for profile, _ in method.asked)
    assert solution.peak_bytes == budget - left
    assert solution.family is Family.ALL


def test_what_is_made_again_while_it_is_held_counts_twice() -> None:
    """As in the example of `remade_bytes`, where that is 5 bytes."""
    cost = StageCost(
        name="stage",
        forward_time=1,
        backward_time=1,
        output_bytes=9,
        saved_bytes=30,
        gradient_bytes=9,
        recording_bytes=0,
        dropping_bytes=0,
        backward_bytes=0,
        environment_bytes=0,
        random_bytes=0,
    )
    skips = (Skip(first=1, last=2, bytes=5),)
    account = Account(input_bytes=9, input_gradient_bytes=0, stages=(cost,) * 3, skips=skips)
    schedule = Schedule.parse("Fc0 Fn1 Fc0 Fa2 B2 Fa1 B1 Fa0 B0")
    peak = own_peak(account, schedule)
    assert peak + 8 < own_peak(account, Schedule.keep_all(3))
    for more in range(8):
        question = partial(solve_measured, measured_as(account), peak + more, Told(schedule))
        if more < 5:
            with pytest.raises(UnknownMethodError, match="makes 5 bytes of tensors again"):
                question()
        else:
            assert question().peak_bytes == peak + 5


def test_plain_training_that_fits_is_the_plan_of_every_method() -> None:
    account = some_account(1, 6)
    plain = Schedule.keep_all(6)
    assert simulate(account.profile(), plain).peak_bytes > own_peak(account, plain)

    def never(profile: ChainProfile, budget: int, *, hint: Schedule | None = None) -> Claim:
        raise AssertionError(profile, budget, hint)

    methods: tuple[Method | str, ...] = ("auto", "dp", "mip", "cpsat", DP(slots=50), never)
    for method in methods:
        solution = solve_measured(measured_as(account), own_peak(account, plain), method)
        assert solution.schedule == plain
        assert solution.is_optimal
        assert solution.family is Family.ALL
        assert solution.peak_bytes == solution.budget
        assert solution == replace(
            solve_measured(measured_as(account), "100%", method),
            solve_seconds=solution.solve_seconds,
        )


def with_options(account: Account, *, is_steady: bool = True) -> Account:
    """The same chain, of which each stage but the loss may save a third for some time."""
    choices = (
        OptionCost(
            name="less",
            saved_bytes=cost.output_bytes + (cost.saved_bytes - cost.output_bytes) // 3,
            recording_bytes=cost.recording_bytes,
            backward_bytes=cost.backward_bytes,
            replay_time=5,
            stages=1,
            replayed=(0,),
            is_steady=is_steady,
        )
        for cost in account.stages
    )
    *stages, loss = (
        replace(cost, options=(choice,))
        for cost, choice in zip(account.stages, choices, strict=True)
    )
    return replace(account, stages=(*stages, replace(loss, options=())), has_options=True)


def kept_in_part(solution: Solution) -> bool:
    return any(op.option for op in solution.schedule)


@pytest.mark.parametrize(
    "method",
    [
        "auto",
        DP(slots=400),
        DP(persistence="weak"),
        CPSAT(time_limit_s=20),
        pytest.param(MIP(time_limit_s=60), marks=pytest.mark.long),
    ],
    ids=str,
)
def test_methods_that_know_options_keep_stages_in_part(method: Method | str) -> None:
    account = with_options(replace(some_account(5, 5), skips=()))
    measured = measured_as(account)
    budget = own_peak(account, Schedule.keep_all(5)) * 3 // 4
    solution = solve_measured(measured, budget, method)
    assert kept_in_part(solution)
    assert (
        solution.makespan < solve_measured(measured_as(account.without_options()), budget).makespan
    )
    profile, overheads = measured.costs_of(solution.schedule)
    replay = simulate(profile, solution.schedule, overheads=overheads)
    assert replay.makespan == solution.makespan
    assert replay.peak_bytes == solution.peak_bytes <= budget
    best = solve_measured(measured, budget, DP())
    assert best.is_optimal
    assert solution.lower_bound <= best.makespan
    if not isinstance(method, DP) or method.slots is None:
        assert solution.makespan <= best.makespan


@pytest.mark.parametrize(
    "method", [DP(discards="free"), CPSAT(time_limit_s=5, discards="free")], ids=str
)
def test_free_discards_use_no_options_and_claim_nothing_about_them(method: Method) -> None:
    account = with_options(some_account(5, 5))
    measured = measured_as(account)
    budget = own_peak(account, Schedule.keep_all(5)) * 3 // 4
    solution = solve_measured(measured, budget, method)
    best = solve_measured(measured, budget, DP())
    assert not kept_in_part(solution)
    assert best.makespan < solution.makespan, "options would help"
    assert solution.family is Family.ALL
    assert solution.lower_bound <= best.makespan
    assert not solution.is_optimal


def test_auto_takes_free_discards_that_save_enough_to_give_up_a_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = [
        StageCost(
            name=name,
            forward_time=time,
            backward_time=2 * time,
            output_bytes=10,
            saved_bytes=saved,
            gradient_bytes=10,
            recording_bytes=0,
            dropping_bytes=0,
            backward_bytes=0,
            environment_bytes=0,
            random_bytes=0,
        )
        for name, time, saved in [("convolution", 40, 10), ("norm", 10, 20)] * 4
    ]
    plain = Account(input_bytes=10, input_gradient_bytes=0, stages=tuple(costs[:7]), skips=())
    measured = measured_as(with_options(plain))
    whole, least = own_peak(plain, Schedule.keep_all(7)), measured.profile.least_time
    for share in (0.5, 0.6):
        budget = int(share * whole)
        kept, free, auto = (
            solve_measured(measured, budget, method)
            for method in (DP(), DP(discards="free"), "auto")
        )
        assert kept_in_part(kept)
        assert kept.is_optimal
        assert not free.is_optimal
        saved = kept.makespan - free.makespan
        assert saved > 0.01 * least
        assert auto.schedule == free.schedule
        with monkeypatch.context() as patch:
            patch.setattr("chainstay.planning.chain._NOTICED", saved / least)
            assert solve_measured(measured, budget).schedule == kept.schedule


def least_refused(*, backward_bytes: int) -> InfeasibleBudgetError:
    """The refusal of a budget of one byte for three pools, of which no forward needs anything."""
    cost = StageCost(
        name="pool",
        forward_time=1,
        backward_time=1,
        output_bytes=1000,
        saved_bytes=1000,
        gradient_bytes=1000,
        recording_bytes=0,
        dropping_bytes=0,
        backward_bytes=backward_bytes,
        environment_bytes=0,
        random_bytes=0,
    )
    account = Account(input_bytes=10, input_gradient_bytes=0, stages=(cost,) * 3, skips=())
    with pytest.raises(
        InfeasibleBudgetError, match=r"the backward of stage \d \(pool\) needs most"
    ) as refusal:
        solve_measured(measured_as(account), 1)
    return refusal.value


def test_what_needs_most_is_told_with_what_is_stored_beside_it() -> None:
    error = least_refused(backward_bytes=500)
    stored = format_bytes(error.required - 500)
    assert f"needs most, 500 bytes for itself beside {stored} stored. " in str(error)


def test_what_needs_most_has_no_size_below_zero() -> None:
    """Its backward finds less in memory than counts as stored: all is what others store."""
    assert "for itself" not in str(least_refused(backward_bytes=-1))


@dataclass(frozen=True)
class Renewing(DP):
    """Makes the input of stage 1, which is kept in part, once more before its backward."""

    def __call__(
        self, profile: ChainProfile, budget: int, *, hint: Schedule | None = None
    ) -> Claim:
        del hint
        schedule = Schedule.parse("Fc0 Fa1.1 Fa2 B2 Fc0 B1 Fa0 B0")
        replay = simulate(profile, schedule)
        if replay.peak_bytes > budget:
            required = replay.peak_bytes
            raise InfeasibleBudgetError(
                budget=budget, required=required, stages=len(profile), family="known"
            )
        makespan = replay.makespan
        return Claim(schedule=schedule, makespan=makespan, lower_bound=0, family=Family.ALL)


def test_what_is_kept_in_part_gets_no_other_input() -> None:
    account = with_options(some_account(5, 3))
    budget = own_peak(account, Schedule.keep_all(3)) - 1
    with pytest.raises(UnknownMethodError, match="again the input of what is kept in part"):
        solve_measured(measured_as(account), budget, Renewing())


@pytest.mark.parametrize("seed", range(4))
def test_what_every_schedule_needs_at_least_and_what_one_needs(seed: int) -> None:
    """By kind of run: the operations of a schedule lie between both profiles."""
    account = with_options(some_account(seed, 4))
    for text in persistent_schedules(0, 4):
        for words in (text, text.replace("Fa1 ", "Fa1.1 ")):
            schedule = Schedule.parse(words)
            profile, overheads = measured_as(account).costs_of(schedule)
            own = simulate(profile, schedule, overheads=overheads)
            least, most = (
                simulate(profile, schedule)
                for profile in (account.by_kind(is_sound=False), account.by_kind_in(schedule))
            )
            assert least.makespan <= own.makespan == most.makespan
            for low, here, high in zip(least.timeline, own.timeline, most.timeline, strict=True):
                assert low.during_bytes <= here.during_bytes <= high.during_bytes


@pytest.mark.long
@pytest.mark.parametrize("method", [DP(), DP(discards="free"), DP(slots=100)], ids=str)
def test_no_method_is_asked_more_than_four_times(
    method: DP, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(profile: ChainProfile, budget: int, method: Method) -> Solution:
        asked[-1] += 1
        return solve_chain(profile, budget, method)

    monkeypatch.setattr(chain, "solve_chain", counted)
    for seed in range(6):
        account = some_account(seed, 6)
        for budget in budgets_of(account)[2::2]:
            asked.append(0)
            with suppress(InfeasibleBudgetError):
                solve_measured(measured_as(account), budget, method)
                assert asked[-1] <= 4
    needs_one = counts_environments(method) and method.slots is None
    assert (max(asked) == 1) == needs_one, "some environments do not fit beside the first plan"


def keeps_inputs(schedule: Schedule) -> bool:
    return "Da" not in str(schedule)


def test_auto_goes_without_what_cannot_be_run() -> None:
    """Free discards are faster on this chain; what can be run is still the best of its kind."""
    account = some_account(2, 9)
    measured = measured_as(account)
    budget = (least_budget(account.profile()) * 2 + simulate(
        account.profile(), Schedule.keep_all(9)
    ).peak_bytes) // 3  # fmt: skip
    restricted = solve_measured(measured, budget, can_run=keeps_inputs)
    assert keeps_inputs(restricted.schedule)
    assert restricted.makespan <= solve_measured(measured, budget, "dp").makespan
    assert restricted.unrestricted_bound <= solve_measured(measured, budget).makespan


def test_a_method_none_of_whose_schedules_can_be_run_is_refused() -> None:
    with pytest.raises(UnknownMethodError, match="the plan of dp makes again what lies between"):
        solve_measured(measured_as(some_account(3, 6)), 400, "dp", can_run=lambda _: False)


def test_a_solver_that_runs_out_of_time_is_told() -> None:
    def slow(profile: ChainProfile, budget: int, *, hint: Schedule | None = None) -> Claim:
        raise SolverLimitError(f"out of time: {profile} {budget} {hint}", best_bound=3)

    with pytest.raises(SolverLimitError, match="out of time") as error:
        solve_measured(measured_as(some_account(3, 6)), 200, slow)
    assert error.value.best_bound == 3


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: solve_measured(m, 0), InvalidBudgetError, "budget is 0; it must be at least"),
        (lambda m: solve_measured(m, "much"), InvalidBudgetError, "'much'; write bytes"),
        (lambda m: solve_measured(m.profile, 9), InvalidProfileError, "measured is a ChainProfile"),
        (lambda m: solve_measured(m, 9, "magic"), UnknownMethodError, "method is 'magic'; choose"),
    ],
)
def test_wrong_calls(
    call: Callable[[Measurement], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call(measured_as(some_account(0, 3)))


def test_a_percentage_is_of_what_plain_training_needs() -> None:
    account = some_account(4, 9)
    plain = own_peak(account, Schedule.keep_all(9))
    share = Fraction(99, 100)
    assert solve_measured(measured_as(account), "99%").budget == int(share * plain)
