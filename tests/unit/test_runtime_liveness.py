"""What a schedule means for a runtime, by hand, and what is refused."""

from __future__ import annotations

from itertools import pairwise

import pytest

from chainstay.errors import InvalidScheduleError
from chainstay.runtime.execute.liveness import Shape, Step, plan_execution
from chainstay.runtime.execute.recompute import Stretch, stretched
from chainstay.runtime.stage.chain_stage import Effects
from chainstay.schedule import Schedule
from runtime_support import random_persistent, stages_of


def first(stage: int, **flags: bool) -> Step:
    return _step(stage, is_first=True, **flags)


def again(stage: int, **flags: bool) -> Step:
    return _step(stage, is_first=False, **flags)


def _step(
    stage: int,
    *,
    is_first: bool,
    is_last: bool = False,
    captures: bool = False,
    releases_input: bool = False,
    input_wanted: bool = False,
    output_wanted: bool = False,
) -> Step:
    return Step(
        stage=stage,
        is_first=is_first,
        is_last=is_last,
        captures=captures,
        releases_input=releases_input,
        wanted=frozenset({stage} if input_wanted else ()),
        output_wanted=output_wanted,
    )


def test_kept_stages_run_once() -> None:
    plan = plan_execution(Schedule.keep_all(3), Shape(2))
    assert plan.forward == (
        first(0, is_last=True, captures=True, output_wanted=True),
        first(1, is_last=True, captures=True, output_wanted=True),
    )
    assert plan.before_backward == ((), ())
    assert plan.released == frozenset()


def test_checkpoint_is_read_twice_and_then_given_up() -> None:
    plan = plan_execution(Schedule.parse("Fc0 Fn1 Fa2 Fa3 B3 B2 Fc0 Fa1 B1 Fa0 B0"), Shape(3))
    assert plan.forward == (
        first(0, input_wanted=True, output_wanted=True),
        first(1, output_wanted=True),
        first(2, is_last=True, captures=True, output_wanted=True),
    )
    assert plan.before_backward == (
        (again(0, is_last=True, captures=True),),
        (
            again(0, input_wanted=True, output_wanted=True),
            again(1, is_last=True, captures=True),
        ),
        (),
    )


def test_dropped_saved_data_is_not_captured() -> None:
    plan = plan_execution(Schedule.parse("Fa0 Fa1 Fa2 B2 Db1 Fa1 B1 B0"), Shape(2))
    assert [step.captures for step in plan.forward] == [True, False]
    assert plan.before_backward == ((), (again(1, is_last=True, captures=True),))


def test_saved_data_that_outlives_its_input_gets_it_back() -> None:
    plan = plan_execution(Schedule.parse("Fc0 Fa1 Da1 Fa2 B2 Fa0 B1 B0"), Shape(2))
    assert plan.forward == (
        first(0, input_wanted=True, output_wanted=True),
        first(1, is_last=True, captures=True, releases_input=True, output_wanted=True),
    )
    assert plan.before_backward == (
        (),
        (again(0, is_last=True, captures=True, output_wanted=True),),
    )
    assert plan.released == {1}


def test_only_the_forward_that_captures_releases_its_input() -> None:
    plan = plan_execution(Schedule.parse("Fa0 Fa1 Fa2 B2 Db1 Fa1 Db0 Fa0 B1 B0"), Shape(2))
    assert not any(step.releases_input for step in plan.forward)
    assert [step.releases_input for step in plan.before_backward[1]] == [True, False]
    assert plan.released == {1}


def test_an_input_dropped_and_made_anew_before_its_reader_is_made_once() -> None:
    plan = plan_execution(Schedule.parse("Fc0 Da1 Fa0 Fa1 Fa2 B2 B1 B0"), Shape(2))
    assert [(step.stage, step.captures) for step in plan.forward] == [(0, True), (1, True)]


def test_what_nobody_needs_does_not_run() -> None:
    """Neither a forward whose output nobody reads, nor one whose output is recorded anyway."""
    plan = plan_execution(Schedule.parse("Fa0 Fa1 Fc0 Fa2 B2 Fc0 Fc1 B1 Fc0 Fn1 Fc2 B0"), Shape(2))
    assert [step.stage for step in plan.forward] == [0, 1]
    assert plan.before_backward == ((), ())


