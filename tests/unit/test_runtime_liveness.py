"""What a schedule means for a runtime, by hand, and what is refused."""

from __future__ import annotations

import pytest

from chainstay.errors import InvalidScheduleError, UnsupportedModelError
from chainstay.runtime.liveness import Step, plan_execution
from chainstay.schedule import Schedule


def first(stage: int, **flags: bool) -> Step:
    return _step(stage, is_first=True, **flags)


def again(stage: int, **flags: bool) -> Step:
    return _step(stage, is_first=False, **flags)


def _step(stage: int, *, is_first: bool, **flags: bool) -> Step:
    absent = {"is_last": False, "captures": False, "input_wanted": False, "output_wanted": False}
    return Step(stage=stage, is_first=is_first, **{**absent, **flags})


def test_kept_stages_run_once() -> None:
    plan = plan_execution(Schedule.keep_all(3), stages=2)
    assert plan.forward == (
        first(0, is_last=True, captures=True, output_wanted=True),
        first(1, is_last=True, captures=True),
    )
    assert plan.before_backward == ((), ())


def test_checkpoint_is_read_twice_and_then_given_up() -> None:
    plan = plan_execution(Schedule.parse("Fc0 Fn1 Fa2 Fa3 B3 B2 Fc0 Fa1 B1 Fa0 B0"), stages=3)
    assert plan.forward == (
        first(0, input_wanted=True, output_wanted=True),
        first(1, output_wanted=True),
        first(2, is_last=True, captures=True),
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
    plan = plan_execution(Schedule.parse("Fa0 Fa1 Db1 Fc1 Fa2 B2 Fa1 B1 B0"), stages=2)
    assert [step.captures for step in plan.forward] == [True, False]
    assert plan.before_backward == (
        (),
        (again(1, input_wanted=True), again(1, is_last=True, captures=True)),
    )


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
        ("Fa0 Fa1 B1", "ends before B0", None),
    ],
)
def test_an_operation_without_its_input_is_pointed_at(
    text: str, message: str, index: int | None
) -> None:
    with pytest.raises(InvalidScheduleError, match=message) as told:
        plan_execution(Schedule.parse(text), stages=1)
    assert told.value.index == index


def test_saved_data_without_its_input_is_refused() -> None:
    schedule = Schedule.parse("Fc0 Fa1 Da1 Fa0 Fa1 Fa2 B2 B1 B0")
    with pytest.raises(UnsupportedModelError, match=r"step 3 \(Da1\) drops the input of stage 1"):
        plan_execution(schedule, stages=2)
