"""Instances by number, each checked by all who are asked about it, on one core or several."""

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
from chainstay.verify.answers import Answer, Contradiction, ask, contradiction
from chainstay.verify.contestants import CONTESTANTS, Contestant

__all__ = ["Answered", "Check", "Tally", "checks", "in_batches"]

_Result = TypeVar("_Result")

_BATCH: Final = 8
"""Instances that a process gets at a time: about a tenth of a second's work."""
_BATCHES_AHEAD: Final = 4
"""Per process: enough that a slow instance keeps nobody else waiting."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One instance, checked."""

    number: int
    instance: ChainInstance
    answers: tuple[Answer, ...]
    contradiction: Contradiction | None

    @property
    def reason(self) -> str:
        """Why not all answers can be right; empty if they can."""
        return "" if self.contradiction is None else self.contradiction.reason


class Answered(Protocol):
    """What a tally counts of an answer, whatever it is about."""

    @property
    def seconds(self) -> float:
        """How long it took."""

    @property
    def required(self) -> int | None:
        """The least budget, if it said that nothing fits."""

    @property
    def solution(self) -> Solution | None:
        """Its claim, once the referee agreed."""


@dataclass(slots=True)
class Tally:
    """What the answers of one contestant add up to."""

    instances: int = 0
    optimal: int = 0
    infeasible: int = 0
    worst_gap: float = 0.0
    seconds: float = 0.0

    def add(self, answer: Answered) -> None:
        """Count one more answer."""
        self.instances += 1
        self.seconds += answer.seconds
        self.infeasible += answer.required is not None
        if answer.solution is not None:
            self.optimal += answer.solution.is_optimal
            self.worst_gap = max(self.worst_gap, answer.solution.gap)


def checks(
    numbers: Iterable[int],
    *,
    seed: int,
    contestants: Sequence[Contestant] = CONTESTANTS,
    workers: int = 1,
) -> Iterator[Check]:
    """Check the instances `numbers` of `seed`; the results come in their order.

    Args:
        numbers: Taken one by one, a few batches ahead of the results with several workers.
        seed: Of all instances.
        contestants: Who may be asked.
        workers: Processes; with one, all is done in this one.

    Example:
        >>> [check.contradiction for check in checks(range(3), seed=0)]
        [None, None, None]
    """
    yield from in_batches(numbers, partial(_check_all, seed, tuple(contestants)), workers)


def in_batches(
    numbers: Iterable[int], check_all: Callable[[Sequence[int]], list[_Result]], workers: int
) -> Iterator[_Result]:
    """What `check_all` says of `numbers`, in their order.

    Args:
        numbers: Taken one by one, a few batches ahead of the results with several workers.
        check_all: Checks some numbers; with several workers it must be picklable.
        workers: Processes, which are gone when the iterator is; with one, all is done in this.
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


def _check_all(seed: int, contestants: Sequence[Contestant], numbers: Sequence[int]) -> list[Check]:
    return [_check(number, seed, contestants) for number in numbers]


def _check(number: int, seed: int, contestants: Sequence[Contestant]) -> Check:
    instance = random_chain(seed, number)
    asked = [each for each in contestants if each.is_asked(number, instance.profile)]
    try:
        answers = tuple(ask(contestant, instance) for contestant in asked)
    except Exception as error:
        error.add_note(f"while checking instance {number} of seed {seed}")
        raise
    return Check(
        number=number,
        instance=instance,
        answers=answers,
        contradiction=contradiction(answers),
    )
