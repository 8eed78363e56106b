"""Results of several methods on one problem, and the check that they can all be right.

Two results contradict each other when one shows a schedule that the other has proved not
to exist. What a bound speaks about is its scope, so a persistent optimum may be slower than
the optimum of all schedules, but never faster. A contradiction is a bug in chainstay:
`contradiction_error` makes an error of it that carries the whole case, to be reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from types import MappingProxyType
from typing import Final

from chainstay import documents
from chainstay.errors import CertificateError
from chainstay.profiles import (
    AnyProfile,
    ChainProfile,
    HomogeneousJoin,
    JoinProfile,
    OffloadProfile,
)
from chainstay.solution import Claim, Scope

__all__ = [
    "MethodResult",
    "contradiction_between",
    "contradiction_error",
    "counter_example_json",
    "require_consistent",
    "result_fields",
]

_PROBLEMS: Final = MappingProxyType(
    {
        ChainProfile: "chain",
        HomogeneousJoin: "join",
        JoinProfile: "join",
        OffloadProfile: "offload",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodResult:
    """The result of one method on a network within a budget.

    Attributes:
        method: The method and its settings.
        schedule_scope: The class in which all schedules of the method lie.
        bound_scope: The class of schedules that its bound, or its "nothing fits", covers.
        claim: Its schedule and bound; None if it found none.
        required: The least budget in bytes, if it said that nothing fits.
    """

    method: str
    schedule_scope: Scope
    bound_scope: Scope
    claim: Claim | None = None
    required: int | None = None


def contradiction_between(one: MethodResult, other: MethodResult) -> str:
    """Return why `other` must be wrong given what `one` shows; empty if both may be right.

    The claim of `one` must have been certified: its makespan is believed here.
    """
    if not other.bound_scope.includes(one.schedule_scope):
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


def require_consistent(profile: AnyProfile, budget: int, results: Sequence[MethodResult]) -> None:
    """Compare certified `results` on one problem pairwise.

    Raises:
        CertificateError: Two of them cannot both be right.
    """
    for one, other in permutations(results, 2):
        if reason := contradiction_between(one, other):
            raise contradiction_error(reason, profile, budget, (one, other))


def contradiction_error(
    reason: str, profile: AnyProfile, budget: int, results: Sequence[MethodResult]
) -> CertificateError:
    """Return an error that says `reason` and carries the problem and all results."""
    answers = [result_fields(result) for result in results]
    report = counter_example_json(reason, profile, budget, answers)
    error = CertificateError(
        f"{reason}\nThis is a bug in chainstay: please report it with error.report, the document "
        "that holds the chain, the budget and all that was said. Meanwhile, try another method.",
        profile=profile,
        budget=budget,
        statements=tuple(results),
        report=report,
    )
    error.add_note(report)
    return error


def counter_example_json(
    reason: str,
    profile: AnyProfile,
    budget: int,
    answers: Sequence[Mapping[str, object]],
    **source: int,
) -> str:
    """Return a JSON document of a contradiction: the network, the budget and all results.

    Args:
        reason: Why the answers cannot all be right.
        profile: The network.
        budget: Bytes.
        answers: The results as JSON fields, from `result_fields`.
        source: Origin of the instance, such as its seed and number.
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


def result_fields(result: MethodResult) -> dict[str, object]:
    """Return a result as JSON fields."""
    fields: dict[str, object] = {"method": result.method}
    if result.required is not None:
        fields["required"] = result.required
    if result.claim is not None:
        claim = result.claim
        fields |= {
            "schedule": str(claim.schedule),
            "makespan": claim.makespan,
            "lower_bound": claim.lower_bound,
            "family": claim.family,
            "discards": claim.discards,
        }
    return fields
