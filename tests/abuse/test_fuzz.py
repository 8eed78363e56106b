"""Anything at all for every parser and every data type: only errors of chainstay's own come out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from fractions import Fraction
from functools import cache
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay.cli.models.named_models import ModelSpec
from chainstay.cli.solver_methods import parse_link
from chainstay.errors import ChainstayError, InvalidPlanError
from chainstay.plans import Cut, Fingerprint, Plan
from chainstay.plans.parser import parse_plan, parse_profile
from chainstay.problems.hybrid import HybridSolution
from chainstay.problems.offload import OffloadSolution
from chainstay.profiles import (
    ChainProfile,
    HomogeneousJoin,
    JoinProfile,
    Link,
    OffloadProfile,
    Skip,
    Stage,
)
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.solution import Family, Solution
from chainstay.solve import solve_join
from chainstay.solve.hybrid import Pofo, solve_hybrid
from chainstay.solve.offload import solve_offload
from chainstay.units import parse_bytes, parse_percentage
from strategies import chains

HUGE: Final = st.sampled_from([10**9, 2**48, 2**48 + 1, 2**63, 2**64, 10**400, -1, -(10**400)])
SCALARS: Final = (
    st.none()
    | st.booleans()
    | st.integers()
    | HUGE
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["٣", "１２", "1/0", "1/٣", "inf", "\ud800", "\x00", "1e999", "Fa0 B0"])
)
VALUES: Final = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)

_STAGE: Final = Stage(forward_time=1, backward_time=2, output_bytes=3, saved_bytes=4)
_CHAIN: Final = ChainProfile(
    input_bytes=3,
    input_gradient_bytes=0,
    stages=(_STAGE, _STAGE, _STAGE),
    skips=(Skip(first=1, last=2, bytes=1),),
)
_BARE: Final = ChainProfile(input_bytes=3, input_gradient_bytes=0, stages=(_STAGE,))
_JOIN: Final = JoinProfile(branches=(_BARE, _BARE))
_PLAIN: Final = replace(_CHAIN, skips=())
_OFFLOAD: Final = OffloadProfile.from_chain(_PLAIN)
_LINK: Final = Link(bandwidth=Fraction(3, 2), latency=1, capacity=9)
_SOLUTION: Final = Solution(
    schedule=Schedule.keep_all(3),
    makespan=9,
    peak_bytes=20,
    budget=30,
    lower_bound=9,
    family=Family.PERSISTENT,
    method="dp",
    solve_seconds=0.5,
)


def _offloading() -> OffloadSolution:
    """Something moves, whole, over a link with latency."""
    link = Link(bandwidth=Fraction(3, 2), latency=Fraction(1, 3))
    return solve_offload(_OFFLOAD, "80%", link=link, method="heuristics")


def _flowing() -> OffloadSolution:
    """Parts of activations move."""
    link = Link(bandwidth=Fraction(3, 2))
    return solve_offload(_OFFLOAD, "80%", link=link, method="greedy", transfers="fractional")


def _hybrid() -> HybridSolution:
    link = Link(bandwidth=Fraction(3, 2), capacity=9)
    return solve_hybrid(_PLAIN, "80%", link=link, method=Pofo(slots=30, tries=60))


def _chain_plan() -> Plan:
    sections = {field.name: {"a": "b"} for field in fields(Fingerprint)}
    return Plan(
        solution=_SOLUTION,
        profile=_CHAIN,
        overheads=(1,) * len(_SOLUTION.schedule),
        model="model",
        cut=Cut(by="graph", granularity=3),
        fingerprint=Fingerprint(**sections),
    )


def _offload_plan() -> Plan:
    return Plan(solution=_offloading(), profile=_OFFLOAD, chain=_PLAIN)


def _join_plan() -> Plan:
    solution = solve_join(_JOIN, "100%", keep=(True, False))
    return Plan(solution=solution, profile=_JOIN, keep=(True, False))


READERS: Final[dict[str, tuple[Callable[[str], Any], Callable[[], Any]]]] = {
    "schedule": (Schedule.from_json, lambda: Schedule.keep_all(2)),
    "chain profile": (ChainProfile.from_json, lambda: _CHAIN),
    "join profile": (JoinProfile.from_json, lambda: _JOIN),
    "homogeneous join": (
        HomogeneousJoin.from_json,
        lambda: JoinProfile.homogeneous((1, 2), forward_time=1, backward_time=1, turn_time=0),
    ),
    "offload profile": (OffloadProfile.from_json, lambda: _OFFLOAD),
    "link": (Link.from_json, lambda: _LINK),
    "solution": (Solution.from_json, lambda: _SOLUTION),
    "offload solution": (OffloadSolution.from_json, _offloading),
    "fractional solution": (OffloadSolution.from_json, _flowing),
    "hybrid solution": (HybridSolution.from_json, _hybrid),
    "chain plan": (parse_plan, _chain_plan),
    "offload plan": (parse_plan, _offload_plan),
    "hybrid plan": (parse_plan, lambda: Plan(solution=_hybrid(), profile=_PLAIN)),
    "join plan": (parse_plan, _join_plan),
    "any profile": (lambda text: parse_profile(text, InvalidPlanError), lambda: _CHAIN),
}
"""How each kind of document is read, and a valid one."""

each_reader = pytest.mark.parametrize("name", READERS)


def only_own_errors(function: Callable[[], Any]) -> Any:
    """The result, or None after an error of chainstay's own whose text can be shown."""
    found = None
    try:
        return function()
    except ChainstayError as error:
        found = str(error)
    assert 0 < len(found) < 3000
    return None


