"""Stages and chains: what they refuse, what they derive, and their JSON form."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainstay.dp import DP
from chainstay.dp.revolve import Revolve
from chainstay.errors import ChainstayError, InvalidProfileError
from chainstay.formulations import CPSAT, MIP
from chainstay.profiles import ChainArrays, ChainProfile, JoinProfile, Link, Stage
from chainstay.solve.hybrid import solve_hybrid
from chainstay.validation import search

LARGEST = 2**48
QUANTITIES = [
    "forward_time",
    "backward_time",
    "output_bytes",
    "saved_bytes",
    "gradient_bytes",
    "forward_overhead_bytes",
    "backward_overhead_bytes",
]
INPUTS = ["input_bytes", "input_gradient_bytes"]

FIRST = Stage(
    name="conv",
    forward_time=1,
    backward_time=20,
    output_bytes=300,
    saved_bytes=4_000,
    gradient_bytes=50_000,
    forward_overhead_bytes=600_000,
    backward_overhead_bytes=7_000_000,
)
LOSS = Stage(
    name="loss",
    forward_time=2,
    backward_time=30,
    output_bytes=400,
    saved_bytes=5_000,
    gradient_bytes=60_000,
    forward_overhead_bytes=700_000,
    backward_overhead_bytes=8_000_000,
)
CHAIN = ChainProfile(input_bytes=9, input_gradient_bytes=90, stages=(FIRST, LOSS))

AMOUNTS = st.integers(0, LARGEST)
STAGES = st.builds(Stage, name=st.text(), **dict.fromkeys(QUANTITIES, AMOUNTS))
PROFILES = st.builds(
    ChainProfile,
    input_bytes=AMOUNTS,
    input_gradient_bytes=AMOUNTS,
    stages=st.lists(STAGES, min_size=1, max_size=5).map(tuple),
)

MAKERS = [
    *(
        pytest.param(name, lambda value, name=name: replace(FIRST, **{name: value}), id=name)
        for name in QUANTITIES
    ),
    *(
        pytest.param(name, lambda value, name=name: replace(CHAIN, **{name: value}), id=name)
        for name in INPUTS
    ),
]
Maker = Callable[[Any], Stage | ChainProfile]


@pytest.mark.parametrize(("name", "make"), MAKERS)
@pytest.mark.parametrize(
    "value", [0, 1, LARGEST, np.int64(5), np.uint8(5), np.int32(LARGEST >> 20)]
)
def test_amount(name: str, make: Maker, value: int) -> None:
    stored = getattr(make(value), name)
    assert (stored, type(stored)) == (value, int)


@pytest.mark.parametrize(("name", "make"), MAKERS)
@pytest.mark.parametrize(
    "value", [True, False, 1.0, 1.5, float("nan"), "1", None, np.float64(2), np.True_, [1]]
)
def test_amount_that_is_not_whole(name: str, make: Maker, value: object) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        make(value)
    assert str(caught.value).removeprefix("stage 'conv': ") == (
        f"{name} is {value!r}, must be a whole number (bytes or ns)"
    )


@pytest.mark.parametrize(("name", "make"), MAKERS)
@pytest.mark.parametrize("value", [-1, LARGEST + 1, np.int64(-1), 10**30])
def test_amount_out_of_range(name: str, make: Maker, value: int) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        make(value)
    assert str(caught.value).removeprefix("stage 'conv': ") == (
        f"{name} is {value}, must be from 0 to 2**48"
    )


def test_refusal_names_the_stage() -> None:
    with pytest.raises(InvalidProfileError, match=r"^stage 'conv': saved_bytes is -1, must be"):
        Stage(name="conv", saved_bytes=-1)


def test_amount_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(InvalidProfileError, match="forward_time"):
        Stage(forward_time=10**5_000)


@pytest.mark.parametrize("value", [np.array([1, 2]), np.array(1.5)])
def test_array_is_refused(value: object) -> None:
    with pytest.raises(InvalidProfileError, match="forward_time"):
        Stage(forward_time=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", [None, 3, b"conv", ["conv"]])
def test_name_that_is_not_text(name: object) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        Stage(name=name)  # type: ignore[arg-type]
    assert str(caught.value) == f"a stage's name is {name!r}, must be a string"


def test_stage_costs_nothing_unless_told() -> None:
    assert Stage().to_fields() == {"name": "", **dict.fromkeys(QUANTITIES, 0)}


def test_environments_are_read_as_written_and_left_out_where_there_are_none() -> None:
    stage = Stage(environment_bytes=7, random_bytes=3)
    chain = replace(CHAIN, stages=(*CHAIN.stages, stage))
    assert ChainProfile.from_json(chain.to_json()) == chain
    assert chain.has_environments
    assert not CHAIN.has_environments
    assert not stage.is_plain
    assert "environment" not in CHAIN.to_json()
    text = "stage 'conv': random_bytes is 8, must be at most environment_bytes, 7"
    with pytest.raises(InvalidProfileError, match=text):
        Stage(name="conv", environment_bytes=7, random_bytes=8)


_ENVIRONMENT = ChainProfile(
    input_bytes=1,
    input_gradient_bytes=0,
    stages=(Stage(output_bytes=1, saved_bytes=1), Stage(environment_bytes=2), Stage()),
)


@pytest.mark.parametrize(
    "ask",
    [
        lambda: DP(persistence="weak")(_ENVIRONMENT, 100),
        lambda: DP(discards="free")(_ENVIRONMENT, 100),
        lambda: MIP(discards="tape")(_ENVIRONMENT, 100),
        lambda: CPSAT(discards="free")(_ENVIRONMENT, 100),
        lambda: Revolve()(_ENVIRONMENT, 100),
        lambda: search.optimum(_ENVIRONMENT, 100),
        lambda: solve_hybrid(_ENVIRONMENT, 100, link=Link(bandwidth=1)),
        lambda: JoinProfile(branches=(_ENVIRONMENT,), tail=None),
    ],
)
def test_what_does_not_count_environments_refuses_them(ask: Callable[[], object]) -> None:
    with pytest.raises(InvalidProfileError, match=r"stage 1 of this chain has .*environment"):
        ask()


def test_saved_data_may_be_smaller_than_the_output() -> None:
    assert Stage(output_bytes=100, saved_bytes=96).saved_bytes == 96


def test_chain_without_stages_is_refused() -> None:
    with pytest.raises(InvalidProfileError, match=r"at least one stage \(the loss\), got none"):
        ChainProfile(input_bytes=1, input_gradient_bytes=1, stages=())


@pytest.mark.parametrize("stages", [None, 5, "ab", {FIRST}, iter([FIRST]), FIRST])
def test_stages_that_are_no_sequence_are_refused(stages: object) -> None:
    with pytest.raises(InvalidProfileError, match=r"^stages is .+, must be a tuple of Stage$"):
        replace(CHAIN, stages=stages)  # type: ignore[arg-type]


@pytest.mark.parametrize("stage", [None, 5, "loss", {"name": "loss"}, Stage])
def test_stage_that_is_none_is_refused(stage: object) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        replace(CHAIN, stages=(FIRST, stage))  # type: ignore[arg-type]
    assert str(caught.value) == f"stages[1] is {stage!r}, must be a Stage"


def test_list_of_stages_becomes_a_tuple() -> None:
    stages: Any = [FIRST, LOSS]
    chain = replace(CHAIN, stages=stages)
    stages.append(LOSS)
    assert chain == CHAIN
    assert hash(chain) == hash(CHAIN)


@pytest.mark.parametrize("name", ["name", *QUANTITIES])
def test_stage_is_frozen(name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(FIRST, name, 1)


@pytest.mark.parametrize("name", [*INPUTS, "stages"])
def test_chain_is_frozen(name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(CHAIN, name, 1)


def test_nothing_is_positional() -> None:
    positional: Any = Stage
    with pytest.raises(TypeError, match="positional"):
        positional("conv")
    positional = ChainProfile
    with pytest.raises(TypeError, match="positional"):
        positional(9, 90, (FIRST,))


def test_length_and_sizes_by_index() -> None:
    assert len(CHAIN) == 2
    assert [CHAIN.activation_bytes(i) for i in range(3)] == [9, 300, 400]
    assert [CHAIN.gradient_bytes(i) for i in range(3)] == [90, 50_000, 60_000]


def test_least_time_is_every_step_once() -> None:
    assert CHAIN.least_time == 53  # 1+20 + 2+30


def test_arrays() -> None:
    expected = ChainArrays(
        forward_time=np.array([1, 2]),
        backward_time=np.array([20, 30]),
        activation=np.array([9, 300, 400]),
        saved=np.array([4_000, 5_000]),
        gradient=np.array([90, 50_000, 60_000]),
        forward_overhead=np.array([600_000, 700_000]),
        backward_overhead=np.array([7_000_000, 8_000_000]),
        fresh=np.array([[0, 300, 400], [9, 0, 400]]),
        gradients=np.array([50_090, 110_000]),
    )
    for name, found in CHAIN.arrays()._asdict().items():
        assert found.dtype == np.int64
        assert found.tolist() == getattr(expected, name).tolist(), name


def test_arrays_are_copies() -> None:
    CHAIN.arrays().saved[0] = 0
    assert CHAIN.arrays().saved[0] == 4_000


@given(PROFILES)
def test_json_round_trip(profile: ChainProfile) -> None:
    assert ChainProfile.from_json(profile.to_json()) == profile


def test_json_form() -> None:
    text = ChainProfile(input_bytes=9, input_gradient_bytes=90, stages=(FIRST,)).to_json()
    assert json.loads(text) == {
        "chainstay": "chain-profile",
        "version": 3,
        "input_bytes": 9,
        "input_gradient_bytes": 90,
        "stages": [
            {
                "name": "conv",
                "forward_time": 1,
                "backward_time": 20,
                "output_bytes": 300,
                "saved_bytes": 4_000,
                "gradient_bytes": 50_000,
                "forward_overhead_bytes": 600_000,
                "backward_overhead_bytes": 7_000_000,
            }
        ],
        "skips": [],
    }


def edited(**changes: object) -> str:
    """The document of `CHAIN` with fields replaced."""
    return json.dumps({**json.loads(CHAIN.to_json()), **changes})


def edited_stage(**changes: object) -> str:
    """The document of `CHAIN` with fields of its second stage replaced."""
    first, second = json.loads(CHAIN.to_json())["stages"]
    return edited(stages=[first, {**second, **changes}])


def without(name: str) -> str:
    document = json.loads(CHAIN.to_json())
    del document[name]
    return json.dumps(document)


def without_in_stage(name: str) -> str:
    first, second = json.loads(CHAIN.to_json())["stages"]
    del second[name]
    return edited(stages=[first, second])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            edited(version=4),
            "chain-profile document: field 'version' is 4; this chainstay reads versions 1 to 3",
        ),
        (
            edited(version=0),
            "chain-profile document: field 'version' is 0; this chainstay reads versions 1 to 3",
        ),
        (
            edited(chainstay="schedule"),
            "the document is a 'schedule', must be a 'chain-profile'",
        ),
        (
            without("chainstay"),
            "chain-profile: field 'chainstay' is missing; chainstay did not write it",
        ),
        *(
            (without(name), f"chain-profile: field '{name}' is missing")
            for name in ("version", "stages", "skips", *INPUTS)
        ),
        *(
            (without_in_stage(name), f"chain-profile.stages[1]: field '{name}' is missing")
            for name in ("name", *QUANTITIES)
        ),
        *(
            (edited(**{name: 1.5}), f"chain-profile: field '{name}' is 1.5, must be a whole number")
            for name in INPUTS
        ),
        *(
            (
                edited_stage(**{name: "1"}),
                f"chain-profile.stages[1]: field '{name}' is '1', must be a whole number",
            )
            for name in QUANTITIES
        ),
        (
            edited(input_bytes=float("nan")),
            "chain-profile: field 'input_bytes' is nan, must be a whole number",
        ),
        (
            edited(input_bytes=float("inf")),
            "chain-profile: field 'input_bytes' is inf, must be a whole number",
        ),
        (edited(input_bytes=-4), "input_bytes is -4, must be from 0 to 2**48"),
        (edited_stage(name=5), "chain-profile.stages[1]: field 'name' is 5, must be a string"),
        (
            edited_stage(saved_bytes=-4),
            "chain-profile.stages[1]: stage 'loss': saved_bytes is -4, must be from 0 to 2**48",
        ),
        (
            edited_stage(saved_bytes=LARGEST + 1),
            (
                "chain-profile.stages[1]: stage 'loss': saved_bytes is 281474976710657, must be "
                "from 0 to 2**48"
            ),
        ),
        (edited(stages=[]), "a chain needs at least one stage (the loss), got none"),
        (edited(stages={}), "chain-profile: field 'stages' is {}, must be a list"),
        (
            edited(stages=[None]),
            "chain-profile.stages[0]: a JSON object was expected, not None",
        ),
    ],
)
def test_document_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        ChainProfile.from_json(text)
    assert str(caught.value) == message


def test_broken_json_is_refused() -> None:
    with pytest.raises(InvalidProfileError, match=r"^chain-profile document: not JSON"):
        ChainProfile.from_json(CHAIN.to_json()[:-1])


@pytest.mark.parametrize("depth", [10, 500, 900, 950, 980, 990, 1_000, 100_000])
def test_deeply_nested_document_is_refused(depth: int) -> None:
    nested = edited(input_bytes="HERE").replace('"HERE"', "[" * depth + "]" * depth)
    with pytest.raises(ChainstayError, match=r"'input_bytes' is|not JSON"):
        ChainProfile.from_json(nested)


def test_a_stage_without_a_name_is_told_by_its_number() -> None:
    nameless = replace(CHAIN, stages=(replace(FIRST, name=""), LOSS))
    text = nameless.to_json().replace('"forward_time": ', '"forward_time": -', 1)
    with pytest.raises(InvalidProfileError, match=r"^chain-profile.stages\[0\]: a stage: forward"):
        ChainProfile.from_json(text)
