"""What methods say about one problem, and when they cannot all be right.

Two statements contradict each other when one shows a schedule that the other has proved not
to exist. What a bound speaks about is its scope, so a persistent optimum may be slower than
the optimum of all schedules, but never faster. A contradiction is a bug in chainstay:
`contradiction` makes an error of it that carries the whole case, to be reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType
from typing import Final, TypeAlias

from chainstay import documents
from chainstay.errors import CertificateError
from chainstay.profiles import ChainProfile, HomogeneousJoin, JoinProfile, OffloadProfile
from chainstay.solution import Claim, Scope

__all__ = [
    "Profile",
    "Statement",
    "confront",
    "contradiction",
    "counter_example",
    "disproof",
    "statement_fields",
]

Profile: TypeAlias = ChainProfile | HomogeneousJoin | JoinProfile | OffloadProfile
"""What a problem is about."""

_PROBLEMS: Final = MappingProxyType(
    {
        ChainProfile: "chain",
        HomogeneousJoin: "join",
        JoinProfile: "join",
        OffloadProfile: "offload",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """What a method said about a network within a budget.

    Attributes:
        method: The method and its settings.
        finds: Where all its schedules lie.
        covers: The schedules of which its bound, or its "nothing fits", speaks.
        claim: Its schedule and bound, if it had any.
        required: The least budget in bytes, if it said that nothing fits.
    """

    method: str
    finds: Scope
    covers: Scope
    claim: Claim | None = None
    required: int | None = None


def disproof(one: Statement, other: Statement) -> str:
    """Why `other` is wrong if `one` shows what it says; empty if both may be right.

    The claim of `one` must have been certified: its makespan is believed here.
    """
    if not other.covers.includes(one.finds):
        return ""
    if one.claim and other.required is not None:
        return (
            f"{other.method} says that nothing fits in less than {other.required} bytes, and "
            f"{one.method} has a schedule that does, of {one.claim.makespan} ns"
        )
    if one.claim and other.claim and one.claim.makespan < other.claim.lower_bound:
        return (
            f"{other.method} says that nothing is faster than {other.claim.lower_bound} ns, and "
            f"{one.method} has a schedule of {one.claim.makespan} ns"
        )
    if one.required is not None and other.required is not None and one.required < other.required:
        return (
            f"{other.method} says that nothing fits in less than {other.required} bytes, and "
            f"{one.method} has a schedule for {one.required}"
        )
    return ""


def confront(profile: Profile, budget: int, statements: Sequence[Statement]) -> None:
    """Hold certified `statements` about one problem against each other.

    Raises:
        CertificateError: Two of them cannot both be right.
    """
    for one, other in permutations(statements, 2):
        if reason := disproof(one, other):
            raise contradiction(reason, profile, budget, (one, other))


def contradiction(
    reason: str, profile: Profile, budget: int, statements: Sequence[Statement]
) -> CertificateError:
    """The error that says `reason` and carries the problem and all that was said about it."""
    said = [statement_fields(statement) for statement in statements]
    report = counter_example(reason, profile, budget, said)
    error = CertificateError(
        f"{reason}\nThis is a bug in chainstay: please report it with error.report, the document "
        "that holds the chain, the budget and all that was said. Meanwhile, try another method.",
        profile=profile,
        budget=budget,
        statements=tuple(statements),
        report=report,
    )
    error.add_note(report)
    return error


def counter_example(
    reason: str,
    profile: Profile,
    budget: int,
    answers: Sequence[Mapping[str, object]],
    **source: int,
) -> str:
    """A JSON document of a contradiction: the network, the budget and all that was said.

    Args:
        reason: Why the answers cannot all be right.
        profile: The network.
        budget: Bytes.
        answers: As `statement_fields`.
        source: Where the instance comes from, such as its seed and number.
    """
    body = {
        "problem": _PROBLEMS[type(profile)],
        "reason": reason,
        **source,
        "budget": budget,
        "profile": profile.to_json(),
        "answers": answers,
    }
    return documents.dump("counter-example", 1, body)


def statement_fields(statement: Statement) -> dict[str, object]:
    """A statement, for a document."""
    fields: dict[str, object] = {"method": statement.method}
    if statement.required is not None:
        fields["required"] = statement.required
    if statement.claim is not None:
        claim = statement.claim
        fields |= {
            "schedule": str(claim.schedule),
            "makespan": claim.makespan,
            "lower_bound": claim.lower_bound,
            "family": claim.family,
            "discards": claim.discards,
        }
    return fields
