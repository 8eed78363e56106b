"""Numbers checked batch by batch, in this process or in several."""

from __future__ import annotations

import multiprocessing
import signal
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing.process import BaseProcess
from typing import Final, TypeVar

_Result = TypeVar("_Result")

_BATCH: Final = 8
"""Instances that a process gets at a time: about a tenth of a second's work."""
_BATCHES_AHEAD: Final = 4
"""Per process: enough that a slow instance keeps nobody else waiting."""
_PATIENCE_S: Final = 4.0
"""Time for processes to end by themselves: a solver's own code hears no signal."""


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
    pool = ProcessPoolExecutor(workers, mp_context=fresh, initializer=_obey_the_parent)
    pending: deque[Future[list[_Result]]] = deque()
    try:
        while (batch := list(islice(numbers, _BATCH))) or pending:
            if batch:
                pending.append(pool.submit(check_all, batch))
            if len(pending) > _BATCHES_AHEAD * workers or not batch:
                yield from pending.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        if pending:  # nobody waits for them any more, and a hard instance takes a minute
            _stop(set(multiprocessing.active_children()) - others)
        pool.shutdown()


def _stop(processes: Iterable[BaseProcess]) -> None:
    """End processes: by an exception in what they do, or by force where that takes long."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + _PATIENCE_S
    for process in processes:
        process.join(max(deadline - time.monotonic(), 0))
        if process.is_alive():
            process.kill()


def _obey_the_parent() -> None:
    """Leave Ctrl-C to the parent, which ends this process's work by SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
