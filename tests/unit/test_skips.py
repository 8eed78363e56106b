"""Tensors that are part of several activations: what a profile accepts, and the referee's digits.

In `CHAIN` a tensor of 1000 bytes is part of a1 and a2; every other size has a digit of its own,
so a sum says what was in memory, and a 2000 would say that the tensor was counted twice.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from chainstay import ChainProfile, InvalidProfileError, InvalidScheduleError, Skip, Stage
from chainstay.schedule import Schedule
from chainstay.validation.simulate import simulate

SKIP = Skip(first=1, last=2, bytes=1_000, gradient_bytes=100_000)
CHAIN = ChainProfile(
    input_bytes=1,
    input_gradient_bytes=10_000,
    stages=(
        Stage(forward_time=1, output_bytes=1_010, saved_bytes=1_020, gradient_bytes=120_000),
        Stage(forward_time=10, output_bytes=1_100, saved_bytes=200, gradient_bytes=140_000),
        Stage(forward_time=100, saved_bytes=400, gradient_bytes=80_000),
    ),
    skips=(SKIP,),
)
PLAIN = replace(CHAIN, skips=())

REPLAYS = [
    # rules, operations, memory during each, memory after each
    (
        "table1 tape free",
        "Fa0    Fa1    Fa2     B2      B1      B0",
        [81_021, 81_221, 81_621, 221_621, 161_221, 131_021],
        [81_021, 81_221, 81_621, 141_221, 121_021, 10_000],
    ),
    (
        "table1 tape free",
        "Fc0    Fn1    Fa2     B2      Fa0     Fa1     B1      B0",
        [81_011, 81_111, 81_501, 221_501, 141_021, 141_221, 161_221, 131_021],
        [81_011, 81_101, 81_501, 140_001, 141_021, 141_221, 121_021, 10_000],
    ),
    (
        # B2 takes a2, and a1 still has the tensor
        "table1 tape free",
        "Fc0    Fc1    Fa2     B2      Fa1     B1      Fa0     B0",
        [81_011, 81_111, 81_511, 221_511, 141_211, 161_211, 121_021, 131_021],
        [81_011, 81_111, 81_511, 141_011, 141_211, 120_001, 121_021, 10_000],
    ),
    (
        # Da1 takes a1, and what stage 1 saved has the tensor in its output; Fc0 makes a1 anew
        "free",
        "Fc0    Fa1    Da1     Fa2     B2      Fc0     B1      Fa0     B0",
        [81_011, 81_211, 81_211, 81_601, 221_601, 141_211, 161_211, 121_021, 131_021],
        [81_011, 81_211, 81_201, 81_601, 141_201, 141_211, 120_001, 121_021, 10_000],
    ),
    (
        # with the last of its holders the tensor goes, too
        "tape free",
        "Fc0    Fa0    Da1     Db0     Fa0     Fa1     Fa2     B2      B1      B0",
        [81_011, 81_031, 81_031, 81_021, 81_021, 81_221, 81_621, 221_621, 161_221, 131_021],
        [81_011, 81_031, 81_021, 80_001, 81_021, 81_221, 81_621, 141_221, 121_021, 10_000],
    ),
]


@pytest.mark.parametrize(
    ("rules", "text", "during", "after"),
    [(rules, *rest) for all_rules, *rest in REPLAYS for rules in all_rules.split()],
)
def test_tensor_counts_once(rules: str, text: str, during: list[int], after: list[int]) -> None:
    replay = simulate(CHAIN, Schedule.parse(text), discards=rules)
    assert [snapshot.during_bytes for snapshot in replay.timeline] == during
    assert [snapshot.after_bytes for snapshot in replay.timeline] == after
    assert replay.peak_bytes == max(during)


def test_without_the_field_every_activation_has_a_tensor_of_its_own() -> None:
    replay = simulate(PLAIN, Schedule.parse("Fc0 Fc1 Fa2 B2 Fa1 B1 Fa0 B0"))
    during = [snapshot.during_bytes for snapshot in replay.timeline]
    assert during == [81_011, 82_111, 82_511, 222_511, 141_211, 261_211, 121_021, 131_021]


def test_tensor_counts_as_activation_while_one_has_it() -> None:
    text = "Fc0 Fa1 Da1 Fa2 B2 Fc0 B1 Fa0 B0"
    _, recorded, dropped, *_ = simulate(CHAIN, Schedule.parse(text), discards="free").timeline
    assert (recorded.activation_bytes, recorded.saved_bytes) == (1_011, 200)
    assert (dropped.activation_bytes, dropped.saved_bytes) == (1, 1_200)


def test_tensor_of_the_input_stays_until_the_last_backward() -> None:
    chain = ChainProfile(
        input_bytes=1_001,
        input_gradient_bytes=100_000,
        stages=(
            Stage(output_bytes=1_010, saved_bytes=20, gradient_bytes=120_000),
            Stage(saved_bytes=400, gradient_bytes=80_000),
        ),
        skips=(Skip(first=0, last=1, bytes=1_000, gradient_bytes=100_000),),
    )
    timeline = simulate(chain, Schedule.parse("Fc0 Fa1 B1 Fa0 B0")).timeline
    assert [snapshot.during_bytes for snapshot in timeline] == [
        81_011,
        81_411,
        201_411,
        121_021,
        121_021,
    ]
    assert [snapshot.after_bytes for snapshot in timeline][2:] == [121_001, 121_021, 100_000]


def test_what_passes_through_is_no_input() -> None:
    with pytest.raises(InvalidScheduleError, match="Fa2 needs its input a2"):
        simulate(CHAIN, Schedule.parse("Fc0 Fa2"))


def test_arrays_count_what_is_new_beside_another_activation() -> None:
    fresh = CHAIN.arrays().fresh
    assert fresh.tolist() == [[0, 1_010, 1_100, 0], [1, 0, 100, 0], [1, 10, 0, 0]]
    assert CHAIN.arrays().gradients.tolist() == [130_000, 160_000, 220_000]


def test_json_round_trip() -> None:
    assert ChainProfile.from_json(CHAIN.to_json()) == CHAIN
    assert json.loads(CHAIN.to_json())["skips"] == [
        {"first": 1, "last": 2, "bytes": 1_000, "gradient_bytes": 100_000}
    ]


def test_documents_from_before_skips_are_read() -> None:
    document = json.loads(PLAIN.to_json())
    del document["skips"]
    assert ChainProfile.from_json(json.dumps({**document, "version": 1})) == PLAIN


def test_lists_become_tuples() -> None:
    assert replace(CHAIN, skips=[SKIP]) == CHAIN  # type: ignore[arg-type]
    assert ChainProfile(input_bytes=0, input_gradient_bytes=0, stages=(Stage(),)).skips == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"first": -1}, "skip: first is -1, must be from 0 to 2**48"),
        ({"last": 2.5}, "skip: last is 2.5, must be a whole number (bytes or ns)"),
        ({"bytes": -5}, "skip: bytes is -5, must be from 0 to 2**48"),
        ({"gradient_bytes": True}, "skip: gradient_bytes is True, must be a whole number"),
        ({"first": 2}, "a skip goes from a2 to a2; it must be part of at least two activations"),
        ({"first": 3}, "a skip goes from a3 to a2; it must be part of at least two activations"),
    ],
)
def test_skip_refused(changes: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidProfileError) as caught:
        replace(SKIP, **changes)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("skips", "message"),
    [
        (SKIP, "must be a tuple of Skip"),
        ((SKIP, None), r"skips\[1\] is None, must be a Skip"),
        (
            (SKIP, replace(SKIP, last=3)),
            r"skips\[1\] reaches a3, .* 3-stage chain reads is a2; end it there",
        ),
        ((replace(SKIP, bytes=1_011),), "a1 has 1010 bytes, and skips in it have 1011;"),
        ((SKIP, replace(SKIP, bytes=11)), "a1 has 1010 bytes, and skips in it have 1011;"),
        (
            (replace(SKIP, gradient_bytes=120_001),),
            "the gradient of a1 has 120000 bytes, and skips in it have 120001;",
        ),
        ((replace(SKIP, first=0, bytes=2),), "a0 has 1 bytes, and skips in it have 2;"),
    ],
)
def test_profile_refuses_skips(skips: object, message: str) -> None:
    with pytest.raises(InvalidProfileError, match=message):
        replace(CHAIN, skips=skips)  # type: ignore[arg-type]


def test_stage_must_save_what_it_makes() -> None:
    first, *rest = CHAIN.stages
    with pytest.raises(InvalidProfileError, match="what stage 0 saves has 999 bytes, and skips"):
        replace(CHAIN, stages=(replace(first, saved_bytes=999), *rest))
