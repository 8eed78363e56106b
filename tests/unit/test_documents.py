"""JSON documents: what is read, and what is refused by the name of its field."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstay import ChainProfile, Stage, documents
from chainstay.documents import Fields, dump, parse
from chainstay.errors import InvalidProfileError, InvalidScheduleError
from chainstay.profiles import Skip

JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=10,
)


def fields(**values: object) -> Fields:
    return Fields(values, "menu", InvalidProfileError)


def read(text: str) -> Fields:
    return parse(text, "menu", 3, InvalidProfileError)


def test_document_says_what_it_is() -> None:
    assert json.loads(dump("menu", 3, {"dish": "soup"})) == {
        "chainstay": "menu",
        "version": 3,
        "dish": "soup",
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ({"chainstay": "menu"}, "a dict"),
        (b"{}", "a bytes"),
        (None, "None"),
        (Path("menu.json"), "a PosixPath"),
    ],
)
def test_only_text_is_read(text: str, told: str) -> None:
    with pytest.raises(InvalidProfileError, match=f": {told}, must be JSON text"):
        read(text)


@pytest.mark.long
@given(
    st.dictionaries(
        st.text().filter(lambda name: name not in {"chainstay", "version"}), JSON_VALUES
    )
)
def test_what_is_written_is_read(body: dict[str, object]) -> None:
    found = read(dump("menu", 3, body))
    assert found.values == {"chainstay": "menu", "version": 3, **body}
    assert (found.path, found.error) == ("menu", InvalidProfileError)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "soup",
        '{"chainstay": "menu"',
        '{"chainstay": "menu",}',
        "{'chainstay': 'menu'}",
        '{"chainstay": "menu", "version": 3} {}',
        '{"a": ' + "9" * 5_000 + "}",
        "\ufeff{}",
        "[" * 100_000,
        '{"a":' * 100_000 + "1" + "}" * 100_000,
    ],
)
def test_malformed_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidProfileError, match=r"^menu document: not JSON \(.+\)$"):
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"chainstay": "menu", "version": 3, "dish": 1, "dish": 1}',
        '{"chainstay": "menu", "version": 3, "first": [{"dish": 1, "dis\\u0068": 2}]}',
        '{"first": {"dish": 1, "price": 1, "dish": {}}, "chainstay": "menu", "version": 3}',
    ],
)
def test_a_field_that_is_there_twice_is_refused(text: str) -> None:
    """Python's own reader takes the last one without a word."""
    assert "dish" in str(json.loads(text))
    with pytest.raises(
        InvalidProfileError, match=r"^menu document: field 'dish' is there twice; keep one$"
    ):
        read(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [("[1, 2]", r"\[1, 2\]"), ('"soup"', "'soup'"), ("7", "7"), ("null", "None"), ("NaN", "nan")],
)
def test_document_must_be_an_object(text: str, found: str) -> None:
    with pytest.raises(
        InvalidProfileError, match=f"^menu: a JSON object was expected, not {found}$"
    ):
        read(text)


def test_nested_text_in_a_message_is_cut() -> None:
    with pytest.raises(InvalidProfileError) as caught:
        read(json.dumps(["x" * 100]))
    assert str(caught.value) == (
        "menu: a JSON object was expected, not ['xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    )


@pytest.mark.parametrize(
    ("length", "shown"), [(38, "'" + "x" * 38 + "'"), (39, "'" + "x" * 36 + "...")]
)
def test_text_of_forty_characters_is_shown_whole(length: int, shown: str) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        fields(dish="x" * length).integer("dish")
    assert str(caught.value) == f"menu: field 'dish' is {shown}, must be a whole number"


def test_document_too_large_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    text = dump("menu", 3, {})
    monkeypatch.setattr(documents, "_LARGEST_DOCUMENT", len(text))
    assert read(text).integer("version") == 3
    with pytest.raises(
        InvalidProfileError,
        match=f"^menu document: {len(text) + 1} characters, at most {len(text)}$",
    ):
        read(text + " ")


def test_largest_document_is_64_mib() -> None:
    text = "[" * (64 * 1024**2 + 1)
    with pytest.raises(InvalidProfileError, match="67108865 characters, at most 67108864"):
        read(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "menu: field 'chainstay' is missing; chainstay did not write it"),
        ('{"chainstay": 5}', "menu: field 'chainstay' is 5, must be a string"),
        (
            '{"chainstay": "wine-list", "version": 3}',
            "the document is a 'wine-list', must be a 'menu'",
        ),
        (
            '{"chainstay": "' + "m" * 9999 + '", "version": 3}',
            f"the document is a '{'m' * 36}..., must be a 'menu'",
        ),
        ('{"chainstay": "menu"}', "menu: field 'version' is missing"),
        (
            '{"chainstay": "menu", "version": "3"}',
            "menu: field 'version' is '3', must be a whole number",
        ),
        (
            '{"chainstay": "menu", "version": 3.0}',
            "menu: field 'version' is 3.0, must be a whole number",
        ),
        (
            '{"chainstay": "menu", "version": true}',
            "menu: field 'version' is True, must be a whole number",
        ),
        (
            '{"chainstay": "menu", "version": 4}',
            "menu document: field 'version' is 4; this chainstay reads version 3",
        ),
        (
            '{"chainstay": "menu", "version": 2}',
            "menu document: field 'version' is 2; this chainstay reads version 3",
        ),
    ],
)
def test_wrong_kind_or_version_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        read(text)
    assert str(caught.value) == message


