"""A program list as what the host does before each computation: never over the budget."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from chainstay.dp import DP
from chainstay.errors import InvalidScheduleError, SolverLimitError
from chainstay.profiles import ChainProfile, Link, OffloadProfile, Skip, Stage
from chainstay.runtime.execute.items import (
    Act,
    TransferPlan,
    as_chain_schedule,
    movable_chain,
    movable_profile,
)
from chainstay.runtime.transfer.transfer_plan import plan_transfers
from chainstay.schedule import Item, OpKind, Schedule
from chainstay.solve.hybrid import solve_hybrid
from chainstay.solve.offload import solve_offload
from chainstay.validation.hybrid.simulate import simulate_hybrid
from chainstay.validation.simulate import simulate
from combined_support import least_plan, with_random_transfers
from runtime_support import random_persistent

TWO_TO_MOVE = ChainProfile(
    input_bytes=0,
    input_gradient_bytes=0,
    stages=(
        Stage(output_bytes=3, saved_bytes=5, gradient_bytes=1),
        Stage(output_bytes=4, saved_bytes=7, gradient_bytes=1),
        Stage(output_bytes=2, saved_bytes=2, gradient_bytes=1, forward_overhead_bytes=3),
        Stage(output_bytes=1, saved_bytes=1),
    ),
)


def text(plan: TransferPlan) -> str:
    """What is done in front of each computation."""
    return " | ".join(" ".join(map(str, some)) for some in plan.actions)


def test_waits_stand_just_where_memory_is_needed() -> None:
    """Worked by hand: b0 has 5 bytes, Fa2 needs 2 + 3 beside b0 and b1: 17, or 12 without b0."""
    schedule = Schedule.parse("Fa0 Ob0 Fa1 Fa2 Fa3 B3 B2 Pb0 B1 B0")
    roomy = plan_transfers(schedule, TWO_TO_MOVE, 17)
    assert text(roomy) == " |  |  |  |  |  |  | "
    assert roomy.host_bytes == 0
    tight = plan_transfers(schedule, TWO_TO_MOVE, 16)
    # Back in as soon as b2 (2) and its gradient (1) are gone: b1 + y2 = 8, y1 = 1, b0 = 5.
    assert text(tight) == " | send b0 | release b0 |  |  | fetch b0 |  | "
    assert tight.host_bytes == 5
    assert tight.moved == {Item("b", 0)}


def test_what_comes_back_waits_for_room() -> None:
    """B2 needs b1 + b2 + y3 + y2 = 7 + 2 + 1 + 1 = 11; b0 is not back before it under 15."""
    schedule = Schedule.parse("Fa0 Ob0 Fa1 Fa2 Fa3 B3 B2 Pb0 B1 B0")
    assert text(plan_transfers(schedule, TWO_TO_MOVE, 15)).endswith(" |  | fetch b0 | ")


def test_what_is_the_callers_stays() -> None:
    schedule = Schedule.parse("Oa0 Fa0 Fa1 Fa2 Ob2 Fa3 Pb2 B3 B2 B1 Pa0 B0")
    assert plan_transfers(schedule, TWO_TO_MOVE, 17).moved == frozenset()


def crowded(schedule: Schedule, **spare: int) -> list[int]:
    """Overheads that leave so many bytes of 20 to what is stored meanwhile."""
    return [20 - spare[str(op)] if str(op) in spare else 0 for op in schedule]


def test_a_checkpoint_moves_while_its_stage_is_done_with_it() -> None:
    """a1 (3) serves Fc1, and is away until the stages from there run again."""
    schedule = Schedule.parse("Fc0 Oa1 Fc1 Fa2 Fa3 B3 B2 Pa1 Fa1 B1 Fa0 B0")
    # Fa2 makes 2 beside a1 (3) and a2 (4).
    roomy = plan_transfers(schedule, TWO_TO_MOVE, 20, overheads=crowded(schedule, Fa2=9))
    assert roomy.moved == frozenset()
    assert roomy.peak_bytes == 20
    tight = plan_transfers(schedule, TWO_TO_MOVE, 20, overheads=crowded(schedule, Fa2=8))
    assert text(tight) == " | send a1 | release a1 |  |  | fetch a1 |  |  |  | "
    assert tight.host_bytes == 3


def test_a_copy_may_come_twice() -> None:
    """The host keeps it in between, and Db lets the device's go."""
    schedule = Schedule.parse("Fa0 Ob0 Fc1 Fa2 Fa3 B3 B2 Pb0 Fc1 Db0 Fn2 Da3 Pb0 Fa1 B1 B0")
    # Fa2 makes 2 beside b0 (5) and a2 (4), Fn2 as much beside a gradient (1).
    overheads = crowded(schedule, Fa2=6, Fn2=7)
    plan = plan_transfers(schedule, TWO_TO_MOVE, 20, overheads=overheads)
    assert text(plan) == (
        " | send b0 | release b0 |  |  | copy b0 |  | release b0 | fetch b0 |  | "
    )
    assert plan.host_bytes == 5
    gone = Schedule.parse("Fa0 Ob0 Fc1 Fa2 Fa3 B3 B2 Pb0 Fa1 Db0 B1 Fa0 B0")
    with pytest.raises(InvalidScheduleError, match="B1 needs b0, which is on the host"):
        plan_transfers(gone, TWO_TO_MOVE, 20)


