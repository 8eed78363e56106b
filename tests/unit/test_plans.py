"""Plan files: what is written is read, and whatever else anybody writes is refused by name."""

from __future__ import annotations

import copy
import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chainstay import (
    ChainProfile,
    ChainstayError,
    InvalidPlanError,
    InvalidProfileError,
    InvalidScheduleError,
    InvalidSolutionError,
    JoinProfile,
    Link,
    OffloadProfile,
    Plan,
    Skip,
    Solution,
    Stage,
    load_plan,
    solve_chain,
    solve_hybrid,
    solve_join,
    solve_offload,
)
from chainstay.plans import Cut, Fingerprint, parse_plan
from chainstay.plans.parser import parse_profile
from chainstay.profiles import AnyProfile

STAGE = Stage(
    name="s", forward_time=3, backward_time=5, output_bytes=10, saved_bytes=30, gradient_bytes=10
)
CHAIN = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(STAGE,) * 5)
SHORT = replace(CHAIN, stages=(STAGE,) * 3)
"""CP-SAT proves the optimum of this chain at once; with CHAIN it runs into its time limit."""
WITH_SKIP = ChainProfile(
    input_bytes=10,
    input_gradient_bytes=0,
    stages=(STAGE,) * 5,
    skips=(Skip(first=1, last=3, bytes=4),),
)
LINK = Link(bandwidth=Fraction(7, 2))
FINGERPRINT = Fingerprint(
    modules={"": "M()", "a": "Linear(in=1)"},
    parameters={"a.weight": "(1, 1) float32"},
    buffers={},
    training={"": "training"},
    call={"args[0]": "(1, 1) float32"},
    stages={"0 (a)": "abc"},
    setting={"torch": "2"},
)


def joined() -> JoinProfile:
    tower = ChainProfile(input_bytes=10, input_gradient_bytes=0, stages=(STAGE,) * 3)
    loss = Stage(forward_time=1, backward_time=1)
    tail = ChainProfile(input_bytes=20, input_gradient_bytes=20, stages=(loss,))
    return JoinProfile(branches=(tower, tower), tail=tail)


def every_kind() -> dict[str, Plan]:
    """One plan of each kind of solution."""
    offloaded = OffloadProfile.from_chain(CHAIN)
    slots = JoinProfile.homogeneous((2, 3), forward_time=1, backward_time=1, turn_time=1)

    def plan(solution: Solution, profile: AnyProfile, **more: Any) -> Plan:
        return Plan(solution=solution, profile=profile, **more)

    chain = solve_chain(CHAIN, 100, method="dp")
    joint = solve_join(joined(), 140)
    return {
        "chain": plan(
            chain, CHAIN, model="m", cut=Cut(by="graph", granularity=7), fingerprint=FINGERPRINT
        ),
        "overheads": plan(chain, CHAIN, overheads=(0,) * len(chain.schedule)),
        "skips": plan(solve_chain(WITH_SKIP, 110, method="dp"), WITH_SKIP),
        "offload": plan(solve_offload(offloaded, 100, link=LINK), offloaded, chain=CHAIN),
        "fractional": plan(
            solve_offload(offloaded, 100, link=LINK, transfers="fractional"), offloaded
        ),
        "hybrid": plan(solve_hybrid(SHORT, 80, link=LINK), SHORT),
        "fractional hybrid": plan(
            solve_hybrid(CHAIN, 100, link=LINK, transfers="fractional"), CHAIN
        ),
        "join": plan(joint, joined()),
        "join with overheads": plan(joint, joined(), overheads=(0,) * len(joint.schedule)),
        "model of a join": plan(
            joint,
            joined(),
            model="m",
            cut=Cut(by="join", granularity="blocks"),
            fingerprint=FINGERPRINT,
        ),
        "kept": plan(solve_join(joined(), 150, keep=(True, False)), joined(), keep=(True, False)),
        "slots": plan(solve_join(slots, 5), slots),
    }


PLANS = every_kind()


@pytest.mark.parametrize("kind", PLANS)
def test_what_is_written_is_read(kind: str, tmp_path: Path) -> None:
    plan = PLANS[kind]
    plan.save(tmp_path / "plan.json")
    found = load_plan(tmp_path / "plan.json")
    assert found == plan
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_a_plan_for_any_budget_is_read() -> None:
    plan = Plan(solution=solve_chain(CHAIN, 2**63 - 1), profile=CHAIN)
    assert parse_plan(plan.to_json()) == plan


