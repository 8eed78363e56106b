"""Reader of plan files that anybody may have written: nothing in them runs or takes much memory.

A file is refused before it is parsed if it is too large, and while it is parsed if a list is
too long or a number too large for any honest plan. Then the schedule is replayed by the
simulator, which finds out whether it does what the file says.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Final

from chainstay import documents
from chainstay.documents import Fields
from chainstay.errors import ChainstayError, InvalidPlanError
from chainstay.files import read_document
from chainstay.plans.fingerprint import Fingerprint
from chainstay.plans.option_choice import OptionChoice
from chainstay.plans.plan import CUTS, KIND, VERSION, Cut, Plan
from chainstay.problems.hybrid import HybridSolution
from chainstay.problems.offload import OffloadSolution
from chainstay.profiles import (
    AnyProfile,
    ChainProfile,
    HomogeneousJoin,
    JoinProfile,
    OffloadProfile,
)
from chainstay.solution import Solution

_LARGEST_FILE: Final = 16 * 1024**2
_MOST_STAGES: Final = 4096
_MOST_OPS: Final = 400_000
_MOST_SKIP_STEPS: Final = 4_000_000
"""Limit on the number of skips times the number of stages."""
_LARGEST_NUMBER: Final = 2**60
_MOST_BITS: Final = 4096
"""Limit on the bits of the common denominator of all times of a plan."""

_PROFILES: Final[Mapping[str, Callable[[str], AnyProfile]]] = {
    "chain-profile": ChainProfile.from_json,
    "join-profile": JoinProfile.from_json,
    "homogeneous-join": HomogeneousJoin.from_json,
    "offload-profile": OffloadProfile.from_json,
}
_SOLUTIONS: Final[Mapping[str, Callable[[str], Solution]]] = {
    "solution": Solution.from_json,
    "offload-solution": OffloadSolution.from_json,
    "hybrid-solution": HybridSolution.from_json,
}


def load_plan(path: str | os.PathLike[str]) -> Plan:
    """Read a plan file, and replay its schedule.

    The file may come from anybody: reading it runs no code, and takes at most a few hundred
    megabytes. What is proved of the plan is not proved again: its bounds are the file's word.

    Args:
        path: Path of a file that `chainstay.save_plan` or ``chainstay plan`` wrote.

    Raises:
        InvalidPlanError: There is no such file, it is no plan of a version that is known, or
            its schedule does not do what it says.
        ChainstayError: A part of it is malformed: `InvalidProfileError`,
            `InvalidSolutionError` or `InvalidScheduleError`.
    """
    return read_document(path, parse_plan, most=_LARGEST_FILE, error=InvalidPlanError)


def parse_plan(text: str) -> Plan:
    """Read the text of a plan file; see `load_plan`."""
    with documents.parse(text, KIND, VERSION, InvalidPlanError) as document:
        profile = _profile(document.child("profile"))
        solution = _solution(document.child("solution"), _stages_of(profile))
        overheads = document.integers("overheads")
        if any(abs(overhead) > _LARGEST_NUMBER for overhead in overheads):
            raise InvalidPlanError(f"{KIND}: field 'overheads' must hold numbers within 2**60 of 0")
        fingerprint = document.child("fingerprint")
        return Plan(
            solution=solution,
            profile=profile,
            overheads=overheads or None,
            chain=_chain(document.child("chain")),
            keep=_keep(document),
            model=document.string("model"),
            cut=_cut(document.child("cut")),
            fingerprint=Fingerprint.from_fields(fingerprint) if fingerprint.values else None,
            choices=_choices(document),
            plain_time=_measured(document, "plain_time"),
            plain_peak=_measured(document, "plain_peak"),
        )


def parse_profile(text: str, error: type[ChainstayError]) -> AnyProfile:
    """Read the document of a profile of any kind.

    Raises:
        ChainstayError: `error`: it is no document, or of another kind; `InvalidProfileError`:
            it is malformed.
    """
    kind = documents.parse_fields(text, error).string("chainstay")
    if kind not in _PROFILES:
        raise error(f"the document is a {kind[:40]!r}, must be one of {', '.join(_PROFILES)}")
    return _PROFILES[kind](text)


def _profile(fields: Fields) -> AnyProfile:
    kind = fields.choice("chainstay", _PROFILES)
    _require_lengths(fields)
    return _PROFILES[kind](fields.text())


def _chain(fields: Fields) -> ChainProfile | None:
    if not fields.values:
        return None
    _require_lengths(fields)
    return ChainProfile.from_json(fields.text())


def _require_lengths(fields: Fields) -> None:
    """Refuse more stages, or skips of them, than can be replayed."""
    for chains in ("branches", "tail"):
        if chains in fields.values:
            for chain in fields.children(chains):
                _require_lengths(chain)
    lengths = {name: len(value) for name, value in fields.values.items() if isinstance(value, list)}
    for name, length in lengths.items():
        if name != "skips" and length > _MOST_STAGES + 1:
            raise InvalidPlanError(f"{fields.path}: {length} {name}, at most {_MOST_STAGES}")
    if lengths.get("skips", 0) * lengths.get("stages", 0) > _MOST_SKIP_STEPS:
        raise InvalidPlanError(
            f"{fields.path}: {lengths['skips']} skips of {lengths['stages']} stages are too many"
        )


def _stages_of(profile: AnyProfile) -> int:
    if len(profile) > _MOST_STAGES:
        raise InvalidPlanError(f"the plan is for {len(profile)} stages, at most {_MOST_STAGES}")
    return len(profile)


def _solution(fields: Fields, stages: int) -> Solution:
    kind = fields.choice("chainstay", _SOLUTIONS)
    inner = fields
    if kind == "hybrid-solution":
        inner = documents.parse_fields(fields.string("solution"), InvalidPlanError)
    most = min(_MOST_OPS, 4 * (stages + 2) ** 2)
    if (ops := len(inner.string("schedule").split(maxsplit=most))) > most:
        raise InvalidPlanError(
            f"{inner.path}: a schedule of {ops} operations or more, for {stages} stages at most "
            f"{most}"
        )
    for name in ("budget", "peak_bytes"):
        if not 0 <= inner.integer(name) < 2**63:
            raise InvalidPlanError(f"{inner.path}: field {name!r} must be from 0 to 2**63 - 1")
    if kind != "solution":
        _require_common_times(inner, stages)
    return _SOLUTIONS[kind](fields.text())


def _require_common_times(fields: Fields, stages: int) -> None:
    """Refuse times whose sums take ever more digits, and more of them than there can be."""
    denominator = 1
    for name, keys in (("starts", ("at",)), ("moves", ("start", "end"))):
        entries = fields.children(name)
        if len(entries) > 8 * _MOST_STAGES * (1 + stages // 64):
            raise InvalidPlanError(f"{fields.path}: {len(entries)} {name} are too many")
        for entry in entries:
            for key in keys:
                time: Fraction = entry.rational(key)
                denominator = math.lcm(denominator, time.denominator)
                if denominator.bit_length() > _MOST_BITS:
                    raise InvalidPlanError(
                        f"{fields.path}: the times of {name} have no common denominator of "
                        f"{_MOST_BITS} bits"
                    )


def _keep(document: Fields) -> tuple[bool, ...]:
    flags = document.integers("keep")
    if not set(flags) <= {0, 1}:
        raise InvalidPlanError(f"{KIND}: field 'keep' must hold a 0 or a 1 for each branch")
    return tuple(map(bool, flags))


def _choices(document: Fields) -> tuple[OptionChoice, ...]:
    """Return the options that the schedule uses; a plan without any may leave the field out."""
    if not document.has("choices"):
        return ()
    return tuple(map(OptionChoice.from_fields, document.children("choices")))


def _measured(document: Fields, name: str) -> int | None:
    """Return a number that a plan may leave out."""
    if not document.has(name):
        return None
    if not 0 < (number := document.integer(name)) <= _LARGEST_NUMBER:
        raise InvalidPlanError(f"{KIND}: field {name!r} is {number}, must be from 1 to 2**60")
    return number


def _cut(fields: Fields) -> Cut | None:
    if not fields.values:
        return None
    by, text = fields.choice("by", CUTS), fields.string("granularity")
    if text in ("fine", "blocks"):
        return Cut(by=by, granularity=text)
    if not text.isdecimal() or not text.isascii() or len(text) > 6 or int(text) < 1:
        raise InvalidPlanError(
            f"{fields.path}: field 'granularity' is {text[:20]!r}, must be 'fine', 'blocks' or a "
            "number of stages"
        )
    return Cut(by=by, granularity=int(text))
