"""One instance, checked with all methods: shared by joins and problems with transfers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final, Generic, Protocol, TypeVar

from chainstay.errors import ChainstayError, InfeasibleBudgetError, SolverLimitError
from chainstay.problems.offload import OffloadSolution
from chainstay.solution import Solution
from chainstay.timetable import Transfers

__all__ = [
    "MINIMISING_SECONDS",
    "CrossCheck",
    "TransferAnswer",
    "TransferMethodUnderTest",
    "minimised_check",
    "required_budget_error",
    "run_and_certify",
]

_Method = TypeVar("_Method")
_Tested = TypeVar("_Tested")
_Claim = TypeVar("_Claim")
_Solution = TypeVar("_Solution", bound=OffloadSolution)
_Instance = TypeVar("_Instance")
_Answer = TypeVar("_Answer")

MINIMISING_SECONDS: Final = 60.0
"""Time limit for making one counter-example small, in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferMethodUnderTest(Generic[_Method]):
    """A method and the instances that it is run on.

    Attributes:
        method: The method.
        transfers: Transfers of the problem that it solves.
        most_stages: Length of the longest chains that it is run on.
        every: It is run on one in so many of those.
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
    def base_sampling(self) -> str:
        """The chains that it is run on, in words."""
        which = "all" if self.every == 1 else f"1 in {self.every}"
        return f"{which}, n ≤ {self.most_stages}"

    @property
    def sampling(self) -> str:
        """The instances that it is run on, in words."""
        return self.base_sampling

    def is_sampled(self, number: int, stages: int) -> bool:
        """Return whether the plan runs this method on instance `number` of so many stages."""
        return stages <= self.most_stages and number % self.every == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferAnswer(Generic[_Tested, _Claim, _Solution]):
    """The answer of one method about one instance.

    Attributes:
        tested: The method.
        seconds: Wall time in seconds, its replay included.
        claim: The claim; None if there is none.
        required: The least budget in bytes, if it said that nothing fits.
        solution: The claim as a solution, if the simulator confirmed it.
        refusal: Reason why the answer cannot be right, by itself; empty if there is none.
    """

    tested: _Tested
    seconds: float = 0.0
    claim: _Claim | None = None
    required: int | None = None
    solution: _Solution | None = None
    refusal: str = ""


def run_and_certify(
    tested: _Tested,
    ask: Callable[[], _Claim],
    certify: Callable[[_Claim], _Solution],
    refuse: Callable[[_Solution], str] = lambda _: "",
) -> TransferAnswer[_Tested, _Claim, _Solution]:
    """Run a method, replay its claim, and look for what `refuse` finds wrong with it."""
    start = time.perf_counter()
    claim: _Claim | None = None
    answer: TransferAnswer[_Tested, _Claim, _Solution] = TransferAnswer(tested=tested)
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


class RequiredBudgetAnswer(Protocol):
    """The part of an answer that concerns a least budget."""

    @property
    def required(self) -> int | None:
        """The least budget, if the method said that nothing fits."""

    @property
    def solution(self) -> Solution | None:
        """The claim as a solution, if the simulator confirmed it."""

    @property
    def refusal(self) -> str:
        """The reason why the answer cannot be right, by itself."""


def required_budget_error(
    answer: RequiredBudgetAnswer,
    name: str,
    budget: int,
    answer_at: Callable[[int], RequiredBudgetAnswer],
) -> str:
    """Return why the least budget that `answer` names is wrong; empty if it is right or not named.

    Args:
        answer: The answer at `budget`.
        name: Name of the method.
        budget: Bytes or slots.
        answer_at: Function from another budget to the method's answer.
    """
    if (required := answer.required) is None:
        return answer.refusal
    roomy = answer_at(required)
    if required <= budget or roomy.required is not None or roomy.refusal:
        return (
            f"{name} reports that nothing fits in {budget} and that {required} would do, which "
            f"is wrong: {roomy.refusal or 'it does not'}"
        )
    if required > 1 and answer_at(required - 1).solution is not None:
        return f"{name} reports that {required} is the least budget, but {required - 1} is enough"
    return answer.refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCheck(Generic[_Instance, _Answer, _Tested]):
    """One instance with the answers of all methods that were run on it.

    Attributes:
        number: Number of the instance.
        instance: The instance.
        answers: One answer per method.
        reason: Reason why not all can be right; empty if they can.
        between: The methods whose answers cannot all be right.
    """

    number: int
    instance: _Instance
    answers: tuple[_Answer, ...]
    reason: str = ""
    between: tuple[_Tested, ...] = ()


def minimised_check(
    check: CrossCheck[_Instance, _Answer, _Tested],
    simpler: Callable[[_Instance], Iterable[_Instance]],
    again: Callable[[_Instance], CrossCheck[_Instance, _Answer, _Tested]],
    seconds: float,
) -> CrossCheck[_Instance, _Answer, _Tested]:
    """Return the same contradiction on a smallest instance, unless time ran out.

    Args:
        check: A check with a contradiction.
        simpler: Function that yields instances a little simpler than one.
        again: Function that runs the methods that disagreed on another instance.
        seconds: Time limit.
    """
    deadline = time.monotonic() + seconds

    def failing(instance: _Instance) -> CrossCheck[_Instance, _Answer, _Tested] | None:
        found = again(instance)
        return found if found.reason and time.monotonic() < deadline else None

    small = check
    while found := next(filter(None, map(failing, simpler(small.instance))), None):
        small = replace(found, number=check.number)
    return small