def test_what_never_returns_is_not_sent() -> None:
    """It is let go when it has served."""
    schedule = Schedule.parse("Fc0 Oa1 Fc1 Fa2 Fa3 B3 B2 Fc0 Fa1 B1 Fa0 B0")
    plan = plan_transfers(schedule, TWO_TO_MOVE, 20, overheads=crowded(schedule, Fa2=6))
    assert plan.moved == frozenset()


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
    movable, profile = movable_chain(chain), movable_profile(chain)
    assert [stage.output_bytes for stage in movable.stages] == [4, 4, 2, 0]
    assert profile.activations == (0, 4, 4, 2, 0)
    assert profile.forward_overheads == (10, 12, 12, 12)
    assert profile.backward_overheads == (9, 14, 12, 12)
    plain = simulate(chain, Schedule.keep_all(4)).peak_bytes
    assert profile.peak_bytes == plain


@pytest.mark.parametrize(
    ("text", "budget", "reason"),
    [
        ("Fa0 Fa2 Fa1", 99, "Fa2 needs b1, which is not stored"),
        ("Fa0 Fa1 Fa2 Fa3 B2", 99, "B2 runs between the loss and its backward"),
        ("Fa0 Fa1 Fa2 Fn3 B3", 99, "Fn3 is out of order; the loss runs once"),
        ("Fa0 Fa1 Fa2 Fa3 B3 B1", 99, "B1 needs the gradient of a2 first"),
        ("Fa0 1:Fa1", 99, "1:Fa1 is an operation of joins"),
        ("Fa0 Oa4 Fa1", 99, "Oa4 names stage 4, the last one is 3"),
        ("Ob0 Fa0 Fa1 Fa2 Fa3 B3 B2 Pb0 B1 B0", 99, "Ob0 moves b0, which is not stored"),
        ("Fa0 Fa1 Fa2 Fa3 B3 B2 B1 B0 Ob0", 99, "Ob0 comes after the last computation"),
        ("Fa0 Ob0 Fa1 Ob0 Fa2 Fa3 B3 B2 Pb0 B1 B0", 99, "Ob0 comes a second time"),
        ("Fa0 Fa1 Fa2 Fa3 B3 B2 Pb0 B1 B0", 99, "Pb0 brings back b0, which was not offloaded"),
        ("Fa0 Ob0 Fa1 Fa2 Fa3 B3 Pb0 B2 Pb0 B1 B0", 99, "Pb0 brings back b0, which is stored"),
        ("Fa0 Fa1 Db0 Fa2 Fa3 B3 B2 B1 B0", 99, "B1 needs b0, which is not stored"),
        ("Fa0 Da1 Fa1", 99, "Da1 drops a1, which is not stored"),
        ("Fa0 Fa0 Fa1", 99, "Fa0 makes what is stored"),
        ("Fa0 Ob0 Fa1 Db0 Fc0 Pb0 Fa2", 99, "Fc0 makes again what comes back .* as b0"),
        ("Fa0 Fn1 Fa2", 99, "Fn1 needs a1 itself, which is not stored"),
        ("Fa0 Fa1 Fa2 Fa3 B3 B2 B1 B0", 16, "Fa2 needs 5 bytes beside 12 .* 1 bytes more than"),
        ("Fa0 Ob0 Fa1 Fa2 Fa3 B3 B2 Pb0 B1 B0", 11, "Fa1 needs 7 bytes beside 5 bytes"),
    ],
)
def test_refusals(text: str, budget: int, reason: str) -> None:
    with pytest.raises(InvalidScheduleError, match=reason):
        plan_transfers(Schedule.parse(text), TWO_TO_MOVE, budget)


