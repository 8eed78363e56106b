"""The problem of offloading without recomputation: problem, claim, method and solution."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from typing import Any, ClassVar, Protocol, Self

from chainstay import documents
from chainstay.errors import (
    CertificateError,
    InfeasibleBudgetError,
    InvalidProfileError,
    InvalidSolutionError,
)
from chainstay.problems.consistency import MethodResult, contradiction_error
from chainstay.problems.problem import Problem
from chainstay.problems.simpler import smaller, with_smaller_numbers
from chainstay.profiles import Link, OffloadProfile
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.solution import Family, Solution
from chainstay.timetable import Move, Time, Timetable, Transfers, exact


@dataclass(frozen=True, slots=True)
class TransferProblem(Problem):
    """A chain on a device of limited memory beside a host, to which data may move.

    Attributes:
        link: The link to the host; its capacity counts.
        transfers: The rules by which data may move: a `Transfers`, or its name.
    """

    link: Link
    transfers: Transfers = Transfers.INTEGRAL
    moves: ClassVar[bool] = True

    @property
    def required_bytes(self) -> int:
        """The least feasible budget in bytes, if the host has room enough."""
        raise NotImplementedError

    def require_feasible(self) -> None:
        """Refuse a budget in which nothing fits, whatever is moved.

        Raises:
            InfeasibleBudgetError: ``error.required`` is the least feasible budget.
        """
        if self.budget < (required := self.required_bytes):
            raise InfeasibleBudgetError(
                budget=self.budget, required=required, stages=self.stages, family="all"
            )

    def to_fields(self) -> dict[str, object]:
        """Return the problem as JSON fields, for a counter-example."""
        own = {"transfers": self.transfers, "link": self.link.to_json()}
        return Problem.to_fields(self) | own


@dataclass(frozen=True, slots=True)
class OffloadProblem(TransferProblem):
    """A chain whose whole activations may move, and nothing runs again.

    Raises:
        InvalidProfileError: Transfers that there are not, interruptible or fractional ones
            over a link with latency or to a memory with a limit.
    """

    profile: OffloadProfile
    kind: ClassVar[str] = "offload"
    techniques: ClassVar[str] = "offloading"
    recomputes: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.transfers not in tuple(Transfers):
            known = ", ".join(map(repr, map(str, Transfers)))
            raise InvalidProfileError(f"transfers is {self.transfers!r}, must be one of {known}")
        object.__setattr__(self, "transfers", Transfers(self.transfers))
        if self.transfers is not Transfers.INTEGRAL and self.link.latency:
            raise InvalidProfileError(
                f"the link's latency is {self.link.latency}, and {self.transfers} transfers have "
                "none; use latency=0, or transfers='integral'"
            )
        if self.transfers is not Transfers.INTEGRAL and self.link.capacity is not None:
            raise InvalidProfileError(
                f"the link's capacity is {self.link.capacity} bytes, and {self.transfers} "
                "transfers know no limit on host memory; use transfers='integral'"
            )

    @property
    def required_bytes(self) -> int:
        """The least feasible budget in bytes: one stage at a time."""
        return self.profile.required_bytes

    def simpler(self) -> Iterator[Self]:
        """Yield problems with a stage less, a simpler link, or one number less."""
        profile, link = self.profile, self.link
        for i in range(len(profile) * (len(profile) > 1)):
            yield replace(self, profile=_without_stage(profile, i))
        for other in (replace(link, latency=0), replace(link, duplex="half"), Link(bandwidth=1)):
            if _weight(other) < _weight(link):
                yield replace(self, link=other)
        for budget in filter(None, smaller(self.budget)):
            yield replace(self, budget=budget)
        for other_profile in with_smaller_numbers(profile):
            yield replace(self, profile=other_profile)


def _weight(link: Link) -> tuple[int, ...]:
    """Return numbers of which simpler links have smaller ones."""
    bandwidth, latency = Fraction(link.bandwidth), Fraction(link.latency)
    terms = (bandwidth.numerator, bandwidth.denominator, latency.numerator, latency.denominator)
    return (link.is_full_duplex + sum(terms), *terms)


def _without_stage(profile: OffloadProfile, i: int) -> OffloadProfile:
    """Return the profile without stage i and its output."""
    return OffloadProfile(
        **{
            field.name: numbers[:cut] + numbers[cut + 1 :]
            for field in fields(profile)
            for numbers in [getattr(profile, field.name)]
            for cut in [i + (len(numbers) > len(profile))]
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadClaim:
    """A solver's claim about an offloading problem.

    Attributes:
        schedule: Computations, offloads and prefetches in the order in which they are issued.
        makespan: Its total time in ns, as the solver counted it.
        lower_bound: Time in ns that no schedule of `family` within the budget goes below.
        family: The schedules that `lower_bound` covers: all of the problem's transfers
            (`Family.ALL`), or those whose offloads precede all prefetches.
        timetable: Start and end of every transfer; needed where transfers are not integral.
    """

    schedule: Schedule
    makespan: Time
    lower_bound: Time
    family: Family = Family.ALL
    timetable: Timetable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadSolution(Solution):
    """A `Solution` whose schedule moves data, with the times that follow from it.

    Attributes:
        link: The link to the host.
        transfers: The rules by which activations move.
        timetable: Starts and ends of computations and transfers, as the simulator counted them.
        host_bytes: The most bytes in host memory at any time.
    """

    link: Link
    transfers: Transfers
    timetable: Timetable
    host_bytes: int = 0
    document: ClassVar[tuple[str, int]] = ("offload-solution", 2)
    techniques: ClassVar[str] = " with offloading only"

    def describe(self) -> str:
        """Return one sentence for people: `Solution.describe`, and what moves."""
        moved = sum(op.kind is OpKind.OFFLOAD_ACTIVATION for op in self.schedule)
        what = "1 activation moves" if moved == 1 else f"{moved} activations move"
        return f"{Solution.describe(self)}; {what}, {self.transfers} transfers"

    def _to_fields(self) -> dict[str, object]:
        return self._common_fields(str) | {
            "link": self.link.to_json(),
            "transfers": self.transfers,
            "host_bytes": self.host_bytes,
            "starts": [{"at": str(start)} for start in self.timetable.starts],
            "moves": [
                {"op": str(move.op), "start": str(move.start), "end": str(move.end)}
                for move in self.timetable.moves
            ],
        }

    @classmethod
    def _from_fields(cls, document: documents.Fields) -> dict[str, Any]:
        common = cls._common_attributes(document, lambda name: exact(document.rational(name)))
        return common | {
            "link": Link.from_json(document.string("link")),
            "transfers": Transfers(document.choice("transfers", Transfers)),
            "host_bytes": _host_bytes(document),
            "timetable": Timetable(
                tuple(exact(start.rational("at")) for start in document.children("starts")),
                tuple(_move(move) for move in document.children("moves")),
            ),
        }


def _host_bytes(document: documents.Fields) -> int:
    """Return the most bytes on the host, for which older documents have a list of one number."""
    if "held_bytes" not in document.values:
        return document.integer("host_bytes")
    found = document.integers("held_bytes")
    if len(found) != 1:
        raise InvalidSolutionError(
            f"solution document: field 'held_bytes' has {len(found)} numbers, must have one: what "
            "the host holds; solve again for a link to the host alone"
        )
    return found[0]


def _move(entry: documents.Fields) -> Move:
    ops: tuple[Op, ...] = Schedule.parse(entry.string("op")).ops
    if len(ops) != 1:
        raise InvalidSolutionError(f"{entry.path}: field 'op' has {len(ops)} operations, not one")
    return Move(ops[0], exact(entry.rational("start")), exact(entry.rational("end")))


def transfer_contradiction_error(
    reason: str, problem: TransferProblem, claims: Mapping[str, OffloadClaim | None]
) -> CertificateError:
    """Return the `contradiction_error` of claims by method; ``None`` for "nothing fits"."""
    results = [MethodResult(method=method, claim=claim) for method, claim in claims.items()]
    return contradiction_error(reason, problem, results)


class OffloadMethod(Protocol):
    """A method that solves offloading problems: one of ours, or your own, checked like ours.

    Raises:
        InfeasibleBudgetError: When called: nothing fits in the budget.
        SolverLimitError: When called: its limit was reached with nothing to show.
    """

    def __call__(self, problem: OffloadProblem) -> OffloadClaim:
        """Return a schedule of `problem` with its makespan and a lower bound."""
        ...