def test_plain_training_is_written_where_it_was_measured(tmp_path: Path) -> None:
    plan = replace(PLANS["chain"], plain_time=7, plain_peak=9)
    plan.save(tmp_path / "plan.json")
    found = load_plan(tmp_path / "plan.json")
    assert (found.plain_time, found.plain_peak) == (7, 9)


def test_files_of_others_are_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    for text, message in (
        ("", "plan document: not JSON"),
        ('{"a": 1}', "field 'chainstay' is missing; chainstay did not write it"),
        (changed("chain", put([1], "overheads")), "1 overheads for"),
    ):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(InvalidPlanError, match=f"mine.json: .*{message}"):
            load_plan(path)


def changed(kind: str, change: Callable[[Any], None]) -> str:
    document = json.loads(PLANS[kind].to_json())
    change(document)
    return json.dumps(document)


def put(value: object, *path: str | int) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        *inner, last = path
        for key in inner:
            document = document[key]
        document[last] = value

    return change


SOLUTION = json.loads(PLANS["chain"].to_json())["solution"]
SPAN, PEAK = SOLUTION["makespan"], SOLUTION["peak_bytes"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            put("soup", "chainstay"),
            InvalidPlanError,
            "is a 'soup', must be a 'plan'; make one by `chainstay plan`",
        ),
        (put(2, "version"), InvalidPlanError, "'version' is 2; this chainstay reads version 3"),
        (put([], "solution"), InvalidPlanError, r"plan.solution: a JSON object .* not \[\]"),
        (put("x", "solution", "chainstay"), InvalidPlanError, "'x', must be one of solution, off"),
        (put("y", "profile", "chainstay"), InvalidPlanError, "'y', must be one of chain-profile"),
        (put(-1, "profile", "stages", 0, "saved_bytes"), InvalidProfileError, "saved_bytes is -1"),
        (put(1.5, "profile", "stages", 0, "saved_bytes"), InvalidProfileError, "a whole number"),
        (put(SPAN - 1, "solution", "makespan"), InvalidSolutionError, "lower_bound is"),
        (put(SPAN + 1, "solution", "makespan"), InvalidPlanError, f"takes {SPAN + 1} ns; replayed"),
        (put(PEAK - 1, "solution", "peak_bytes"), InvalidPlanError, f"needs {PEAK - 1} bytes"),
        (put(PEAK - 1, "solution", "budget"), InvalidSolutionError, f"budget of {PEAK - 1}"),
        (put(2**63, "solution", "budget"), InvalidPlanError, r"'budget' must be from 0 to 2\*\*63"),
        (put("Fa0 B0", "solution", "schedule"), InvalidScheduleError, "needs"),
        (put("Fa0 rm B0", "solution", "schedule"), InvalidScheduleError, "'rm' is not an operat"),
        (put("T " * 200, "solution", "schedule"), InvalidPlanError, "197 operations or more"),
        (put([1], "overheads"), InvalidPlanError, "1 overheads for"),
        (
            put([-(2**61)] * 10, "overheads"),
            InvalidPlanError,
            "'overheads' must hold numbers within",
        ),
        (put(0, "plain_time"), InvalidPlanError, "'plain_time' is 0, must be from 1"),
        (put("x", "plain_peak"), InvalidPlanError, "'plain_peak' is 'x', must be a whole number"),
        (put([2], "keep"), InvalidPlanError, "'keep' must hold a 0 or a 1"),
        (put("pickle", "cut", "by"), InvalidPlanError, "'pickle', must be one of graph, blocks"),
        (put("0", "cut", "granularity"), InvalidPlanError, "'granularity' is '0', must be 'fine'"),
        (put({}, "fingerprint", "call"), None, ""),
        (
            put({"a": 1}, "fingerprint", "call"),
            InvalidPlanError,
            "field 'a' is 1, must be a string",
        ),
        (put(7, "fingerprint", "modules"), InvalidPlanError, "a JSON object was expected, not 7"),
    ],
)
def test_what_is_wrong_is_refused_by_name(
    change: Callable[[Any], None], error: type[ChainstayError] | None, message: str
) -> None:
    text = changed("chain", change)
    if error is None:
        parse_plan(text)
        return
    with pytest.raises(error, match=message):
        parse_plan(text)


