"""Results of several methods on one problem, and the check that they can all be right.

Two results contradict each other when one shows a schedule that the other has proved not
to exist. What a bound speaks about is its scope, so a persistent optimum may be slower than
the optimum of all schedules, but never faster. A contradiction is a bug of a method:
`contradiction_error` makes an error of it that carries the whole case, to be reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final, Protocol

from chainstay import documents
from chainstay.errors import CertificateError
from chainstay.problems.problem import Problem
from chainstay.schedule import Discards, Schedule
from chainstay.solution import Family, Scope
from chainstay.timetable import Time

_ALL: Final = Scope(Family.ALL, Discards.FREE)


class AnyClaim(Protocol):
    """The part of a solver's claim that those about all kinds of problems have."""

    @property
    def schedule(self) -> Schedule:
        """The schedule."""

    @property
    def makespan(self) -> Time:
        """Its time in ns, as the solver counted it."""

    @property
    def lower_bound(self) -> Time:
        """Time in ns that no schedule of `family` within the budget goes below."""

    @property
    def family(self) -> Family:
        """The schedules that the bound covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodResult:
    """The result of a method on a problem.

    Attributes:
        method: The method and its settings.
        schedule_scope: The class in which all schedules of the method lie.
        bound_scope: The class of schedules that its bound, or its "nothing fits", covers.
        claim: Its schedule and bound; None if it found none.
        required: The least budget, if it said that nothing fits.
    """

    method: str
    schedule_scope: Scope = _ALL
    bound_scope: Scope = _ALL
    claim: AnyClaim | None = None
    required: int | None = None


def disagreement(one: MethodResult, other: MethodResult, unit: str) -> str:
    """Return why `other` must be wrong given what `one` shows; empty if both may be right.

    Args:
        one: A result whose claim was certified: its makespan is believed here.
        other: A result whose bound, or "nothing fits", covers the schedules of `one`.
        unit: The unit of memory.
    """
    fits = one.claim is not None or one.required is not None
    if other.required is not None and fits and (one.required or 0) < other.required:
        shown = f"for {one.required}"
        if one.claim is not None:
            shown = f"that does, of {one.claim.makespan} ns"
        return (
            f"{other.method} says that nothing fits in less than {other.required} {unit}, and "
            f"{one.method} has a schedule {shown}"
        )
    if one.claim and other.claim and one.claim.makespan < other.claim.lower_bound:
        return (
            f"{other.method} says that nothing is faster than {other.claim.lower_bound} ns, and "
            f"{one.method} has a schedule of {one.claim.makespan} ns"
        )
    return ""


def require_consistent(problem: Problem, results: Sequence[MethodResult]) -> None:
    """Compare certified `results` on one problem pairwise.

    Raises:
        CertificateError: Two of them cannot both be right.
    """
    for one, other in permutations(results, 2):
        is_covered = other.bound_scope.includes(one.schedule_scope)
        if is_covered and (reason := disagreement(one, other, problem.unit)):
            raise contradiction_error(reason, problem, (one, other))


def contradiction_error(
    reason: str, problem: Problem, results: Sequence[MethodResult]
) -> CertificateError:
    """Return an error that says `reason` and carries the problem and all results."""
    report = counter_example_json(reason, problem, list(map(result_fields, results)))
    error = CertificateError(
        f"{reason}\nA method of your own is wrong then; else this is a bug in chainstay: please "
        f"report it with error.report, the document that holds the {problem.network}, the budget "
        "and all that was said. Meanwhile, try another method.",
        profile=problem.profile,
        budget=problem.budget,
        statements=tuple(results),
        report=report,
    )
    error.add_note(report)
    return error


def counter_example_json(
    reason: str, problem: Problem, answers: Sequence[Mapping[str, object]], **source: int
) -> str:
    """Return a JSON document of a contradiction: the problem and all results.

    Args:
        reason: Why the answers cannot all be right.
        problem: The problem.
        answers: The results as JSON fields, from `result_fields`.
        source: Origin of the instance, such as its seed and number.
    """
    body = {**problem.to_fields(), "reason": reason, **source, "answers": answers}
    return documents.dump("counter-example", 1, body)


def result_fields(result: MethodResult) -> dict[str, object]:
    """Return a result as JSON fields."""
    found: dict[str, object] = {"method": result.method}
    if result.required is not None:
        found["required"] = result.required
    if (claim := result.claim) is not None:
        found["schedule"] = str(claim.schedule)
        for name in ("makespan", "lower_bound"):
            time: Time = getattr(claim, name)
            found[name] = time if isinstance(time, int) else str(time)
        for name in ("family", "discards", "timetable"):
            if getattr(claim, name, None) is not None:
                found[name] = str(getattr(claim, name))
    return found
