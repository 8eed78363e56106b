"""The language of stage options: their data, their documents and their operations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from chainstay.errors import InvalidProfileError, InvalidScheduleError
from chainstay.profiles import (
    ChainProfile,
    JoinProfile,
    RunCost,
    Stage,
    StageOption,
)
from chainstay.schedule import Op, OpKind, Schedule

OPTION = StageOption(
    name="drops gelu",
    saved_bytes=4,
    backward_overhead_bytes=6,
    first=RunCost(time=3, overhead_bytes=1, backward_time=5),
    again=RunCost(time=2, backward_time=5),
    needs_input=False,
)
PAIR = StageOption(name="both", saved_bytes=3, first=RunCost(time=5, backward_time=1), stages=2)
STAGE = Stage(
    name="block",
    forward_time=2,
    backward_time=3,
    output_bytes=4,
    saved_bytes=10,
    options=(OPTION, PAIR),
    dropped_first=RunCost(time=9),
)
LOSS = Stage(name="loss", backward_time=1, again=RunCost(time=1, backward_time=1))
CHAIN = ChainProfile(input_bytes=4, input_gradient_bytes=0, stages=(STAGE, LOSS))


def test_option_zero_is_the_stage_itself() -> None:
    first, *others = STAGE.all_options
    assert (first.saved_bytes, first.first.time, first.first.backward_time) == (10, 2, 3)
    assert tuple(others) == STAGE.options


def test_costs_by_kind_of_run() -> None:
    assert STAGE.dropped(first=True).time == 9
    assert STAGE.dropped(first=False).time == 2
    assert OPTION.run(first=True).time == 3
    assert OPTION.run(first=False).time == 2
    assert PAIR.run(first=False) == PAIR.first


def test_only_a_stage_that_says_no_more_is_plain() -> None:
    assert Stage(forward_time=1).is_plain
    for changed in (
        replace(Stage(), options=(OPTION,)),
        replace(Stage(), first=RunCost()),
        replace(Stage(), dropped_again=RunCost()),
        replace(Stage(), needs_input=False),
    ):
        assert not changed.is_plain


def test_least_and_plain_time() -> None:
    assert CHAIN.plain_time == 2 + 3 + 0 + 1
    # block by itself 5, the loss at least 1; both as one record 6
    assert CHAIN.least_time == 6
    faster = replace(STAGE, options=(replace(PAIR, first=RunCost(time=2, backward_time=1)),))
    assert replace(CHAIN, stages=(faster, LOSS)).least_time == 3


def test_document_keeps_options() -> None:
    assert ChainProfile.from_json(CHAIN.to_json()) == CHAIN


def test_plain_document_has_no_options() -> None:
    plain = ChainProfile(input_bytes=1, input_gradient_bytes=0, stages=(Stage(forward_time=1),))
    assert "options" not in plain.to_json()
    assert ChainProfile.from_json(plain.to_json()) == plain


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": (1,)}, r"options\[0\] is 1, must be a StageOption"),
        ({"first": 3}, "first is 3, must be a RunCost"),
        ({"needs_input": 1}, "needs_input is 1, must be a bool"),
    ],
)
def test_bad_stage(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidProfileError, match=message):
        replace(STAGE, **change)  # type: ignore[arg-type]  # refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"saved_bytes": -1}, "saved_bytes is -1"),
        ({"stages": 0}, "stages is 0, must be at least 1"),
        ({"first": None}, "an option's first run is None, must be a RunCost"),
        ({"name": 2}, "an option's name is 2, must be a string"),
    ],
)
def test_bad_option(change: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidProfileError, match=message):
        replace(OPTION, **change)  # type: ignore[arg-type]  # refused


def test_option_that_reaches_beyond_the_loss() -> None:
    with pytest.raises(InvalidProfileError, match="keeps 3 stages, and from there to the loss"):
        replace(CHAIN, stages=(replace(STAGE, options=(replace(PAIR, stages=3),)), LOSS))


def test_joins_take_no_options_of_several_stages() -> None:
    with pytest.raises(InvalidProfileError, match="has an option that keeps several stages"):
        JoinProfile(branches=(CHAIN,))


def test_operation_names_its_option() -> None:
    text = "Fa0.2 Fa10.12 1:Fa3.1 Fa4 B0"
    assert str(Schedule.parse(text)) == text
    assert Schedule.parse("Fa3.1")[0] == Op(OpKind.FORWARD_KEEP_ALL, 3, option=1)


@pytest.mark.parametrize("word", ["Fa3.0", "Fa3.01", "Fa3.", "Fc3.1", "B3.1", "Db3.1", "T.1"])
def test_word_with_a_bad_option(word: str) -> None:
    with pytest.raises(InvalidScheduleError):
        Schedule.parse(word)


def test_only_fa_has_options() -> None:
    with pytest.raises(InvalidScheduleError, match="only Fa has options"):
        Op(OpKind.BACKWARD, 3, option=1)
