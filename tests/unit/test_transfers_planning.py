"""A program list as what the host does before each computation: never over the budget."""

from __future__ import annotations

import random

import pytest

from chainstay.errors import InvalidScheduleError
from chainstay.profiles import ChainProfile, Link, OffloadProfile, Skip, Stage
from chainstay.runtime.transfers.planning import (
    Act,
    Action,
    TransferPlan,
    movable_profile,
    plan_transfers,
)
from chainstay.schedule import OpKind, Schedule
from chainstay.solve.offload import solve_offload
from chainstay.validation.simulate import simulate

TWO_TO_MOVE = OffloadProfile(
    activations=(0, 5, 7, 2, 1),
    gradients=(0, 1, 1, 1, 1),
    forward_overheads=(0, 0, 3, 0),
    backward_overheads=(0, 0, 0, 0),
    forward_times=(4, 4, 4, 0),
    backward_times=(4, 4, 4, 0),
)


def text(plan: TransferPlan) -> str:
    """``forward | .. | end of forward || backward of the last stage | ..``."""

    def of(actions: tuple[Action, ...]) -> str:
        return " ".join(f"{each.act.value} {each.stage}" for each in actions)

    forward = " | ".join(map(of, plan.before_forward))
    return forward + " || " + " | ".join(map(of, reversed(plan.before_backward)))


def test_waits_stand_just_where_memory_is_needed() -> None:
    """Worked by hand: x1 has 5 bytes, F2 needs 2 + 3 beside x1 and x2: 17, or 12 without x1."""
    schedule = Schedule.parse("Fa0 Oa1 Fa1 Fa2 Fa3 B3 B2 Pa1 B1 B0")
    roomy = plan_transfers(schedule, TWO_TO_MOVE, 17)
    assert text(roomy) == " |  |  |  ||  |  | "
    assert roomy.host_bytes == 0
    tight = plan_transfers(schedule, TWO_TO_MOVE, 16)
    # Back in as soon as x3 (2) and y3 (1) are gone: x2 + y2 = 8, y1 = 1, x1 = 5.
    assert text(tight) == " | send 0 | release 0 |  || fetch 0 |  | "
    assert tight.host_bytes == 5
    assert tight.moved == {0}


def test_what_comes_back_waits_for_room() -> None:
    """B2 needs x2 + x3 + y3 + y2 = 7 + 2 + 1 + 1 = 11; x1 is not back before it under 15."""
    schedule = Schedule.parse("Fa0 Oa1 Fa1 Fa2 Fa3 B3 B2 Pa1 B1 B0")
    assert text(plan_transfers(schedule, TWO_TO_MOVE, 15)).endswith("||  | fetch 0 | ")


def test_what_is_the_callers_stays() -> None:
    schedule = Schedule.parse("Oa0 Fa0 Fa1 Fa2 Oa3 Fa3 Pa3 B3 B2 B1 Pa0 B0")
    assert plan_transfers(schedule, TWO_TO_MOVE, 17).moved == frozenset()


def test_what_several_states_share_stays() -> None:
    """x2 has 7 bytes, 3 of them are in x3 too; the input's 9 are needed throughout."""
    chain = ChainProfile(
        input_bytes=9,
        input_gradient_bytes=0,
        stages=(
            Stage(name="0", output_bytes=4, saved_bytes=4, forward_overhead_bytes=1),
            Stage(name="1", output_bytes=7, saved_bytes=7, backward_overhead_bytes=2),
            Stage(name="2", output_bytes=5, saved_bytes=2),
            Stage(name="loss"),
        ),
        skips=(Skip(first=2, last=3, bytes=3),),
    )
    profile = movable_profile(chain)
    assert profile.activations == (0, 4, 4, 2, 0)
    assert profile.forward_overheads == (10, 12, 12, 12)
    assert profile.backward_overheads == (9, 14, 12, 12)
    plain = simulate(chain, Schedule.keep_all(4)).peak_bytes
    assert profile.peak_bytes == plain


