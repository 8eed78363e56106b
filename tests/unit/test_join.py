"""Joins: profiles, the referee by hand digits, settings, and every wrong call."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chainstay import (
    CPSAT,
    DP,
    MIP,
    AssignCuts,
    CertificateError,
    ChainProfile,
    Claim,
    HomogeneousJoin,
    InfeasibleBudgetError,
    InvalidBudgetError,
    InvalidProfileError,
    InvalidScheduleError,
    JoinProfile,
    RunCost,
    Schedule,
    Skip,
    SolverLimitError,
    Stage,
    StageOption,
    UnknownMethodError,
    join_curve,
    simulate_join,
    solve_join,
)
from chainstay.baselines.join import equivalent_chain, keep_all_join
from chainstay.dp.join.canonical import OverheadProgram
from chainstay.dp.join.half_sums import half_sums
from chainstay.dp.join.kernels import relax_by_loop, relax_by_slices
from chainstay.dp.join.sizes import in_units
from chainstay.formulations.join.claims import build
from chainstay.formulations.program_by_highs import pyomo_model
from chainstay.profiles import Join, SharedGradient, kept_gradients
from chainstay.schedule import Discards
from chainstay.solution import Family, Scope
from chainstay.verify import JoinSuite, MethodUnderTest

# Sizes of many digits, so that every term of a sum shows in it.
TEXT = ChainProfile(
    input_bytes=1,
    input_gradient_bytes=2,
    stages=(
        Stage(
            forward_time=3,
            backward_time=5,
            output_bytes=10,
            saved_bytes=40,
            gradient_bytes=20,
            forward_overhead_bytes=100,
            backward_overhead_bytes=200,
        ),
    ),
)
IMAGE = ChainProfile(
    input_bytes=1_000,
    input_gradient_bytes=2_000,
    stages=(
        Stage(
            forward_time=7,
            backward_time=11,
            output_bytes=10_000,
            saved_bytes=40_000,
            gradient_bytes=20_000,
        ),
    ),
)
LOSS = ChainProfile(
    input_bytes=10_010,
    input_gradient_bytes=20_020,
    stages=(
        Stage(
            forward_time=13,
            backward_time=17,
            output_bytes=100_000,
            saved_bytes=400_000,
            gradient_bytes=1_000_000,
            backward_overhead_bytes=10_000_000,
        ),
    ),
)
PAIR = JoinProfile(branches=(TEXT, IMAGE), tail=LOSS)
TURNING = JoinProfile(branches=(TEXT, IMAGE))
TOY = JoinProfile.homogeneous((2, 1), forward_time=3, backward_time=5, turn_time=7)
TAILED = JoinProfile.homogeneous((1, 1), forward_time=3, backward_time=5, turn_time=7, tail_steps=1)


def test_bytes_of_every_operation_by_hand() -> None:
    replay = simulate_join(PAIR, Schedule.parse("0:Fa0 1:Fc0 Fa0 B0 1:Fa0 1:B0 0:B0"))
    during = [snapshot.during_bytes for snapshot in replay.timeline]
    start = 1_001 + 1_000_000  # both inputs and the gradient of the loss
    assert during == [
        start + 40 + 100,
        start + 40 + 10_000,
        start + 40 + 10_000 + 400_000,
        start + 40 + 10_000 + 400_000 + 20_020 + 10_000_000,
        1_001 + 40 + 20_020 + 40_000,  # the join took the image's output
        1_001 + 40 + 20_020 + 40_000 + 2_000,
        1 + 40 + 20 + 2 + 200,  # the gradient of the image itself is gone
    ]
    assert replay.makespan == 3 + 7 + 13 + 17 + 7 + 11 + 5
    assert replay.peak_bytes == during[3]


def test_overheads_of_every_operation_stand_for_those_of_the_stages() -> None:
    schedule = Schedule.parse("0:Fa0 1:Fc0 Fa0 B0 1:Fa0 1:B0 0:B0")
    bare = simulate_join(PAIR, schedule, overheads=(0,) * 7)
    by_hand = tuple(range(70, 0, -10))
    given = simulate_join(PAIR, schedule, overheads=by_hand)
    for without, with_them, size in zip(bare.timeline, given.timeline, by_hand, strict=True):
        assert with_them.during_bytes == without.during_bytes + size
        assert with_them.after_bytes == without.after_bytes
    start = 1_001 + 1_000_000
    assert bare.timeline[0].during_bytes == start + 40
    assert given.peak_bytes == max(snapshot.during_bytes for snapshot in given.timeline)
    with pytest.raises(ValueError, match="there are 1 overheads for 7 operations; give one to"):
        simulate_join(PAIR, schedule, overheads=(1,))
    with pytest.raises(ValueError, match="a homogeneous join has slots; leave them out"):
        simulate_join(TOY, Schedule.parse("0:Fc0"), overheads=(1,))


def test_kept_gradients_stay() -> None:
    schedule = Schedule.parse("0:Fa0 1:Fa0 T 1:B0 0:B0")
    plain = simulate_join(TURNING, schedule).timeline
    kept = simulate_join(TURNING, schedule, keep=(False, True)).timeline
    assert plain[-1].during_bytes + 2_000 == kept[-1].during_bytes
    assert plain[2].during_bytes == 1_001 + 40_040 + 20_020


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("0:Fa0 Fa0", "needs a1 of branch 1"),
        ("0:Fa0 1:Fa0 Fn0", "needs its input itself"),
        ("0:Fa0 1:Fa0 Fa0 0:B0", "but none is held"),
        ("0:Fc0 1:Fc0 Fa0 0:Da1", "removes the input of stage 0 of the tail"),
        ("0:Da0", "nothing can recompute"),
        ("2:Fa0", "the last one is 1"),
        ("0:Fa1", "the last one is 0"),
        ("T", "this join has a tail"),
        ("0:Oa0", "there is none"),
        ("0:Fa0 1:Fa0 Fa0 B0 1:B0", "ends before 0:B0"),
        ("0:Fa0", "ends before B0"),
    ],
)
def test_the_referee_refuses(schedule: str, reason: str) -> None:
    with pytest.raises(InvalidScheduleError, match=reason):
        simulate_join(PAIR, Schedule.parse(schedule))


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        ("0:Fa0", "no operation of a homogeneous join"),
        ("0:Fc0 T", "needs value 2 of branch 0"),
        ("0:Fc0 0:Fc1 1:Fc0 T T", "runs once"),
        ("0:Fc0 0:Fc1 1:Fc0 T 0:B0", "needs the gradient of value 1"),
        ("0:Fn0 0:Fn1 1:Fc0 T 0:B1", "needs value 1 of branch 0"),
        ("0:Fc0 0:Fc1 1:Fc0 T 1:B0", "ends before 0:B1"),
        ("0:Fc2", "names step 2 of 2"),
        ("3:Fc0", "the last one is 1"),
        ("0:Fc0", "ends before the turn"),
    ],
)
def test_the_referee_of_slots_refuses(schedule: str, reason: str) -> None:
    with pytest.raises(InvalidScheduleError, match=reason):
        simulate_join(TOY, Schedule.parse(schedule))


def test_slots_by_hand() -> None:
    replay = simulate_join(TOY, Schedule.parse("0:Fc0 0:Fn1 1:Fc0 T 1:B0 0:Fc0 0:B1 0:B0"))
    assert [snapshot.after_bytes for snapshot in replay.timeline] == [3, 3, 4, 4, 2, 3, 2, 0]
    assert (replay.makespan, replay.peak_bytes) == (4 * 3 + 3 * 5 + 7, 4)


def test_a_kept_gradient_takes_a_slot() -> None:
    join = JoinProfile.homogeneous((1, 0), forward_time=1, backward_time=1, turn_time=1)
    schedule, flags = Schedule.parse("0:Fc0 T 0:B0"), ((False, False), (False, True), (True, True))
    after = [simulate_join(join, schedule, keep=keep).timeline[-1].after_bytes for keep in flags]
    assert after == [0, 1, 2]


def test_a_discard_makes_room_for_the_operation_before_it() -> None:
    dropping = simulate_join(TOY, Schedule.parse("0:Fc0 0:Fc1 0:Da1 1:Fc0 T 1:B0 0:Fc0 0:B1 0:B0"))
    assert dropping.peak_bytes == 4


def test_the_join_step_of_a_tail() -> None:
    text = "0:Fc0 1:Fc0 Fc0 0:Da1 1:Da1 Fn1 T Fc0"
    with pytest.raises(InvalidScheduleError, match="Fc0 needs value 1 of branch 0"):
        simulate_join(TAILED, Schedule.parse(text))
    solution = solve_join(TAILED, TAILED.enough_slots)
    assert solution.makespan == TAILED.least_time == 4 * (3 + 5) + 7


@pytest.mark.parametrize("join", [PAIR, TURNING, TOY, TAILED])
def test_a_profile_survives_json(join: Join) -> None:
    assert type(join).from_json(join.to_json()) == join


def test_malformed_documents_are_refused() -> None:
    document = json.loads(PAIR.to_json())
    document["tail"] *= 2
    with pytest.raises(InvalidProfileError, match="'tail' has 2 chains"):
        JoinProfile.from_json(json.dumps(document))
    with pytest.raises(InvalidProfileError, match="must be a 'join-profile'"):
        JoinProfile.from_json(TOY.to_json())
    document = json.loads(TOY.to_json()) | {"tail_steps": [1, 2]}
    with pytest.raises(InvalidProfileError, match="'tail_steps' has 2 numbers"):
        HomogeneousJoin.from_json(json.dumps(document))


@pytest.mark.parametrize(
    ("lengths", "reason"),
    [((4, -3), r"lengths\[1\] is -3"), ((), "at least one branch"), ((1.5,), r"is 1\.5")],
)
def test_bad_lengths(lengths: tuple[int, ...], reason: str) -> None:
    with pytest.raises(InvalidProfileError, match=reason):
        JoinProfile.homogeneous(lengths, forward_time=1, backward_time=1, turn_time=1)


def test_bad_profiles() -> None:
    with pytest.raises(InvalidProfileError, match="at least one branch, got none"):
        JoinProfile(branches=())
    with pytest.raises(InvalidProfileError, match="at least one stage"):
        JoinProfile(branches=(replace(TEXT, stages=()),))
    with pytest.raises(InvalidProfileError, match=r"branches\[0\] is 3"):
        JoinProfile(branches=(3,))  # type: ignore[arg-type]
    with pytest.raises(InvalidProfileError, match="tail is 'loss'"):
        JoinProfile(branches=(TEXT,), tail="loss")  # type: ignore[arg-type]
    with pytest.raises(InvalidProfileError, match=r"input_bytes is 10010, and .* up to 10;"):
        JoinProfile(branches=(TEXT,), tail=LOSS)
    with pytest.raises(InvalidProfileError, match="input_gradient_bytes is 7, and"):
        JoinProfile(branches=(TEXT, IMAGE), tail=replace(LOSS, input_gradient_bytes=7))
    skipping = replace(TEXT, stages=TEXT.stages * 2, skips=(Skip(first=0, last=1, bytes=1),))
    with pytest.raises(InvalidProfileError, match=r"branches\[0\] has 1 skips"):
        JoinProfile(branches=(skipping,))


@pytest.mark.parametrize("keep", [(True,), (True, 2), "ab", 1, ([], [])])
def test_bad_keep(keep: object) -> None:
    with pytest.raises(InvalidProfileError, match="must be 2 of True or False"):
        solve_join(PAIR, 10**8, keep=keep)  # type: ignore[arg-type]


def test_keep_takes_numpys_booleans() -> None:
    assert kept_gradients(PAIR, [False, np.True_]) == (False, True)  # type: ignore[list-item]


def test_wrong_calls() -> None:
    with pytest.raises(InvalidProfileError, match="chains on their own are for solve_chain"):
        solve_join(TEXT, 100)  # type: ignore[arg-type]
    with pytest.raises(InvalidBudgetError, match="budget is -1"):
        solve_join(PAIR, -1)
    with pytest.raises(UnknownMethodError, match="'simplex'; choose 'auto'"):
        solve_join(PAIR, 100, "simplex")
    with pytest.raises(UnknownMethodError, match="persistence is 'weak'"):
        solve_join(PAIR, 100, DP(persistence="weak"))
    with pytest.raises(UnknownMethodError, match="a tape's discards only"):
        solve_join(PAIR, 100, MIP(discards="free"))
    with pytest.raises(UnknownMethodError, match="solver is 'highs'"):
        AssignCuts(solver="highs")  # type: ignore[arg-type]
    with pytest.raises(InvalidProfileError, match="takes homogeneous joins"):
        solve_join(PAIR, 100, AssignCuts())
    with pytest.raises(InvalidProfileError, match="2 tail steps; cuts"):
        solve_join(TAILED, 9, AssignCuts())
    with pytest.raises(InvalidProfileError, match="2 tail steps; EQUIV-CHAIN"):
        equivalent_chain(TAILED, 9)


@pytest.mark.long
def test_many_short_branches_are_solved() -> None:
    stage = Stage(
        forward_time=2, backward_time=3, output_bytes=10, saved_bytes=30, gradient_bytes=10
    )
    tower = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(stage,) * 2)
    join = JoinProfile(branches=(tower,) * 5)
    solution = solve_join(join, "70%")
    assert solution.is_optimal
    assert solution.makespan == solve_join(join, "70%", "mip").makespan > join.least_time
    with pytest.raises(InvalidProfileError, match=r"branches of 2, .* need a table of"):
        solve_join(JoinProfile(branches=(tower,) * 20), "70%")


def test_a_small_join_of_many_bytes_has_more_slots_than_usual() -> None:
    def branch(*stages: tuple[int, int]) -> ChainProfile:
        made = tuple(
            Stage(
                forward_time=time,
                backward_time=1,
                output_bytes=size,
                saved_bytes=2 * size,
                gradient_bytes=size,
            )
            for time, size in stages
        )
        return ChainProfile(input_bytes=1_000_001, input_gradient_bytes=0, stages=made)

    join = JoinProfile(
        branches=(
            branch((7, 28_670_001), (7, 25_836_001)),
            branch((5, 2_326_001), (8, 17_753_001)),
        )
    )
    coarse = solve_join(join, "70%", DP(slots=500))
    assert (coarse.makespan, coarse.is_optimal) == (52, False)
    fine = solve_join(join, "70%")
    assert (fine.makespan, fine.is_optimal) == (50, True)


def test_tables_beyond_memory_are_refused() -> None:
    tower = replace(TEXT, stages=TEXT.stages * 200)
    with pytest.raises(InvalidProfileError, match="200, 200, 200 stages and 500 slots need a tab"):
        solve_join(JoinProfile(branches=(tower,) * 3), "50%", DP(slots=500))
    join = JoinProfile.homogeneous((500,) * 3, forward_time=1, backward_time=1, turn_time=1)
    with pytest.raises(InvalidProfileError, match="waterfilling_bound"):
        solve_join(join, 500)


@pytest.mark.parametrize("method", ["dp", "mip", "cpsat"])
def test_too_little_memory_names_the_least(method: str) -> None:
    with pytest.raises(InfeasibleBudgetError, match="5-stage join") as caught:
        solve_join(_five(), 10, method)
    assert solve_join(_five(), caught.value.required, method).peak_bytes == caught.value.required


def _five() -> JoinProfile:
    stage = replace(TEXT.stages[0], forward_overhead_bytes=7)
    return JoinProfile(branches=(replace(TEXT, stages=(stage,) * 3), TEXT, TEXT))


@pytest.mark.parametrize("method", [MIP(time_limit_s=1e-3), CPSAT(time_limit_s=1e-3)])
def test_no_time_is_not_infeasible(method: MIP | CPSAT) -> None:
    join = JoinProfile.homogeneous((7, 7), forward_time=1, backward_time=1, turn_time=1)
    with pytest.raises(SolverLimitError, match="Raise time_limit_s"):
        solve_join(join, 5, method)


def test_plain_training_that_just_fits_is_found_whatever_sizes_are_rounded_to() -> None:
    slots = DP(slots=50)
    whole = solve_join(PAIR, "100%", slots)
    assert (whole.makespan, whole.family) == (PAIR.least_time, Family.ALL)
    quick = RunCost(time=2, backward_time=5)  # a ns less, for a byte too much
    first = replace(PAIR.branches[0].stages[0], options=(StageOption(saved_bytes=41, first=quick),))
    branches = (replace(PAIR.branches[0], stages=(first,)), PAIR.branches[1])
    tied = solve_join(replace(PAIR, branches=branches), "100%", slots)
    assert (tied.makespan, tied.lower_bound) == (PAIR.least_time, PAIR.least_time - 1)


def test_shares_of_plain_training() -> None:
    assert simulate_join(PAIR, keep_all_join(PAIR)).peak_bytes == solve_join(PAIR, "100%").budget
    assert solve_join(PAIR, "100%").makespan == PAIR.least_time
    assert solve_join(TOY, "100%").budget == TOY.enough_slots


def test_a_lying_method_is_refused() -> None:
    def lie(profile: object, budget: int, *, keep: tuple[bool, ...]) -> Claim:
        del profile, budget, keep
        return Claim(
            schedule=Schedule.parse("0:Fc0 0:Fc1 1:Fc0 T 1:B0 0:B1 0:B0"),
            makespan=30,
            lower_bound=30,
            family=Family.ALL,
            discards=Discards.TAPE,
        )

    with pytest.raises(CertificateError, match="takes 31 ns, the solver claimed 30") as caught:
        solve_join(TOY, 5, lie)
    assert json.loads(caught.value.report)["problem"] == "join"


def test_a_method_must_claim() -> None:
    with pytest.raises(UnknownMethodError, match="must return a Claim"):
        solve_join(TOY, 5, lambda *_, **__: None)  # type: ignore[arg-type]


def test_both_ways_to_relax_are_one() -> None:
    draw = np.random.default_rng(0)
    behind, aside, row = draw.integers(0, 99, (3, 50)).astype(np.int32)
    for low, high in ((0, 50), (7, 31), (9, 9), (12, 3)):
        loop, slices = row.copy(), row.copy()
        relax_by_loop(loop, behind, aside, -3, (low, high))
        relax_by_slices(slices, behind, aside, -3, (low, high))
        assert (loop == slices).all()
        assert loop.dtype == np.int32


def test_long_times_widen_the_table() -> None:
    short, factor = _five(), 10**9
    long = JoinProfile(branches=tuple(_slower(branch, factor) for branch in short.branches))
    for budget in (400, 450, 600):
        exact = solve_join(short, budget)
        assert solve_join(long, budget).makespan == exact.makespan * factor


def _slower(chain: ChainProfile, factor: int) -> ChainProfile:
    stages = (
        replace(
            stage,
            forward_time=stage.forward_time * factor,
            backward_time=stage.backward_time * factor,
        )
        for stage in chain.stages
    )
    return replace(chain, stages=tuple(stages))


def test_shared_gradients_are_in_documents_and_wrong_ones_are_refused() -> None:
    tied = replace(PAIR, shared=(SharedGradient(bytes=8, users=(0, 1)),))
    assert JoinProfile.from_json(tied.to_json()) == tied
    older = json.loads(PAIR.to_json()) | {"version": 1}
    del older["shared"]
    assert JoinProfile.from_json(json.dumps(older)) == PAIR
    for users in ((0,), (1, 0), (0, 0)):
        with pytest.raises(InvalidProfileError, match="must be two or more stages, ascending"):
            SharedGradient(bytes=8, users=users)
    with pytest.raises(InvalidProfileError, match="gradient are 3, must be a tuple of stages"):
        SharedGradient(bytes=8, users=3)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidProfileError, match=r"shared\[0\] has user 9, and there are 3 stages"
    ):
        replace(PAIR, shared=(SharedGradient(bytes=8, users=(0, 9)),))


def test_rounding_keeps_joins_joined() -> None:
    up, down = (in_units(PAIR, 7, up=is_up) for is_up in (True, False))
    assert up.tail is not None
    assert up.tail.input_bytes == 2 + 1429
    assert down.branches[0].stages[0].saved_bytes == 5
    sums = half_sums(replace(PAIR, shared=(SharedGradient(bytes=8, users=(0, 1)),)))
    assert max(map(np.max, sums.backward)) == 8
    sums = sums.scaled(lambda size: -(-size // 7))
    assert max(map(np.max, sums.backward)) == 2
    assert OverheadProgram(up, (False, False), sums, 5).overhead(3) is None


def test_scopes_of_joins() -> None:
    canonical = Scope(Family.CANONICAL_PERSISTENT, Discards.TAPE)
    sweep, everything = (Scope(f, Discards.TAPE) for f in (Family.SINGLE_SWEEP, Family.ALL))
    assert everything.includes(canonical)
    assert not sweep.includes(canonical)  # it goes through branches in one order
    assert not canonical.includes(sweep)


def test_a_program_can_be_written_out(tmp_path: Path) -> None:
    model = pyomo_model(build(TOY, 4, (False, False)).program)
    assert len(model.closing_has_its_inputs) > 0
    model.write(str(tmp_path / "join.lp"))
    assert "c_u_x" in (tmp_path / "join.lp").read_text()


def test_verify_finds_and_minimises_a_wrong_method() -> None:
    def hasty(profile: object, budget: int, *, keep: tuple[bool, ...]) -> Claim:
        assert isinstance(profile, HomogeneousJoin)
        del budget
        curve = join_curve(profile, keep=keep)
        least = curve.makespans[0]
        return Claim(
            schedule=curve.schedule(curve.slots[0]),
            makespan=least,
            lower_bound=least,
            family=Family.SINGLE_TURN,
            discards=Discards.TAPE,
        )

    wrong = MethodUnderTest(method=hasty, most_stages=30, only=("slots",))
    right = MethodUnderTest(method=DP(), family=Family.CANONICAL_PERSISTENT, most_stages=30)
    checks = JoinSuite((wrong, right)).checks(range(60), seed=3)
    check = next(check for check in checks if "nothing is faster" in check.reason)
    small = JoinSuite().minimised(check, seconds=20)
    assert small.reason
    assert small.problem.stages <= 4
    document = json.loads(small.counter_example(seed=3))
    assert (document["problem"], document["seed"]) == ("join", 3)