def random_chain(generator: random.Random) -> ChainProfile:
    def draw(most: int) -> int:
        return generator.randint(0, most)

    stages = []
    for _ in range(generator.randint(2, 9)):
        output = draw(9)
        stages.append(
            Stage(
                output_bytes=output,
                saved_bytes=output + draw(9),
                gradient_bytes=draw(3),
                forward_overhead_bytes=draw(4),
                backward_overhead_bytes=draw(4),
                forward_time=draw(5),
                backward_time=draw(5),
            )
        )
    return ChainProfile(input_bytes=0, input_gradient_bytes=draw(3), stages=tuple(stages))


def replayed(schedule: Schedule, plan: TransferPlan, profile: ChainProfile) -> int:
    """The peak when transfers end at the last moment that the plan allows, counted one by one."""
    held, sent, gone = {("a", 0)}, set[Item](), set[Item]()
    gradient, peak = len(profile), 0

    def memory(extra: int = 0) -> int:
        sizes = (
            profile.activation_bytes(i) if kind == "a" else profile.stages[i].saved_bytes
            for kind, i in held
        )
        return sum(sizes) + profile.gradient_bytes(gradient) + extra

    computations = [op for op in schedule if op.kind.is_computation]
    for op, actions in zip(computations, plan.actions, strict=True):
        for action in actions:
            match action.act:
                case Act.SEND:
                    assert action.item in held
                    sent.add(action.item)
                case Act.RELEASE:
                    assert action.item in sent
                    held.remove(action.item)
                    gone.add(action.item)
                case Act.FETCH | Act.COPY:
                    assert action.item in gone
                    held.add(action.item)
            peak = max(peak, memory())
        stage = profile.stages[op.stage]
        assert held & {("a", op.stage), ("b", op.stage - 1)}, f"{op} reads its input"
        if op.kind is OpKind.BACKWARD:
            assert ("b", op.stage) in held
            need = profile.gradient_bytes(op.stage) + stage.backward_overhead_bytes
            peak = max(peak, memory(need))
            gradient = op.stage
            held -= {("a", op.stage), ("b", op.stage)}
        else:
            held.add(("b", op.stage) if op.kind is OpKind.FORWARD_KEEP_ALL else ("a", op.stage + 1))
            peak = max(peak, memory(stage.forward_overhead_bytes))
            held -= {("a", op.stage)} if op.kind is OpKind.FORWARD_DROP else set()
    return peak


@pytest.mark.parametrize("duplex", ["half", "full"])
@pytest.mark.parametrize("seed", range(40))
def test_solvers_plans_run_within_the_budget(seed: int, duplex: str) -> None:
    generator = random.Random(seed)
    chain = random_chain(generator)
    profile = OffloadProfile.from_chain(chain)
    link = Link(bandwidth=generator.randint(1, 3), latency=generator.randint(0, 2), duplex=duplex)
    for share in (0, 1, 2, 3):
        spare = profile.peak_bytes - profile.required_bytes
        budget = profile.required_bytes + spare * share // 4
        offloading = solve_offload(profile, budget, link=link, method="heuristics")
        schedules = [as_chain_schedule(offloading.schedule)]
        with suppress(SolverLimitError):
            schedules.append(solve_hybrid(chain, budget, link=link, method=DP(slots=20)).schedule)
        for schedule in schedules:
            plan = plan_transfers(schedule, chain, budget)
            assert replayed(schedule, plan, chain) == plan.peak_bytes <= budget
            assert len(plan.moved) <= sum(op.kind.is_offload for op in schedule)


@pytest.mark.parametrize("seed", range(60))
def test_what_the_simulator_runs_a_runtime_runs(seed: int) -> None:
    """Any mix of recomputing and transfers, in the least budget of the simulator at most."""
    chain = random_chain(random.Random(seed))
    base = random_persistent(len(chain), seed, keep=0.5)
    schedule = with_random_transfers(base, seed)
    link = Link(bandwidth=1)
    try:
        budget, plan = least_plan(schedule, chain)
    except InvalidScheduleError as refusal:
        assert "cannot tell apart" in str(refusal)  # noqa: PT017  # nothing else is refused
        return
    assert replayed(schedule, plan, chain) == plan.peak_bytes <= budget
    if budget > chain.gradient_bytes(len(chain)):
        with suppress(InvalidScheduleError):
            simulate_hybrid(chain, schedule, budget=budget - 1, link=link)
            pytest.fail(f"the simulator needs less than {budget}")