@pytest.mark.parametrize(
    ("text", "budget", "reason"),
    [
        ("Fa0 Fa2 Fa1", 99, "Fa2 is out of order; the next computation is Fa1"),
        ("Fa0 Fa1 Fa2 Fa3 B3 B2 B1", 99, "ends before B0"),
        ("Fa0 Fa1 Fa2 Fa3 B3 B2 B1 B0 B0", 99, "the next computation is nothing"),
        ("Fa0 Ob1 Fa1", 99, "Ob1 is out of order"),
        ("Fa0 Oa4 Fa1", 99, "Oa4 names a4; a0 to a3 can be moved"),
        ("Oa1 Fa0 Fa1 Fa2 Fa3 B3 B2 Pa1 B1 B0", 99, "Oa1 must come between Fa0 and B1"),
        ("Fa0 Fa1 Fa2 Fa3 B3 B2 B1 Oa1 B0", 99, "B0 needs a1, which is on the host"),
        ("Fa0 Fa1 Fa2 Fa3 B3 B2 B1 B0 Oa1", 99, "Oa1 comes after the last computation"),
        ("Fa0 Oa1 Fa1 Oa1 Fa2 Fa3 B3 B2 Pa1 B1 B0", 99, "Oa1 comes a second time"),
        ("Fa0 Fa1 Fa2 Fa3 B3 B2 Pa1 B1 B0", 99, "Pa1 brings back a1, which was not offloaded"),
        ("Fa0 Oa1 Fa1 Fa2 Fa3 B3 Pa1 B2 Pa1 B1 B0", 99, "Pa1 comes a second time"),
        ("Fa0 Oa1 Fa1 Fa2 Fa3 B3 B2 B1 B0", 99, "B1 needs a1, which is on the host; issue Pa1"),
        ("Fa0 Fa1 Fa2 Fa3 B3 B2 B1 B0", 16, "Fa2 needs 5 bytes beside 12 .* 1 bytes more than"),
        ("Fa0 Oa1 Fa1 Fa2 Fa3 B3 B2 Pa1 B1 B0", 11, "Fa1 needs 7 bytes beside 5 bytes"),
    ],
)
def test_refusals(text: str, budget: int, reason: str) -> None:
    with pytest.raises(InvalidScheduleError, match=reason):
        plan_transfers(Schedule.parse(text), TWO_TO_MOVE, budget)


def random_profile(generator: random.Random) -> OffloadProfile:
    stages = generator.randint(2, 9)

    def draw(count: int, most: int) -> tuple[int, ...]:
        return tuple(generator.randint(0, most) for _ in range(count))

    x = (0, *draw(stages, 9))
    return OffloadProfile(
        activations=x,
        gradients=draw(stages + 1, 3),
        forward_overheads=draw(stages, 4),
        backward_overheads=draw(stages, 4),
        forward_times=draw(stages, 5),
        backward_times=draw(stages, 5),
    )


def replayed(plan: TransferPlan, profile: OffloadProfile) -> int:
    """The peak when transfers end at the last moment that the plan allows, counted one by one."""
    x, y, last = profile.activations, profile.gradients, len(profile) - 1
    held, sent, ended = {0}, set[int](), set[int]()
    peak = gradient = 0

    def memory(extra: int) -> int:
        return sum(x[i] for i in held) + gradient + extra

    def act(actions: tuple[Action, ...]) -> None:
        nonlocal peak
        for each in actions:
            activation = each.stage + 1
            match each.act:
                case Act.SEND:
                    assert activation in held
                    sent.add(activation)
                case Act.RELEASE:
                    assert activation in sent
                    held.remove(activation)
                    ended.add(activation)
                case Act.FETCH:
                    assert activation in ended
                    held.add(activation)
            peak = max(peak, memory(0))

    for i in range(last):
        act(plan.before_forward[i])
        assert i in held, "a forward reads its input"
        held.add(i + 1)
        peak = max(peak, memory(profile.forward_overheads[i]))
    act(plan.before_forward[last])
    assert last in held
    held.add(last + 1)
    peak = max(peak, memory(profile.forward_overheads[last]))
    gradient = y[last + 1]
    for i in reversed(range(last + 1)):
        if i < last:
            act(plan.before_backward[i])
        assert {i, i + 1} <= held, "a backward reads its stage's input and saved data"
        gradient += y[i]
        peak = max(peak, memory(profile.backward_overheads[i]))
        gradient -= y[i + 1]
        held.remove(i + 1)
    return peak


@pytest.mark.parametrize("duplex", ["half", "full"])
@pytest.mark.parametrize("seed", range(60))
def test_solvers_plans_run_within_the_budget(seed: int, duplex: str) -> None:
    generator = random.Random(seed)
    profile = random_profile(generator)
    link = Link(bandwidth=generator.randint(1, 3), latency=generator.randint(0, 2), duplex=duplex)
    for share in (0, 1, 2, 3):
        spare = profile.peak_bytes - profile.required_bytes
        budget = profile.required_bytes + spare * share // 4
        solution = solve_offload(profile, budget, link=link, method="heuristics")
        plan = plan_transfers(solution.schedule, profile, budget)
        assert replayed(plan, profile) == plan.peak_bytes <= budget
        sent = sum(op.kind is OpKind.OFFLOAD_ACTIVATION for op in solution.schedule)
        assert len(plan.moved) <= sent
