"""The language of schedules: its text and JSON forms, and what it refuses to read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstay.errors import InvalidScheduleError
from chainstay.schedule import Discards, Op, OpKind, Schedule

NUMBERS = st.integers(0, 999_999_999)
STAGE_KINDS = [kind for kind in OpKind if kind is not OpKind.TURN]
OPS = st.just(Op(OpKind.TURN)) | st.builds(
    Op, st.sampled_from(STAGE_KINDS), NUMBERS, st.none() | NUMBERS
)
SCHEDULES = st.lists(OPS, max_size=30).map(lambda ops: Schedule(tuple(ops)))

NOT_AN_OPERATION = "is not an operation; write Fn, Fc, Fa, B, Da, Db, Oa, Ob, Pa or Pb and a"


@pytest.mark.parametrize(
    ("kind", "text", "is_forward"),
    [
        (OpKind.FORWARD_DROP, "Fn7", True),
        (OpKind.FORWARD_KEEP_INPUT, "Fc7", True),
        (OpKind.FORWARD_KEEP_ALL, "Fa7", True),
        (OpKind.BACKWARD, "B7", False),
        (OpKind.DISCARD_ACTIVATION, "Da7", False),
        (OpKind.DISCARD_SAVED, "Db7", False),
        (OpKind.OFFLOAD_ACTIVATION, "Oa7", False),
        (OpKind.OFFLOAD_SAVED, "Ob7", False),
        (OpKind.PREFETCH_ACTIVATION, "Pa7", False),
        (OpKind.PREFETCH_SAVED, "Pb7", False),
    ],
)
def test_spelling(kind: OpKind, text: str, is_forward: bool) -> None:  # noqa: FBT001
    assert str(Op(kind, 7)) == text
    assert Schedule.parse(text).ops == (Op(kind, 7),)
    assert kind.is_forward is is_forward
    assert kind.is_transfer is (text[0] in "OP")


def test_branches_and_the_turn() -> None:
    ops = (Op(OpKind.FORWARD_KEEP_ALL, 3, branch=12), Op(OpKind.TURN), Op(OpKind.BACKWARD, 3, 12))
    assert Schedule.parse("12:Fa3 T 12:B3").ops == ops
    assert str(Schedule(ops)) == "12:Fa3 T 12:B3"
    for wrong in ({"stage": 1}, {"branch": 0}):
        with pytest.raises(InvalidScheduleError, match="leave both out"):
            Op(OpKind.TURN, **wrong)
    with pytest.raises(InvalidScheduleError, match="branch is -1, must be from 0"):
        Op(OpKind.BACKWARD, 0, -1)


def test_every_kind_has_a_spelling() -> None:
    assert [kind.value for kind in OpKind] == (
        ["Fn", "Fc", "Fa", "B", "Da", "Db", "Oa", "Ob", "Pa", "Pb", "T"]
    )
    assert [rules.value for rules in Discards] == ["table1", "tape", "free"]


def test_white_space_only_separates() -> None:
    assert str(Schedule.parse("\n Fa0\tFa1\r\n\n B1   B0 ")) == "Fa0 Fa1 B1 B0"
    assert Schedule.parse(" \n ") == Schedule(()) == Schedule.parse("")


@pytest.mark.parametrize("text", ["Fa0", "Fa10", "Fa999999999"])
def test_stage_number(text: str) -> None:
    assert str(Schedule.parse(text)) == text


@pytest.mark.parametrize(
    "word",
    [
        "Fb0",
        "fa0",
        "Fa",
        "0",
        "Fa-1",
        "Fa+1",
        "Fa1.0",
        "Fa01",
        "Fa1_0",
        "Fa0,",
        "Fa0Fa1",
        "xFa0",
        "Fa٣",
        "Fa1000000000",
        "D0",
        "T0",
        "1:T",
        ":Fa0",
        "01:Fa0",
        "-1:Fa0",
        "1000000000:Fa0",
    ],
)
def test_word_that_is_not_an_operation(word: str) -> None:
    with pytest.raises(InvalidScheduleError, match=NOT_AN_OPERATION) as caught:
        Schedule.parse(f"Fa0 {word} B0")
    assert caught.value.index == 1
    assert caught.value.reason.startswith(f"{word!r} is not an operation")


def test_listing_points_at_the_word() -> None:
    with pytest.raises(InvalidScheduleError) as caught:
        Schedule.parse("Fa0 Fa1 Fa2 Fa3 Fa4 Fa5 soup B4 B3 B2 B1 B0")
    assert str(caught.value) == (
        "step 7: 'soup' is not an operation; write Fn, Fc, Fa, B, Da, Db, Oa, Ob, Pa or Pb "
        "and a stage number, as in 'Fa0', with an option as in 'Fa0.1', after a branch and a colon "
        "in a join, as in '1:Fa0', or T for its turn\n"
        "         3  Fa2\n"
        "         4  Fa3\n"
        "         5  Fa4\n"
        "         6  Fa5\n"
        "-->      7  soup\n"
        "         8  B4\n"
        "         9  B3\n"
        "        10  B2\n"
        "        11  B1"
    )


def test_first_wrong_word_is_named() -> None:
    with pytest.raises(InvalidScheduleError, match=r"^step 1: 'soup'") as caught:
        Schedule.parse("soup Fa0 bread")
    assert caught.value.index == 0


def test_long_word_is_cut() -> None:
    with pytest.raises(InvalidScheduleError) as caught:
        Schedule.parse("x" * 1_000)
    assert caught.value.reason.startswith(f"{'x' * 20!r} is not")
    assert str(caught.value).endswith("-->      1  " + "x" * 20)


@pytest.mark.parametrize("ops", ["Fa0", ("Fa0",), (None,), ((OpKind.BACKWARD, 0),)])
def test_ops_that_are_not_operations(ops: Sequence[object]) -> None:
    with pytest.raises(InvalidScheduleError) as caught:
        Schedule(ops)  # type: ignore[arg-type]
    assert str(caught.value) == f"ops[0] is {ops[0]!r}, must be an Op"
    assert caught.value.index is None


def test_position_of_what_is_not_an_operation() -> None:
    ops: Any = (Op(OpKind.BACKWARD, 0), Op(OpKind.BACKWARD, 0), "B0")
    with pytest.raises(InvalidScheduleError, match=r"^ops\[2\] is 'B0', must be an Op$"):
        Schedule(ops)


def test_list_of_operations_becomes_a_tuple() -> None:
    ops: Any = [Op(OpKind.BACKWARD, 0)]
    schedule = Schedule(ops)
    ops.clear()
    assert schedule == Schedule.parse("B0")
    assert hash(schedule) == hash(Schedule.parse("B0"))


@pytest.mark.parametrize(
    ("stages", "text"), [(1, "Fa0 B0"), (2, "Fa0 Fa1 B1 B0"), (3, "Fa0 Fa1 Fa2 B2 B1 B0")]
)
def test_keep_all(stages: int, text: str) -> None:
    assert str(Schedule.keep_all(stages)) == text


def test_sequence() -> None:
    schedule = Schedule.parse("Fa0 Fa1 B1 B0")
    assert len(schedule) == 4
    assert [str(op) for op in schedule] == ["Fa0", "Fa1", "B1", "B0"]
    assert (str(schedule[0]), str(schedule[-1])) == ("Fa0", "B0")
    assert schedule[1:3] == (Op(OpKind.FORWARD_KEEP_ALL, 1), Op(OpKind.BACKWARD, 1))
    with pytest.raises(IndexError):
        schedule[4]


def test_equality_is_by_value() -> None:
    assert Schedule.parse("Fa0 B0") == Schedule.parse("Fa0 B0")
    assert Schedule.parse("Fa0 B0") != Schedule.parse("Fc0 B0")
    assert Op(OpKind.BACKWARD, 0) != Op(OpKind.BACKWARD, 1)


def test_frozen() -> None:
    schedule = Schedule.parse("B0")
    with pytest.raises(FrozenInstanceError):
        schedule.ops = ()  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        schedule[0].stage = 1  # type: ignore[misc]


@given(SCHEDULES)
def test_text_round_trip(schedule: Schedule) -> None:
    assert Schedule.parse(str(schedule)) == schedule


@given(SCHEDULES)
def test_json_round_trip(schedule: Schedule) -> None:
    assert Schedule.from_json(schedule.to_json()) == schedule


def test_json_form() -> None:
    assert json.loads(Schedule.parse("Fa0 B0").to_json()) == {
        "chainstay": "schedule",
        "version": 1,
        "ops": "Fa0 B0",
    }


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (
            {"chainstay": "schedule", "version": 2, "ops": ""},
            "schedule document: field 'version' is 2; this chainstay reads version 1",
        ),
        (
            {"chainstay": "solution", "version": 1, "ops": ""},
            "the document is a 'solution', must be a 'schedule'",
        ),
        ({"chainstay": "schedule", "version": 1}, "schedule: field 'ops' is missing"),
        (
            {"chainstay": "schedule", "version": 1, "ops": ["Fa0"]},
            "schedule: field 'ops' is ['Fa0'], must be a string",
        ),
        ([], "schedule: a JSON object was expected, not []"),
    ],
)
def test_document_refused(document: object, message: str) -> None:
    with pytest.raises(InvalidScheduleError) as caught:
        Schedule.from_json(json.dumps(document))
    assert (str(caught.value), caught.value.index) == (message, None)


def test_document_with_a_wrong_word_is_refused() -> None:
    with pytest.raises(
        InvalidScheduleError, match=r"^step 2: 'soup' is not an operation"
    ) as caught:
        Schedule.from_json('{"chainstay": "schedule", "version": 1, "ops": "Fa0 soup"}')
    assert caught.value.index == 1


@pytest.mark.parametrize("text", ["", "Fa0 B0", "{", "[" * 100_000])
def test_broken_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidScheduleError, match=r"^schedule document: not JSON"):
        Schedule.from_json(text)