@cache
def made(name: str) -> Any:
    """What the document is of."""
    return READERS[name][1]()


@cache
def valid(name: str) -> str:
    """A valid document."""
    text: str = made(name).to_json()
    return text


def changed(value: Any, data: st.DataObject) -> Any:
    """`value` with one change somewhere in it; in text that is a document, within that."""
    if isinstance(value, str) and value.startswith("{"):
        return json.dumps(changed(json.loads(value), data))
    if not isinstance(value, dict | list) or not value or data.draw(st.integers(0, 4)) == 0:
        return data.draw(VALUES | near(value))
    copy: Any = value.copy()
    key: Any = data.draw(
        st.sampled_from(list(copy) if isinstance(copy, dict) else range(len(copy)))
    )
    match data.draw(st.sampled_from(["change", "change", "change", "leave out", "again"])):
        case "leave out":
            del copy[key]
        case "again" if isinstance(copy, list):
            copy.insert(key, copy[key])
        case _:
            copy[key] = changed(copy[key], data)
    return copy


def near(value: Any) -> st.SearchStrategy[Any]:
    """Values like this one."""
    if isinstance(value, int):
        return st.integers(value - 2, value + 2)
    if isinstance(value, str) and " " in value:
        return st.permutations(value.split()).map(" ".join)
    return st.just(value)


@each_reader
@given(data=st.data())
@settings(max_examples=40)
def test_any_text(name: str, data: st.DataObject) -> None:
    read, _ = READERS[name]
    only_own_errors(lambda: read(data.draw(st.text(max_size=40))))
    only_own_errors(lambda: read(json.dumps(data.draw(VALUES))))


@each_reader
def test_each_document_is_valid_before_it_is_changed(name: str) -> None:
    read, _ = READERS[name]
    assert read(valid(name)) == made(name)


@each_reader
@given(data=st.data())
@settings(max_examples=150)
def test_documents_with_anything_in_some_field(name: str, data: st.DataObject) -> None:
    read, text = READERS[name][0], valid(name)
    found = only_own_errors(lambda: read(json.dumps(changed(json.loads(text), data))))
    if found is not None:
        str(found)
        repr(found)
        assert read(found.to_json()) == found


@each_reader
@given(data=st.data())
@settings(max_examples=60)
def test_documents_that_were_cut_or_mixed_up(name: str, data: st.DataObject) -> None:
    read, text = READERS[name][0], valid(name)
    start, end = sorted(data.draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    only_own_errors(lambda: read(text[:start] + data.draw(st.text(max_size=4)) + text[end:]))


@each_reader
@given(data=st.data())
@settings(max_examples=20)
def test_a_field_that_is_there_twice_is_refused(name: str, data: st.DataObject) -> None:
    read, text = READERS[name][0], valid(name)
    document = json.loads(text)
    field = data.draw(st.sampled_from(sorted(document)))
    other = json.dumps(data.draw(st.sampled_from([document[field], 7])))
    twice = f"{text.rstrip()[:-1]}, {json.dumps(field)}: {other}}}"
    with pytest.raises(ChainstayError, match=f"field '{field}' is there twice"):
        read(twice)


@each_reader
@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        '{"a":' * 200_000,
        '{"chainstay": ' + "9" * 100_000 + "}",
        '{"a": 1' + ', "a": 1' * 200_000 + "}",
        '{"chainstay": "link", "version": NaN}',
        '{"chainstay": "link", "version": 1e400}',
        "\ud800",
        "{}" + " " * 1_000_000,
    ],
    ids=["lists", "objects", "digits", "duplicates", "nan", "infinity", "surrogate", "space"],
)
def test_documents_made_to_do_harm(name: str, text: str) -> None:
    read, _ = READERS[name]
    with pytest.raises(ChainstayError):
        read(text)


