"""The problem of offloading without recomputation: problem, claim, method and solution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Protocol, Self

from chainstay import documents
from chainstay.errors import (
    CertificateError,
    InfeasibleBudgetError,
    InvalidProfileError,
    InvalidSolutionError,
)
from chainstay.profiles import ChainProfile, Link, OffloadProfile
from chainstay.schedule import Op, OpKind, Schedule
from chainstay.solution import Family, Solution
from chainstay.timetable import Move, Time, Timetable, Transfers, exact

__all__ = [
    "OffloadClaim",
    "OffloadMethod",
    "OffloadProblem",
    "OffloadSolution",
    "TransferProblem",
    "transfer_contradiction_error",
    "transfer_counter_example_json",
]

_KIND: Final = "offload-solution"
_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class OffloadProblem:
    """A chain on a device of limited memory beside a host.

    Attributes:
        profile: Costs of n stages.
        budget: Bytes on the device.
        link: The link to the host; its capacity counts.
        transfers: The rules by which activations may move: a `Transfers`, or its name.

    Raises:
        InvalidProfileError: Transfers that there are not, interruptible or fractional ones
            over a link with latency or to a memory with a limit, or a link of two levels.
    """

    profile: OffloadProfile
    budget: int
    link: Link
    transfers: Transfers = Transfers.INTEGRAL

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
        if self.link.beyond is not None:
            raise InvalidProfileError(
                "offloading whole activations supports one memory behind the link, and this link "
                "has a second; use solve_hybrid, or leave beyond out"
            )

    def require_feasible(self) -> None:
        """Refuse a budget in which not even one stage fits at a time.

        Raises:
            InfeasibleBudgetError: ``error.required`` is the least feasible budget.
        """
        if self.budget < (required := self.profile.required_bytes):
            raise InfeasibleBudgetError(
                budget=self.budget, required=required, stages=len(self.profile), family="all"
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
        held_bytes: The most bytes behind each link at any time, the host's first.
    """

    link: Link
    transfers: Transfers
    timetable: Timetable
    held_bytes: tuple[int, ...] = (0,)

    @property
    def host_bytes(self) -> int:
        """The most bytes in host memory at any time."""
        return self.held_bytes[0]

    def describe(self) -> str:
        """Return one sentence for people: `Solution.describe`, and what moves."""
        moved = sum(op.kind is OpKind.OFFLOAD_ACTIVATION for op in self.schedule)
        return f"{Solution.describe(self)}; {moved} activations move, {self.transfers} transfers"

    def to_json(self) -> str:
        """Return the solution as a JSON document; `from_json` gives an equal solution back."""
        body = {
            "schedule": str(self.schedule),
            "makespan": str(self.makespan),
            "peak_bytes": self.peak_bytes,
            "budget": self.budget,
            "lower_bound": str(self.lower_bound),
            "unrestricted_bound": str(self.unrestricted_bound),
            "family": self.family,
            "method": self.method,
            "solve_seconds": self.solve_seconds,
            "link": self.link.to_json(),
            "transfers": self.transfers,
            "held_bytes": list(self.held_bytes),
            "starts": [{"at": str(start)} for start in self.timetable.starts],
            "moves": [
                {"op": str(move.op), "start": str(move.start), "end": str(move.end)}
                for move in self.timetable.moves
            ],
        }
        return documents.dump(_KIND, _VERSION, body)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read the document that `to_json` writes. Nothing in it is believed: replay it before use.

        Raises:
            InvalidSolutionError: Malformed, of another kind or version, or contradictory.
            InvalidScheduleError: Its schedule does not parse.
            InvalidProfileError: Its link is none.
        """
        document = documents.parse(text, _KIND, _VERSION, InvalidSolutionError)
        return cls(
            schedule=Schedule.parse(document.string("schedule")),
            makespan=exact(document.rational("makespan")),
            peak_bytes=document.integer("peak_bytes"),
            budget=document.integer("budget"),
            lower_bound=exact(document.rational("lower_bound")),
            unrestricted_bound=exact(document.rational("unrestricted_bound")),
            family=Family(document.choice("family", Family)),
            method=document.string("method"),
            solve_seconds=document.number("solve_seconds"),
            link=Link.from_json(document.string("link")),
            transfers=Transfers(document.choice("transfers", Transfers)),
            held_bytes=document.integers("held_bytes"),
            timetable=Timetable(
                tuple(exact(start.rational("at")) for start in document.children("starts")),
                tuple(_move(move) for move in document.children("moves")),
            ),
        )


def _move(fields: documents.Fields) -> Move:
    ops: tuple[Op, ...] = Schedule.parse(fields.string("op")).ops
    if len(ops) != 1:
        raise InvalidSolutionError(f"{fields.path}: field 'op' has {len(ops)} operations, not one")
    start, end = (Fraction(fields.rational(name)) for name in ("start", "end"))
    return Move(ops[0], exact(start), exact(end))


class TransferProblem(Protocol):
    """The fields that `OffloadProblem` and `HybridProblem` have in common."""

    @property
    def profile(self) -> OffloadProfile | ChainProfile:
        """Costs of the chain."""

    @property
    def budget(self) -> int:
        """Bytes on the device."""

    @property
    def link(self) -> Link:
        """The link to the host."""

    @property
    def transfers(self) -> Transfers:
        """The rules by which data may move."""


def transfer_contradiction_error(
    reason: str, problem: TransferProblem, claims: Mapping[str, OffloadClaim | None]
) -> CertificateError:
    """Return an error that says `reason` and carries the problem and what each method said.

    Args:
        reason: Why not all of it can be right.
        problem: The problem that the methods solved.
        claims: The claims by method; ``None`` for "nothing fits".
    """
    report = transfer_counter_example_json(reason, problem, claims)
    error = CertificateError(
        f"{reason}\nThis is a bug in chainstay: please report it with error.report, the document "
        "that holds the problem and all that was said. Meanwhile, try another method.",
        profile=problem.profile,
        budget=problem.budget,
        statements=tuple(claims.items()),
        report=report,
    )
    error.add_note(report)
    return error


def transfer_counter_example_json(
    reason: str,
    problem: TransferProblem,
    claims: Mapping[str, OffloadClaim | None],
    **source: int,
) -> str:
    """Return a JSON document of a contradiction: the problem and what each method said.

    Args:
        reason: Why not all of it can be right.
        problem: The problem that the methods solved.
        claims: The claims by method; ``None`` for "nothing fits".
        source: Origin of the instance, such as its seed and number.
    """
    answers = [
        {"method": method, "claim": None if claim is None else _claim_fields(claim)}
        for method, claim in claims.items()
    ]
    body = {
        "problem": "offload" if isinstance(problem, OffloadProblem) else "hybrid",
        "reason": reason,
        **source,
        "budget": problem.budget,
        "transfers": problem.transfers,
        "link": problem.link.to_json(),
        "profile": problem.profile.to_json(),
        "answers": answers,
    }
    return documents.dump("counter-example", 1, body)


def _claim_fields(claim: OffloadClaim) -> dict[str, str]:
    return {
        "schedule": str(claim.schedule),
        "makespan": str(claim.makespan),
        "lower_bound": str(claim.lower_bound),
        "family": claim.family,
        "timetable": str(claim.timetable),
    }


class OffloadMethod(Protocol):
    """A method that solves offloading problems: one of ours, or your own, checked like ours.

    Raises:
        InfeasibleBudgetError: When called: nothing fits in the budget.
        SolverLimitError: When called: its limit was reached with nothing to show.
    """

    def __call__(self, problem: OffloadProblem) -> OffloadClaim:
        """Return a schedule of `problem` with its makespan and a lower bound."""
        ...