def test_overheads_are_replayed_in_bytes_and_one_for_each_operation() -> None:
    document = json.loads(PLANS["join with overheads"].to_json())
    count, peak = len(document["overheads"]), document["solution"]["peak_bytes"]
    text = changed("join with overheads", put([peak] * count, "overheads"))
    with pytest.raises(InvalidPlanError, match=f"needs {peak} bytes; replayed, it needs"):
        parse_plan(text)
    with pytest.raises(InvalidPlanError, match=f"1 overheads for {count} operations"):
        parse_plan(changed("join with overheads", put([0], "overheads")))
    chain = json.loads(CHAIN.to_json())
    document |= {"overheads": [0], "chain": chain}
    with pytest.raises(InvalidPlanError, match=f"1 overheads for {count} operations"):
        parse_plan(json.dumps(document))
    with pytest.raises(InvalidPlanError, match="overheads in bytes, and its join has slots"):
        parse_plan(changed("slots", put([0], "overheads")))


def test_a_solution_belongs_to_its_profile() -> None:
    text = changed("chain", put(json.loads(PLANS["offload"].to_json())["profile"], "profile"))
    with pytest.raises(InvalidPlanError, match="a Solution is no solution of an OffloadProfile"):
        parse_plan(text)


def test_times_without_a_common_denominator_are_refused_unsummed() -> None:
    primes = [n for n in range(2, 4000) if all(n % k for k in range(2, int(n**0.5) + 1))]
    moves = [{"op": "Oa0", "start": f"1/{p}", "end": f"1/{p}"} for p in primes]
    with pytest.raises(InvalidPlanError, match="no common denominator of 4096 bits"):
        parse_plan(changed("offload", put(moves, "solution", "moves")))


def too_long(kind: str) -> str:  # noqa: PLR0911
    """A document of modest size that would take much to hold or to replay."""
    stage = json.loads(CHAIN.to_json())["stages"][0]
    match kind:
        case "stages":
            return changed("chain", put([stage] * 5000, "profile", "stages"))
        case "skips":
            skip = {"first": 0, "last": 1, "bytes": 0, "gradient_bytes": 0}
            return changed("chain", put([skip] * 900_000, "profile", "skips"))
        case "steps":
            return changed("slots", put([10**9], "profile", "lengths"))
        case "operations":
            return changed("chain", put("Fa0 " * 2_000_000, "solution", "schedule"))
        case "digits":
            return changed("chain", put(0, "solution", "makespan")).replace(
                '"makespan": 0', '"makespan": ' + "9" * 100_000
            )
        case "nesting":
            return '{"chainstay":' + "[" * 200_000 + "]" * 200_000 + "}"
    return '{"chainstay": "plan", "x": [' + "[]," * 5_000_000 + "[]]}"


@pytest.mark.parametrize(
    "kind", ["stages", "skips", "steps", "operations", "digits", "nesting", "values"]
)
def test_nothing_takes_long_to_refuse(kind: str) -> None:
    text = too_long(kind)
    start = time.process_time()
    with pytest.raises(ChainstayError):
        parse_plan(text)
    assert time.process_time() - start < 10, "bounded work: without limits it is minutes and more"


