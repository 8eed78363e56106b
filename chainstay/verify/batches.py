"""Instances by number, each checked with all methods that take it, on one core or several."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final, Protocol, TypeVar

from chainstay.instances import ChainInstance, random_chain
from chainstay.solution import Solution
from chainstay.verify.chain_answers import (
    CheckedAnswer,
    Contradiction,
    check_method,
    find_contradiction,
)
from chainstay.verify.chain_methods import TESTED_METHODS, MethodUnderTest

__all__ = ["ChainCheck", "CountedAnswer", "Tally", "chain_checks", "in_batches"]

_Result = TypeVar("_Result")

_BATCH: Final = 8
"""Instances that a process gets at a time: about a tenth of a second's work."""
_BATCHES_AHEAD: Final = 4
"""Per process: enough that a slow instance keeps nobody else waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainCheck:
    """One chain with the answers of all methods that were run on it.

    Attributes:
        number: Number of the instance.
        instance: The chain and its budget.
        answers: One answer per method.
        contradiction: The first contradiction among the answers; None if there is none.
    """

    number: int
    instance: ChainInstance
    answers: tuple[CheckedAnswer, ...]
    contradiction: Contradiction | None

    @property
    def reason(self) -> str:
        """The reason why not all answers can be right; empty if they can."""
        return "" if self.contradiction is None else self.contradiction.reason


class CountedAnswer(Protocol):
    """The part of an answer that a tally counts, for any kind of instance."""

    @property
    def seconds(self) -> float:
        """Wall time of the method, in seconds."""

    @property
    def required(self) -> int | None:
        """The least budget, if the method said that nothing fits."""

    @property
    def solution(self) -> Solution | None:
        """The claim as a solution, if the simulator confirmed it."""


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

    def add(self, answer: CountedAnswer) -> None:
        """Count one more answer."""
        self.instances += 1
        self.seconds += answer.seconds
        self.infeasible += answer.required is not None
        if answer.solution is not None:
            self.optimal += answer.solution.is_optimal
            self.worst_gap = max(self.worst_gap, answer.solution.gap)


def chain_checks(
    numbers: Iterable[int],
    *,
    seed: int,
    methods: Sequence[MethodUnderTest] = TESTED_METHODS,
    workers: int = 1,
) -> Iterator[ChainCheck]:
    """Check the chains `numbers` of `seed`; the results come in their order.

    Args:
        numbers: Numbers of instances, taken a few batches ahead with several workers.
        seed: Seed of all instances.
        methods: Methods that may be run.
        workers: Number of processes; with one, all is done in this one.

    Example:
        >>> [check.contradiction for check in chain_checks(range(3), seed=0)]
        [None, None, None]
    """
    yield from in_batches(numbers, partial(_check_all, seed, tuple(methods)), workers)


def in_batches(
    numbers: Iterable[int], check_all: Callable[[Sequence[int]], list[_Result]], workers: int
) -> Iterator[_Result]:
    """Yield the results of `check_all` for `numbers`, in their order.

    Args:
        numbers: Numbers of instances, taken a few batches ahead with several workers.
        check_all: Function that checks some numbers; with several workers it must be picklable.
        workers: Number of processes, which end with the iterator; with one, all is done in this.
    """
    if workers > 1:
        yield from _checked_by_many(iter(numbers), check_all, workers)
    else:
        for number in numbers:
            yield from check_all([number])


def _checked_by_many(
    numbers: Iterator[int], check_all: Callable[[Sequence[int]], list[_Result]], workers: int
) -> Iterator[_Result]:
    # Fresh processes: solvers have threads, and a fork would copy their locks.
    fresh = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=fresh, initializer=_leave_ctrl_c_to_the_parent)
    pending: deque[Future[list[_Result]]] = deque()
    try:
        while (batch := list(islice(numbers, _BATCH))) or pending:
            if batch:
                pending.append(pool.submit(check_all, batch))
            if len(pending) > _BATCHES_AHEAD * workers or not batch:
                yield from pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _check_all(
    seed: int, methods: Sequence[MethodUnderTest], numbers: Sequence[int]
) -> list[ChainCheck]:
    return [_check(number, seed, methods) for number in numbers]


def _check(number: int, seed: int, methods: Sequence[MethodUnderTest]) -> ChainCheck:
    instance = random_chain(seed, number)
    taking = [tested for tested in methods if tested.takes(number, instance.profile)]
    try:
        answers = tuple(check_method(tested, instance) for tested in taking)
    except Exception as error:
        error.add_note(f"while checking instance {number} of seed {seed}")
        raise
    return ChainCheck(
        number=number,
        instance=instance,
        answers=answers,
        contradiction=find_contradiction(answers),
    )