def test_what_runs_before_the_loss_runs_in_the_forward() -> None:
    plan = plan_execution(Schedule.parse("Fc0 Fc1 Fa0 Fa2 B2 Fa1 B1 B0"), Shape(2))
    assert plan.forward == (
        first(0, input_wanted=True, output_wanted=True),
        first(1, output_wanted=True),
        again(0, is_last=True, captures=True, output_wanted=True),
    )
    assert plan.before_backward == ((), (again(1, is_last=True, captures=True),))


@pytest.mark.parametrize(
    "text", ["Fc0 Fa1 Da1 Fc0 Fa1 B1 Fa0 B0", "Fc0 Fa1 Da1 Fc0 B1 Fa0 B0", "Fc0 Fc1 Fa1 B1 Fa0 B0"]
)
def test_the_loss_runs_once_on_the_output_that_the_user_holds(text: str) -> None:
    plan = plan_execution(Schedule.parse(text), Shape(1))
    assert plan.forward == (first(0, input_wanted=True, output_wanted=True),)
    assert plan.before_backward == ((again(0, is_last=True, captures=True),),)


@pytest.mark.parametrize(
    ("text", "message", "index"),
    [
        ("Fn0 Fa1 B1 Fa0 B0", "Fa0 needs its input a0", 3),
        ("Fa1", "Fa1 needs its input a1", 0),
        ("Fa0 Fn1", "Fn1 needs a1 itself", 1),
        ("Fa0 Fa1 B0", "B0 needs the gradient of a1", 2),
        ("Fc0 Fa1 B1 B0", "B0 needs its input and what Fa0 saves", 3),
        ("Fa0 Da0", "Da0 needs a0", 1),
        ("Fa0 Db1", "Db1 needs the saved data of stage 1", 1),
        ("Fa0 0:Fa1", "0:Fa1 names a branch, and this chain has none", 1),
        ("Fa0 Fa1 T", "T is an operation of joins, and this is a single chain", 2),
        ("Fa0 Oa0", "Oa0 moves data to or from the host, and this runtime has no link", 1),
        ("Fa0 Fa1 B1", "ends before B0", None),
    ],
)
def test_an_operation_without_its_input_is_pointed_at(
    text: str, message: str, index: int | None
) -> None:
    with pytest.raises(InvalidScheduleError, match=message) as told:
        plan_execution(Schedule.parse(text), Shape(1))
    assert told.value.index == index


@pytest.mark.parametrize("seed", range(20))
def test_kept_stages_of_a_kind_are_put_together(seed: int) -> None:
    """All steps stay, in order; beside a stretch there is none that could join it."""
    count = 9
    plan = plan_execution(random_persistent(count + 1, seed, keep=0.7), Shape(count))
    stages = stages_of(*[abs] * count)
    effects = [Effects(draws_random=(seed >> stage % 4) % 2 == 1) for stage in range(count)]
    where = {id(stage.parts[0]): index for index, stage in enumerate(stages)}
    found: list[Step | list[int]] = [
        [where[id(part)] for part in step.parts] if isinstance(step, Stretch) else step
        for step in stretched(plan, stages, effects)
    ]
    in_order = [n for step in found for n in (step if isinstance(step, list) else [step.stage])]
    assert in_order == [step.stage for step in plan.forward]
    assert {n for step in found if isinstance(step, list) for n in step} == plan.kept
    for one, other in pairwise(found):
        if isinstance(one, list) and isinstance(other, list):
            assert len({effects[n].draws_random for n in one}) == 1
            assert effects[one[0]].draws_random != effects[other[0]].draws_random


def test_stages_kept_by_one_option_run_as_one_and_go_backward_one_by_one() -> None:
    plan = plan_execution(
        Schedule.parse("Fc0 Fn1 Fa2.1 Fa4 B4 B2 Fa0.2 B0"), Shape(4), spans={(2, 1): 2, (0, 2): 2}
    )
    assert [(step.stage, step.span, step.option) for step in plan.forward] == [
        (0, 1, 0),
        (1, 1, 0),
        (2, 2, 1),
    ]
    assert plan.backward == (3, 2, 1, 0)
    (again,) = plan.before_backward[1]
    assert (again.stages, again.option, again.captures) == (range(2), 2, True)
    assert again.is_last
    assert not again.is_first
    assert not any(plan.before_backward[stage] for stage in (0, 2, 3))
    assert not plan.kept
