"""The cross-check: every method on random problems, replayed and compared with the others.

A `Suite` is one kind of problems: how an instance is drawn from its number, the methods under
test, and what their claims say about each other. The first contradiction ends a run; its problem
is made as small as it gets by methods that still contradict each other, and written down.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import permutations
from typing import Any, ClassVar, Final

from chainstay.errors import (
    ChainstayError,
    InfeasibleBudgetError,
    InvalidScheduleError,
    SolverLimitError,
)
from chainstay.problems import AnyProblem
from chainstay.problems.consistency import (
    AnyClaim,
    MethodResult,
    counter_example_json,
    disagreement,
    result_fields,
)
from chainstay.schedule import Discards
from chainstay.solution import Family, Solution
from chainstay.timetable import Transfers
from chainstay.validation.replay import replay
from chainstay.verify.processes import in_batches

_MINIMISING_SECONDS: Final = 60.0
"""Time limit for making one counter-example small, in seconds."""


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """A function as a method; what it is called tells it from others, in other processes, too."""

    name: str
    function: Callable[..., AnyClaim] = field(compare=False)

    def __str__(self) -> str:
        return self.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodUnderTest:
    """A method, what it promises, and the instances that it is run on.

    Attributes:
        method: The method.
        most_stages: Number of stages of the largest networks that it is run on.
        every: It is run on one in so many of those.
        only: Names of the restrictions of its suite that its problems must meet.
        family: The family that its schedules belong to, where nothing moves.
        discards: The rules for discards that they keep, where nothing moves.
        complete_under: Rules for discards under which, by its promise, its optimum is that of
            all schedules, on chains where `is_complete` holds; the strictest rules first.
        transfers: Transfers of the problem that it solves, where data may move.
    """

    method: Any
    most_stages: int
    every: int = 1
    only: tuple[str, ...] = ()
    family: Family = Family.ALL
    discards: Discards = Discards.TABLE1
    complete_under: tuple[Discards, ...] = ()
    transfers: Transfers | None = None

    @property
    def name(self) -> str:
        """The method, its settings, and the rules of transfers."""
        return f"{self.method}, {self.transfers}" if self.transfers else str(self.method)

    @property
    def sampling(self) -> str:
        """The instances that it is run on, in words."""
        which = "all" if self.every == 1 else f"1 in {self.every}"
        return ", ".join((which, f"n ≤ {self.most_stages}", *self.only))


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of one method about one problem.

    Attributes:
        tested: The method.
        problem: The problem, with the rules of transfers that the method solves.
        seconds: Wall time in seconds, the replay included.
        claim: The claim; None if there is none.
        required: The least budget, if the method said that nothing fits.
        solution: The claim as a solution, if the simulator confirmed it.
        refusal: Reason why the answer cannot be right, by itself; empty if there is none.
    """

    tested: MethodUnderTest
    problem: AnyProblem
    seconds: float = 0.0
    claim: AnyClaim | None = None
    required: int | None = None
    solution: Solution | None = None
    refusal: str = ""

    @property
    def result(self) -> MethodResult:
        """The answer as a result of its method."""
        return MethodResult(method=self.tested.name, claim=self.claim, required=self.required)

    def to_fields(self) -> dict[str, object]:
        """Return the answer and the replay of its schedule as JSON fields."""
        found = {**result_fields(self.result), "refusal": self.refusal}
        if self.claim is not None:
            try:
                replayed = replay(self.problem, self.claim)
            except InvalidScheduleError as error:
                found["replay"] = {"invalid": error.reason}
            else:
                span, peak = replayed.makespan, replayed.peak_bytes
                makespan = span if isinstance(span, int) else str(span)
                found["replay"] = {"makespan": makespan, "peak_bytes": peak}
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One problem with the answers of all methods that were run on it.

    Attributes:
        number: Number of the instance.
        problem: The problem.
        answers: One answer per method.
        reason: Reason why not all can be right; empty if they can.
        between: The methods whose answers cannot all be right.
    """

    number: int
    problem: AnyProblem
    answers: tuple[Answer, ...]
    reason: str
    between: tuple[MethodUnderTest, ...]

    def counter_example(self, *, seed: int) -> str:
        """Return a JSON document of the contradiction."""
        fields = [answer.to_fields() for answer in self.answers]
        problem = self.answers[0].problem if self.answers else self.problem
        return counter_example_json(self.reason, problem, fields, seed=seed, number=self.number)


@dataclass(slots=True)
class Tally:
    """Sums over the answers of one method.

    Attributes:
        instances: Number of answers.
        optimal: Number of solutions that are proved optimal.
        infeasible: Number of answers that say that nothing fits.
        worst_gap: Largest relative gap between makespan and lower bound.
        seconds: Wall time in all, in seconds.
    """

    instances: int = 0
    optimal: int = 0
    infeasible: int = 0
    worst_gap: float = 0.0
    seconds: float = 0.0

    def add(self, answer: Answer) -> None:
        """Count one more answer."""
        self.instances += 1
        self.seconds += answer.seconds
        self.infeasible += answer.required is not None
        if answer.solution is not None:
            self.optimal += answer.solution.is_optimal
            self.worst_gap = max(self.worst_gap, answer.solution.gap)


@dataclass(frozen=True)
class Suite(ABC):
    """One kind of problems, and the methods run on them.

    Attributes:
        methods: Methods that may be run.
        noun: Name of the instances, in the plural.
        names_least_budget: Whether "nothing fits" is to name the least budget of the method.
    """

    methods: tuple[MethodUnderTest, ...]
    noun: ClassVar[str]
    names_least_budget: ClassVar[bool] = True

    @abstractmethod
    def instance(self, seed: int, number: int) -> AnyProblem:
        """Return instance `number` of `seed`."""

    @abstractmethod
    def meets(self, restriction: str, problem: AnyProblem) -> bool:
        """Return whether a problem meets a restriction in `MethodUnderTest.only`."""

    def ask(self, tested: MethodUnderTest, problem: Any) -> AnyClaim:
        """Run a method and return its claim, which is not certified yet."""
        claim: AnyClaim = tested.method(problem)
        return claim

    @abstractmethod
    def certify(self, tested: MethodUnderTest, problem: AnyProblem, claim: Any) -> Solution:
        """Return the claim as a solution.

        Raises:
            CertificateError: It cannot be right, by itself.
        """

    @abstractmethod
    def covers(self, other: Answer, one: Answer) -> bool:
        """Return whether the bound or "nothing fits" of `other` holds for the claim of `one`."""

    def believed(self, answer: Answer) -> MethodResult:
        """Return what an answer says about all that it covers."""
        return answer.result

    def takes(self, tested: MethodUnderTest, number: int, problem: AnyProblem) -> bool:
        """Return whether the plan runs a method on instance `number`, which is this problem."""
        is_sampled = problem.stages <= tested.most_stages and number % tested.every == 0
        return is_sampled and all(self.meets(restriction, problem) for restriction in tested.only)

    def checks(self, numbers: Iterable[int], *, seed: int, workers: int = 1) -> Iterator[Check]:
        """Check the instances `numbers` of `seed`; the results come in their order.

        Args:
            numbers: Numbers of instances, taken a few batches ahead with several workers.
            seed: Seed of all instances.
            workers: Number of processes; with one, all is done in this one.
        """
        return in_batches(numbers, partial(self._check_numbers, seed), workers)

    def _check_numbers(self, seed: int, numbers: Sequence[int]) -> list[Check]:
        checks = []
        for number in numbers:
            try:
                checks.append(self._check(number, self.instance(seed, number), self.methods))
            except Exception as error:
                error.add_note(f"while checking instance {number} of seed {seed}")
                raise
        return checks

    def _check(self, number: int, problem: AnyProblem, methods: Sequence[MethodUnderTest]) -> Check:
        taking = [tested for tested in methods if self.takes(tested, number, problem)]
        answers = tuple(self._answer(tested, problem) for tested in taking)
        reason, between = self.find_contradiction(answers)
        return Check(
            number=number, problem=problem, answers=answers, reason=reason, between=between
        )

    def _answer(self, tested: MethodUnderTest, problem: AnyProblem) -> Answer:
        """Run a method, replay its claim, and check a least budget that it names."""
        start = time.perf_counter()
        answer = self._certified(tested, problem)
        if answer.required is not None and self.names_least_budget:
            answer = replace(answer, refusal=self._least_budget_error(answer, answer.required))
        return replace(answer, seconds=time.perf_counter() - start)

    def _certified(self, tested: MethodUnderTest, problem: AnyProblem) -> Answer:
        if tested.transfers is not None:
            problem = replace(problem, transfers=tested.transfers)  # type: ignore[arg-type]  # it has some
        answer = Answer(tested=tested, problem=problem)
        claim: AnyClaim | None = None
        try:
            claim = self.ask(tested, problem)
            solution = self.certify(tested, problem, claim)
        except InfeasibleBudgetError as infeasible:
            return replace(answer, required=infeasible.required)
        except SolverLimitError:
            return answer
        except ChainstayError as error:
            return replace(answer, claim=claim, refusal=str(error).partition("\nThis is a bug")[0])
        return replace(answer, claim=claim, solution=solution)

    def _least_budget_error(self, answer: Answer, required: int) -> str:
        """Return why the least budget that `answer` names is wrong; empty if it is right."""
        problem, name = answer.problem, answer.tested.name
        roomy = self._certified(answer.tested, replace(problem, budget=required))
        if required <= problem.budget or roomy.required is not None or roomy.refusal:
            return (
                f"{name} reports that nothing fits in {problem.budget} {problem.unit} and that "
                f"{required} {problem.unit} would do, which is wrong: "
                f"{roomy.refusal or 'it does not'}"
            )
        tight = replace(problem, budget=required - 1)
        if required > 1 and self._certified(answer.tested, tight).solution is not None:
            return (
                f"{name} reports that {required} {problem.unit} is the least budget, but "
                f"{required - 1} is enough"
            )
        return ""

    def find_contradiction(
        self, answers: Sequence[Answer]
    ) -> tuple[str, tuple[MethodUnderTest, ...]]:
        """Return the first reason why not all `answers` can be right, and the methods behind it."""
        for answer in answers:
            if answer.refusal:
                return answer.refusal, (answer.tested,)
        for one, other in permutations(answers, 2):
            if not self.covers(other, one):
                continue
            if reason := disagreement(one.result, self.believed(other), one.problem.unit):
                return reason, (one.tested, other.tested)
        return "", ()

    def minimised(self, check: Check, *, seconds: float = _MINIMISING_SECONDS) -> Check:
        """Return the same contradiction about a smallest problem, unless time ran out."""
        deadline = time.monotonic() + seconds

        def failing(problem: AnyProblem) -> Check | None:
            found = self._check(0, problem, check.between)
            return found if found.reason and time.monotonic() < deadline else None

        again = self._check(0, check.problem, check.between)  # without all who are right
        small = again if again.reason else check
        while found := next(filter(None, map(failing, small.problem.simpler())), None):
            small = found
        return replace(small, number=check.number)
