"""One instance, asked all round: what verifying joins and problems with transfers shares."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeVar

from chainstay.errors import ChainstayError, InfeasibleBudgetError, SolverLimitError
from chainstay.offloading import OffloadSolution
from chainstay.solution import Solution
from chainstay.timetable import Transfers

__all__ = [
    "MINIMISING_SECONDS",
    "Round",
    "TransferAnswer",
    "TransferContestant",
    "answered",
    "held_to_required",
    "minimised_round",
]

_Method = TypeVar("_Method")
_Contestant = TypeVar("_Contestant")
_Claim = TypeVar("_Claim")
_Solution = TypeVar("_Solution", bound=OffloadSolution)
_Instance = TypeVar("_Instance")
_Answer = TypeVar("_Answer")

MINIMISING_SECONDS: Final = 60.0
"""For making one counter-example small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferContestant(Generic[_Method]):
    """A method and which instances it is asked about.

    Attributes:
        method: To ask.
        transfers: Of the problem that it is asked.
        most_stages: It gets chains of at most this length.
        every: Of those, one in so many.
    """

    method: _Method
    transfers: Transfers
    most_stages: int
    every: int = 1

    @property
    def name(self) -> str:
        """The method, its settings, and the model of transfers."""
        return f"{self.method}, {self.transfers}"

    @property
    def sample(self) -> str:
        """Of the chains, which ones it is asked about, in words."""
        which = "all" if self.every == 1 else f"1 in {self.every}"
        return f"{which}, n ≤ {self.most_stages}"

    @property
    def plan(self) -> str:
        """Which instances it is asked about, in words."""
        return self.sample

    def is_in_plan(self, number: int, stages: int) -> bool:
        """Whether the plan has this method for instance `number` of so many stages."""
        return stages <= self.most_stages and number % self.every == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferAnswer(Generic[_Contestant, _Claim, _Solution]):
    """What one contestant said to one instance.

    Attributes:
        contestant: Who.
        seconds: How long it took, its replay included.
        claim: Its claim, if any.
        required: The least budget, if it said that nothing fits.
        solution: Its claim, once the referee agreed.
        refusal: Why the answer cannot be right, by itself.
    """

    contestant: _Contestant
    seconds: float = 0.0
    claim: _Claim | None = None
    required: int | None = None
    solution: _Solution | None = None
    refusal: str = ""


def answered(
    contestant: _Contestant,
    ask: Callable[[], _Claim],
    certify: Callable[[_Claim], _Solution],
    refuse: Callable[[_Solution], str] = lambda _: "",
) -> TransferAnswer[_Contestant, _Claim, _Solution]:
    """Ask, replay the claim, and look for what `refuse` finds wrong with it."""
    start = time.perf_counter()
    claim: _Claim | None = None
    answer: TransferAnswer[_Contestant, _Claim, _Solution] = TransferAnswer(contestant=contestant)
    try:
        claim = ask()
        solution = certify(claim)
        answer = replace(answer, claim=claim, solution=solution, refusal=refuse(solution))
    except InfeasibleBudgetError as infeasible:
        answer = replace(answer, required=infeasible.required)
    except SolverLimitError:
        pass
    except ChainstayError as error:
        answer = replace(answer, claim=claim, refusal=str(error))
    return replace(answer, seconds=time.perf_counter() - start)


class _Judged(Protocol):
    """An answer, as far as a least budget is concerned."""

    @property
    def required(self) -> int | None:
        """The least budget, if it said that nothing fits."""

    @property
    def solution(self) -> Solution | None:
        """Its claim, once the referee agreed."""

    @property
    def refusal(self) -> str:
        """Why the answer cannot be right, by itself."""


def held_to_required(
    answer: _Judged, name: str, budget: int, judged: Callable[[int], _Judged]
) -> str:
    """Why the least budget that `answer` names is none; empty if it is, or none was named.

    Args:
        answer: At `budget`.
        name: Of the contestant.
        budget: Bytes or slots.
        judged: Its answer at another budget.
    """
    if (required := answer.required) is None:
        return answer.refusal
    roomy = judged(required)
    if required <= budget or roomy.required is not None or roomy.refusal:
        return (
            f"{name}: nothing fits in {budget}, it says, and {required} would do, which is not "
            f"so {roomy.refusal}"
        )
    if required > 1 and judged(required - 1).solution is not None:
        return f"{name}: less than that fits, too"
    return answer.refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class Round(Generic[_Instance, _Answer, _Contestant]):
    """One instance, checked.

    Attributes:
        number: Of the instance.
        instance: What was asked about.
        answers: Of all who were asked.
        reason: Why not all can be right; empty if they can.
        between: Who gave the answers that cannot.
    """

    number: int
    instance: _Instance
    answers: tuple[_Answer, ...]
    reason: str = ""
    between: tuple[_Contestant, ...] = ()


def minimised_round(
    check: Round[_Instance, _Answer, _Contestant],
    simpler: Callable[[_Instance], Iterable[_Instance]],
    again: Callable[[_Instance], Round[_Instance, _Answer, _Contestant]],
    seconds: float,
) -> Round[_Instance, _Answer, _Contestant]:
    """The same contradiction on a smallest instance, unless time ran out.

    Args:
        check: With a contradiction.
        simpler: Instances a little simpler than one.
        again: Asks those who disagreed about another instance.
        seconds: Until it gives up.
    """
    deadline = time.monotonic() + seconds

    def failing(instance: _Instance) -> Round[_Instance, _Answer, _Contestant] | None:
        found = again(instance)
        return found if found.reason and time.monotonic() < deadline else None

    small = check
    while found := next(filter(None, map(failing, simpler(small.instance))), None):
        small = replace(found, number=check.number)
    return small
