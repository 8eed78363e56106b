"""Numbers checked batch by batch, in this process or in several."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from typing import Final, TypeVar

_Result = TypeVar("_Result")

_BATCH: Final = 8
"""Instances that a process gets at a time: about a tenth of a second's work."""
_BATCHES_AHEAD: Final = 4
"""Per process: enough that a slow instance keeps nobody else waiting."""


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
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, mp_context=fresh, initializer=_leave_ctrl_c_to_the_parent)
    pending: deque[Future[list[_Result]]] = deque()
    try:
        while (batch := list(islice(numbers, _BATCH))) or pending:
            if batch:
                pending.append(pool.submit(check_all, batch))
            if len(pending) > _BATCHES_AHEAD * workers or not batch:
                yield from pending[0].result()
                pending.popleft()
    finally:
        if pending:  # nobody waits for them any more, and a hard instance takes a minute
            for process in set(multiprocessing.active_children()) - others:
                process.terminate()  # at once, also in a solver's own code
        pool.shutdown(cancel_futures=True)


def _leave_ctrl_c_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