@given(st.text(max_size=60) | st.from_regex(r"(\d:)?(F[nca]|[DOSP][ab]|B|T)\d{0,12}( |$)"))
def test_schedules(text: str) -> None:
    schedule = only_own_errors(lambda: Schedule.parse(text))
    if schedule is not None:
        assert Schedule.parse(str(schedule)) == schedule
        assert Schedule.from_json(schedule.to_json()) == schedule


@given(st.sampled_from(OpKind) | SCALARS, SCALARS, SCALARS)
def test_operations(kind: Any, stage: Any, branch: Any) -> None:
    op = only_own_errors(lambda: Op(kind, stage, branch))
    if op is not None:
        assert Schedule.parse(str(op)).ops == (op,)


@given(st.text(max_size=70) | st.from_regex(r"\d+(\.\d+)? ?([kKmMgGtT]i?)?[bB]?%?", fullmatch=True))
def test_sizes_and_shares(text: str) -> None:
    size, share = parse_bytes(text), parse_percentage(text)
    assert size is None or size >= 0
    assert share is None or share >= 0
    assert size is None or text.isascii(), "digits of other scripts are none"


@given(st.text(max_size=30) | st.from_regex(r"\d+[GM]?B/s(,\d+(ns|us|ms))?(,full|,half)?"))
def test_links_on_the_command_line(text: str) -> None:
    only_own_errors(lambda: parse_link(text))


@given(
    st.text(max_size=30)
    | st.from_regex(r"(torchvision|hf|timm|a\.py):[a-z0-9_]*(\?[a-z]+=.{0,9}(&[a-z]+=.{0,9})?)?")
)
def test_models_on_the_command_line(text: str) -> None:
    only_own_errors(lambda: ModelSpec.parse(text))


FIELDS: Final = ("forward_time", "backward_time", "output_bytes", "saved_bytes", "gradient_bytes")


@given(st.dictionaries(st.sampled_from((*FIELDS, "name")), VALUES))
def test_stages(fields: dict[str, Any]) -> None:
    only_own_errors(lambda: Stage(**fields))


@given(VALUES, VALUES, VALUES | st.just((_STAGE,)), VALUES)
def test_chains_of_anything(first: Any, gradient: Any, stages: Any, skips: Any) -> None:
    only_own_errors(
        lambda: ChainProfile(
            input_bytes=first, input_gradient_bytes=gradient, stages=stages, skips=skips
        )
    )


@given(VALUES, VALUES | st.just(_BARE))
def test_joins_of_anything(branches: Any, tail: Any) -> None:
    only_own_errors(lambda: JoinProfile(branches=branches, tail=tail))
    only_own_errors(lambda: JoinProfile(branches=(_BARE,), tail=tail))
    only_own_errors(
        lambda: JoinProfile.homogeneous(branches, forward_time=tail, backward_time=1, turn_time=1)
    )


@given(st.lists(VALUES, min_size=6, max_size=6))
def test_offloading_of_anything(values: list[Any]) -> None:
    names = list(OffloadProfile.__dataclass_fields__)
    only_own_errors(lambda: OffloadProfile(**dict(zip(names, values, strict=True))))


@given(VALUES | st.fractions(), VALUES | st.fractions(), VALUES, VALUES)
def test_links_of_anything(
    bandwidth: Any,
    latency: Any,
    duplex: Any,
    capacity: Any,
) -> None:
    link = only_own_errors(
        lambda: Link(bandwidth=bandwidth, latency=latency, duplex=duplex, capacity=capacity)
    )
    for made in (link, only_own_errors(lambda: Link(bandwidth=bandwidth, latency=latency))):
        if made is not None:
            assert Link.from_json(made.to_json()) == made


@given(VALUES)
def test_schedules_of_anything(ops: Any) -> None:
    only_own_errors(lambda: Schedule(ops))
    only_own_errors(lambda: Schedule.parse(ops))


@given(chains())
def test_chains_are_read_as_written(chain: ChainProfile) -> None:
    assert ChainProfile.from_json(chain.to_json()) == chain