def test_files_that_are_no_text_or_too_large_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(InvalidPlanError, match="No such file"):
        load_plan(path)
    with pytest.raises(InvalidPlanError, match="Is a directory"):
        load_plan(tmp_path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidPlanError, match="no UTF-8 text"):
        load_plan(path)
    with path.open("wb") as file:
        file.truncate(17 * 1024**2)
    with pytest.raises(InvalidPlanError, match="larger than 16777216 bytes"):
        load_plan(path)
    with pytest.raises(InvalidPlanError, match="larger than 16777216 bytes"):
        load_plan("/dev/zero")


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.sampled_from(["", "1/0", "7/3", "-1", "free", "T", "Fa0", "Oa99", "\ud800", "\x1b[2J"]),
    st.text(max_size=5),
    st.lists(st.integers(-2, 3), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def nodes(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside."""
    found = [path] if path else []
    items: Any = ()
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list):
        items = enumerate(document)
    for key, value in items:
        found += nodes(value, (*path, key))
    return found


DOCUMENTS = {kind: json.loads(plan.to_json()) for kind, plan in PLANS.items()}
PATHS = {kind: nodes(document) for kind, document in DOCUMENTS.items()}


def mutated(document: Any, path: tuple[Any, ...], how: str, value: object) -> None:
    *inner, last = path
    for key in inner:
        document = document[key]
    if how == "delete":
        del document[last]
    elif how == "replace":
        document[last] = value
    elif how == "repeat" and isinstance(document, list):
        document.insert(last, document[last])
    elif how == "nudge" and isinstance(document[last], int):
        document[last] += 1
    elif how == "nudge" and isinstance(document[last], str):
        if document[last].startswith("{"):  # a document in a document
            inside = json.loads(document[last])
            mutated(inside, nodes(inside)[len(inner) % len(nodes(inside))], "replace", value)
            document[last] = json.dumps(inside)
            return
        words = document[last].split(" ")
        random.Random(len(words)).shuffle(words)
        document[last] = " ".join(words)


@pytest.mark.long
@settings(max_examples=600)
@given(data=st.data())
def test_mutated_plans_raise_nothing_but_errors_of_ours(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(PLANS)))
    document = copy.deepcopy(DOCUMENTS[kind])
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(PATHS[kind]))
        how = data.draw(st.sampled_from(["delete", "replace", "repeat", "nudge"]))
        with suppress(KeyError, IndexError, TypeError):  # an earlier one took it away
            mutated(document, path, how, data.draw(VALUES))
    try:
        plan = parse_plan(json.dumps(document))
    except ChainstayError:
        return
    assert plan.replay().makespan == plan.solution.makespan
    assert plan.replay().peak_bytes <= plan.solution.peak_bytes <= plan.solution.budget
    plan.solution.describe()
    assert parse_plan(plan.to_json()) == plan


@settings(max_examples=200)
@given(data=st.data())
def test_mutated_text_raises_nothing_but_errors_of_ours(data: st.DataObject) -> None:
    text = PLANS[data.draw(st.sampled_from(sorted(PLANS)))].to_json()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 20)))
    inserted = data.draw(st.sampled_from(["", "0", "-", '"', "[", "}", "\\", "NaN", "e9", ","]))
    with suppress(ChainstayError):
        parse_plan(text[:start] + inserted + text[end:])


@given(text=st.text(max_size=40))
def test_any_text_is_a_profile_or_refused(text: str) -> None:
    with pytest.raises(ChainstayError):
        parse_profile(text, InvalidPlanError)


def test_profiles_of_all_kinds_are_read() -> None:
    for plan in PLANS.values():
        assert parse_profile(plan.profile.to_json(), InvalidPlanError) == plan.profile
    with pytest.raises(InvalidPlanError, match="the document is a 'plan', must be one of chain-p"):
        parse_profile(PLANS["chain"].to_json(), InvalidPlanError)


def test_differences_are_named_and_long_lists_counted() -> None:
    other = Fingerprint(
        **{**FINGERPRINT.to_fields(), "setting": {"torch": "3", "device": "cpu"}, "buffers": {}}
    )
    assert FINGERPRINT.differences(FINGERPRINT) == ()
    assert FINGERPRINT.differences(other) == (
        "torch: is 3, in the plan 2",
        "device: is cpu, the plan has none",
    )
    listing = Fingerprint.listing(tuple(map(str, range(10))))
    assert listing.splitlines()[-1] == "  and 2 more"
    assert len(listing.splitlines()) == 9


def test_other_stages_count_only_if_nothing_else_differs() -> None:
    fields = FINGERPRINT.to_fields()
    stages = Fingerprint(**{**fields, "stages": {"0 (a)": "other"}})
    assert FINGERPRINT.differences(stages) == ("stage 0 (a): is other, in the plan abc",)
    both = Fingerprint(**{**fields, "stages": {}, "parameters": {}})
    assert FINGERPRINT.differences(both) == (
        "parameter a.weight: is not there, in the plan it is (1, 1) float32",
    )
