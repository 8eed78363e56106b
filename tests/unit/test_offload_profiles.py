"""Offloading profiles and links: what they compute, what they refuse, how they are written."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given

from chainstay.errors import InvalidProfileError
from chainstay.profiles import ChainProfile, Link, OffloadProfile, Skip, Stage
from chainstay.schedule import Schedule
from chainstay.timetable import computations
from chainstay.validation.offload.simulate import OffloadMachine
from chainstay.validation.simulate import simulate
from offload_strategies import offload_profiles
from strategies import FAMILIES_WITHOUT_SKIPS, chains

TINY = OffloadProfile(
    activations=(2, 3, 4),
    gradients=(1, 10, 100),
    forward_overheads=(1000, 2000),
    backward_overheads=(10000, 20000),
    forward_times=(1, 2),
    backward_times=(3, 4),
)


def test_loads_by_hand() -> None:
    assert len(TINY) == 2
    assert TINY.least_time == 10
    assert TINY.forward_loads == (2 + 3 + 1000, 2 + 3 + 4 + 2000)
    assert TINY.backward_loads == (2 + 3 + 1 + 10 + 10000, 2 + 3 + 4 + 10 + 100 + 20000)
    assert TINY.peak_bytes == 20119
    assert TINY.required_bytes == 20117  # a0 away, the last backward still needs the rest


@given(offload_profiles())
def test_the_peak_is_that_of_running_it(profile: OffloadProfile) -> None:
    machine = OffloadMachine(profile, budget=10**9, link=Link(bandwidth=1))
    replay = machine.run(Schedule(computations(len(profile))))
    assert replay.peak_bytes == profile.peak_bytes
    assert replay.makespan == profile.least_time


@given(chains(families=FAMILIES_WITHOUT_SKIPS))
def test_a_chain_has_the_same_peak_and_time_as_its_offload_profile(chain: ChainProfile) -> None:
    profile = OffloadProfile.from_chain(chain)
    replay = simulate(chain, Schedule.keep_all(len(chain)))
    last = chain.gradient_bytes(len(chain))
    assert profile.peak_bytes == max(replay.peak_bytes, chain.input_bytes + last)
    assert profile.least_time == replay.makespan


def test_chains_with_skips_are_refused() -> None:
    stage = Stage(output_bytes=5, saved_bytes=5)
    chain = ChainProfile(
        input_bytes=5,
        input_gradient_bytes=0,
        stages=(stage,) * 3,
        skips=(Skip(first=1, last=2, bytes=1),),
    )
    with pytest.raises(
        InvalidProfileError, match=r"this chain has 1 skips, .*granularity='blocks'"
    ):
        OffloadProfile.from_chain(chain)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"activations": (1, 2)}, "activations has 2 entries; with 2 forward_times it needs 3"),
        ({"backward_overheads": (1,)}, "backward_overheads has 1 entries; .* it needs 2"),
        ({"gradients": (1, -2, 3)}, r"gradients\[1\] is -2, must be from 0"),
        ({"forward_times": (1, 2.5)}, r"forward_times\[1\] is 2.5, must be a whole number"),
        ({"forward_times": ()}, "forward_times is empty; a chain needs at least one stage"),
        ({"activations": "123"}, "activations is '123', must be a tuple"),
        ({"activations": 7}, "activations is 7, must be a tuple"),
    ],
)
def test_what_is_no_profile_is_refused(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidProfileError, match=reason):
        replace(TINY, **change)


@given(offload_profiles())
def test_profiles_come_back_from_json(profile: OffloadProfile) -> None:
    assert OffloadProfile.from_json(profile.to_json()) == profile


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("gradients", 3, "field 'gradients' is 3, must be a list of whole numbers"),
        ("gradients", [1, 2.5, 3], "field 'gradients' is 2.5, must be a list of whole numbers"),
        ("version", 2, "field 'version' is 2; this chainstay reads version 1"),
        ("chainstay", "chain-profile", "the document is a 'chain-profile'"),
    ],
)
def test_malformed_documents_name_the_field(field: str, value: object, reason: str) -> None:
    document = json.loads(TINY.to_json()) | {field: value}
    with pytest.raises(InvalidProfileError, match=reason):
        OffloadProfile.from_json(json.dumps(document))


def test_transfer_times_are_exact() -> None:
    link = Link(bandwidth=Fraction(7, 3), latency=Fraction(1, 2), duplex="full")
    assert link.transfer_time(5) == Fraction(1, 2) + Fraction(15, 7)
    assert link.ticks == 14
    assert link.transfer_ticks(5) == 37
    assert link.is_full_duplex
    assert not Link(bandwidth=1).is_full_duplex


def test_links_of_real_machines_are_in_bytes_per_nanosecond() -> None:
    link = Link.from_bytes_per_second(12_300_000_000, latency_ns=9000)
    assert link == Link(bandwidth=Fraction(123, 10), latency=9000)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"bandwidth": 0}, "bandwidth is 0, must be positive"),
        ({"bandwidth": 1.5}, "bandwidth is 1.5, must be an exact rational"),
        ({"bandwidth": True}, "bandwidth is True, must be an exact rational"),
        ({"bandwidth": -3}, "bandwidth is -3, must be from 0 to"),
        ({"bandwidth": 1, "latency": "1"}, "latency is '1', must be an exact rational"),
        ({"bandwidth": 1, "latency": Fraction(-1, 2)}, "latency is -1/2, must be from 0"),
        ({"bandwidth": 1, "duplex": "both"}, "duplex is 'both', must be 'half' or 'full'"),
    ],
)
def test_what_is_no_link_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidProfileError, match=reason):
        Link(**settings)


@pytest.mark.parametrize(
    "link",
    [
        Link(bandwidth=1),
        Link(bandwidth=Fraction(7, 3), latency=Fraction(1, 2), duplex="full"),
    ],
)
def test_links_come_back_from_json(link: Link) -> None:
    assert Link.from_json(link.to_json()) == link


def test_malformed_links_name_the_field() -> None:
    document = json.loads(Link(bandwidth=1).to_json()) | {"bandwidth": "1.5"}
    with pytest.raises(InvalidProfileError, match=r"field 'bandwidth' is '1\.5', must be a whole"):
        Link.from_json(json.dumps(document))