def test_the_error_is_the_readers_own() -> None:
    for error in (InvalidProfileError, InvalidScheduleError):
        with pytest.raises(error, match="field 'chainstay' is missing"):
            parse("{}", "menu", 3, error)


@pytest.mark.parametrize("value", [0, -7, 2**70])
def test_whole_number(value: int) -> None:
    assert fields(price=value).integer("price") == value


@pytest.mark.parametrize("value", [True, False, 1.0, "1", None, [1], {}])
def test_not_a_whole_number(value: object) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        fields(price=value).integer("price")
    assert str(caught.value) == f"menu: field 'price' is {value!r}, must be a whole number"


@pytest.mark.parametrize("value", [0, -7, 2.5, -1e300])
def test_number(value: float) -> None:
    number = fields(price=value).number("price")
    assert (number, type(number)) == (value, float)


@pytest.mark.parametrize("value", [True, "1", None, [1.5], {}])
def test_not_a_number(value: object) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        fields(price=value).number("price")
    assert str(caught.value) == f"menu: field 'price' is {value!r}, must be a number"


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_number_that_is_not_finite(text: str) -> None:
    document = read(f'{{"chainstay": "menu", "version": 3, "price": {text}}}')
    with pytest.raises(
        InvalidProfileError,
        match=r"^menu: field 'price' is (nan|inf|-inf), must be a finite number$",
    ):
        document.number("price")


def test_whole_number_too_large_for_a_float_is_refused() -> None:
    document = read(f'{{"chainstay": "menu", "version": 3, "price": 1{"0" * 400}}}')
    with pytest.raises(InvalidProfileError, match="field 'price'"):
        document.number("price")


def test_string() -> None:
    assert fields(dish="soupe à l'oignon").string("dish") == "soupe à l'oignon"


@pytest.mark.parametrize("value", [True, 1, None, ["soup"], {}])
def test_not_a_string(value: object) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        fields(dish=value).string("dish")
    assert str(caught.value) == f"menu: field 'dish' is {value!r}, must be a string"


@pytest.mark.parametrize("value", ["soup", "bread"])
def test_choice(value: str) -> None:
    assert fields(dish=value).choice("dish", iter(("soup", "bread"))) == value


@pytest.mark.parametrize(
    ("value", "expected"),
    [("cake", "one of soup, bread"), ("Soup", "one of soup, bread"), (3, "a string")],
)
def test_not_a_choice(value: object, expected: str) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        fields(dish=value).choice("dish", iter(("soup", "bread")))
    assert str(caught.value) == f"menu: field 'dish' is {value!r}, must be {expected}"


@pytest.mark.parametrize("name", ["integer", "number", "string", "children"])
def test_missing_field(name: str) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        getattr(fields(soup=1), name)("dish")
    assert str(caught.value) == "menu: field 'dish' is missing"


def test_children_know_where_they_stand() -> None:
    first, second = fields(dishes=[{"price": 1}, {"sides": [{"price": "much"}]}]).children("dishes")
    assert first.integer("price") == 1
    (side,) = second.children("sides")
    with pytest.raises(InvalidProfileError) as caught:
        side.integer("price")
    assert str(caught.value) == (
        "menu.dishes[1].sides[0]: field 'price' is 'much', must be a whole number"
    )
    assert fields(dishes=[]).children("dishes") == []


@pytest.mark.parametrize("value", [True, 1, None, "ab", {"a": {}}])
def test_not_a_list(value: object) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        fields(dishes=value).children("dishes")
    assert str(caught.value) == f"menu: field 'dishes' is {value!r}, must be a list"


@pytest.mark.parametrize("item", [True, 1, None, "ab", [{}]])
def test_not_a_list_of_objects(item: object) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        fields(dishes=[{}, item]).children("dishes")
    assert str(caught.value) == f"menu.dishes[1]: a JSON object was expected, not {item!r}"


def test_fields_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        fields().path = "elsewhere"  # type: ignore[misc]


@given(st.text() | JSON_VALUES.map(json.dumps))
def test_any_text_is_read_or_refused_with_the_readers_error(text: str) -> None:
    with suppress(InvalidProfileError):
        read(text)


@pytest.mark.parametrize(
    ("field", "place", "message"),
    [
        ("inputbytes", "", "chain-profile: there is no field 'inputbytes'; did you mean 'input_by"),
        ("option", "stages", r"chain-profile.stages\[0\]: there is no field 'option'; did you mea"),
        ("forward_overhed_bytes", "stages", "did you mean 'forward_overhead_bytes'"),
        ("byte", "skips", "did you mean 'bytes'"),
        ("zzz", "", "there is no field 'zzz'; remove it"),
    ],
)
def test_a_field_that_nothing_reads_is_refused(field: str, place: str, message: str) -> None:
    stage = Stage(forward_time=1, backward_time=2, output_bytes=10, saved_bytes=30)
    chain = ChainProfile(
        input_bytes=10, input_gradient_bytes=0, stages=(stage,) * 4,
        skips=(Skip(first=1, last=3, bytes=1),),
    )  # fmt: skip
    document = json.loads(chain.to_json())
    (document[place][0] if place else document)[field] = []
    with pytest.raises(InvalidProfileError, match=message):
        ChainProfile.from_json(json.dumps(document))
