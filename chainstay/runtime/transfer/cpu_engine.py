"""The engine of the CPU: threads that copy no faster than a link would, a double of CUDA's.

There is nothing to gain from it on a machine with one memory; it runs the same transfers in
the same order, so that plans can be tried, tested and timed where there is no GPU. Bytes move
at the very end of each transfer's time: whoever reads too early, or frees too early, is wrong
for sure. With `poison`, memory is filled with NaN where a device's would be anybody's.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from chainstay.errors import PlanMismatchError
from chainstay.profiles import Link
from chainstay.runtime.transfer.engine import Ticket, Transfer
from chainstay.runtime.transfer.pool import HostPool, Slot

DOUBLE_LINK: Final = Link.from_bytes_per_second(2_000_000_000, latency_ns=100_000)
"""What the double pretends to be where nothing else is asked for."""

_POISON: Final = 0xFF  # NaN in every floating-point type


Copies = list[tuple[torch.Tensor, torch.Tensor]]
"""Destination first."""


class CopyTicket:
    """A ticket of this engine; it is set when the copies have ended, or failed.

    The thread that copies holds what it moves by its ticket alone: whoever has waited, or said
    `forget`, is the last to let device memory go, as on a device.
    """

    __slots__ = ("_copies", "_lock", "ended", "error")

    def __init__(self, copies: Copies) -> None:
        self._copies = copies
        self._lock = threading.RLock()  # garbage may be collected, and forgotten, in the middle
        self.ended = threading.Event()
        self.error: BaseException | None = None

    @property
    def size(self) -> int:
        """Bytes still to be copied."""
        with self._lock:
            return sum(source.nbytes for _, source in self._copies)

    def copy(self) -> None:
        """Make all copies that nobody has forgotten."""
        with self._lock:
            if self._copies:
                # At once: each call lets go of Python's lock, and computing waits to get it back.
                destinations, sources = zip(*self._copies, strict=True)
                torch._foreach_copy_(destinations, sources)

    def end(self) -> None:
        """Nobody need wait any more."""
        with self._lock:
            self._copies.clear()
        self.ended.set()

    def forget(self, memory: torch.Tensor) -> None:
        """Do not copy from or to `memory`; returns when nobody does."""
        with self._lock:
            self._copies[:] = [
                copy for copy in self._copies if not any(memory is one for one in copy)
            ]


@dataclass(slots=True)
class _Job:
    """Copies to be made."""

    ticket: CopyTicket
    after: list[CopyTicket]
    seconds: float
    given: float = field(default_factory=time.perf_counter)


class CopyingEngine:
    """Copies within one memory at a link's pace.

    Args:
        link: Its bandwidth in bytes per ns; half duplex is one thread, full duplex two.
        host_budget: Bytes for what is away.
        poison: Fill freed memory, memory that nothing has arrived in yet and slots given back
            with NaN. Memory that somebody else holds too is left alone.
        beside: A pool of such memory to share with.

    Attributes:
        stalled: Seconds that the computation has waited.
    """

    least_bytes: int = 0

    def __init__(
        self,
        link: Link,
        *,
        host_budget: int | None = None,
        poison: bool = False,
        beside: HostPool | None = None,
    ) -> None:
        self.device = torch.device("cpu")
        self.pool = HostPool(_unseen_memory, lambda size: (size,), host_budget, beside)
        self.link = link
        self.stalled = 0.0
        self._poison = poison
        self._out = _Copier("offload")
        self._back = _Copier("prefetch") if link.is_full_duplex else self._out
        self._finalizer = weakref.finalize(self, _stop, {self._out, self._back})

    def __deepcopy__(self, memo: object) -> CopyingEngine:
        return CopyingEngine(self.link, host_budget=self.pool.limit, poison=self._poison)

    def send(self, transfers: Sequence[Transfer]) -> CopyTicket:
        """Start sending; see `Engine`."""
        after = [slot.after for _, slot in transfers if isinstance(slot.after, CopyTicket)]
        copies = [pair for memory, slot in transfers for pair in slot.beside(memory)]
        return self._start(self._out, copies, after)

    def fetch(self, transfers: Sequence[Transfer], sent: Ticket) -> CopyTicket:
        """Start fetching; see `Engine`."""
        copies = [pair[::-1] for memory, slot in transfers for pair in slot.beside(memory)]
        if self._poison:
            for memory, _ in transfers:
                memory.fill_(_POISON)
        return self._start(self._back, copies, [_own(sent)])

    def wait(self, ticket: Ticket) -> None:
        """Wait until the copies of `ticket` have ended; see `Engine`."""
        own = _own(ticket)
        if not own.ended.is_set():
            begin = time.perf_counter()
            own.ended.wait()
            self.stalled += time.perf_counter() - begin
        if own.error is not None:
            raise _again(own.error)

    def forget(self, memory: torch.Tensor, ticket: Ticket, *, is_target: bool) -> None:  # noqa: ARG002  # as `Engine`
        """Forget `memory`, which the thread that copies may still hold; see `Engine`."""
        _own(ticket).forget(memory)

    def freed(self, memory: torch.Tensor) -> None:
        """Overwrite freed memory if that is asked for; see `Engine`."""
        if self._poison and _is_ours_alone(memory):
            memory.fill_(_POISON)

    def give_back(self, slot: Slot, after: Ticket | None) -> None:
        """Give host memory back to the pool; see `Engine`."""
        if self._poison and (after is None or _own(after).ended.is_set()):
            for piece in slot.pieces:
                piece.fill_(_POISON)
        self.pool.give(slot, after)

    def close(self) -> None:
        """Stop the threads and empty the pool; see `Engine`."""
        self._finalizer()
        self.pool.close()

    def _start(self, copier: _Copier, copies: Copies, after: list[CopyTicket]) -> CopyTicket:
        size = sum(source.nbytes for _, source in copies)
        seconds = float(self.link.transfer_time(size)) / 1e9 if size else 0.0
        job = _Job(CopyTicket(copies), after, seconds)
        copier.put(job)
        return job.ticket


class _Copier:
    """A thread that does one job after another; it starts with the first."""

    def __init__(self, name: str) -> None:
        self._name = f"chainstay {name}"
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._current: _Job | None = None
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self._free_at = 0.0
        self._seconds_per_byte = 0.0

    def put(self, job: _Job) -> None:
        with self._changed:
            if self._is_closed:
                raise PlanMismatchError("this plan was closed; make another to go on training")
            if self._thread is None or not self._thread.is_alive():
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            self._jobs.append(job)
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread; jobs not begun fail."""
        with self._changed:
            self._is_closed = True
            self._abandon(
                PlanMismatchError(
                    "the plan was closed while saved tensors were on their way; run the backward "
                    "first"
                )
            )
            self._changed.notify_all()
            thread = self._thread
        if thread not in (None, threading.current_thread()):
            thread.join()

    def _run(self) -> None:
        try:
            while self._begin():
                self._finish()
        except BaseException as killed:  # noqa: BLE001  # or those who wait would do so for ever
            with self._changed:
                self._thread = None  # the next job starts another
                if self._current is not None:
                    self._jobs.appendleft(self._current)
                    self._current = None
                self._abandon(_ended_by(killed))

    def _begin(self) -> bool:
        """Wait for a job; false at the end."""
        with self._changed:
            while not self._jobs and not self._is_closed:
                self._changed.wait()
            if self._is_closed:
                return False
            self._current = self._jobs.popleft()
            return True

    def _finish(self) -> None:
        job = self._current
        assert job is not None, "it has begun"
        try:
            self._do(job)
        except Exception as error:  # noqa: BLE001  # raised where somebody waits for it
            job.ticket.error = error.with_traceback(None)  # whose frames hold what was copied
        self._current = None
        job.ticket.end()

    def _abandon(self, error: Exception) -> None:
        """All jobs in line fail; the lock is held."""
        abandoned, self._jobs = self._jobs, deque()
        for job in abandoned:
            job.ticket.error = error
            job.ticket.end()

    def _do(self, job: _Job) -> None:
        ready = job.given
        for ticket in job.after:
            if not ticket.ended.is_set():
                ticket.ended.wait()
                ready = time.perf_counter()
        deadline = max(ready, self._free_at) + job.seconds
        size = job.ticket.size
        pause = deadline - size * self._seconds_per_byte - time.perf_counter()
        if pause > 0:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed, pause)
        begin = time.perf_counter()
        job.ticket.copy()
        end = time.perf_counter()
        if size > _LARGE:
            self._seconds_per_byte = (end - begin) / size
        self._free_at = max(deadline, end)


_LARGE: Final = 2**20
"""Bytes from which a copy tells how long a byte takes."""


def _own(ticket: Ticket) -> CopyTicket:
    assert isinstance(ticket, CopyTicket), "tickets come from the engine that gets them"
    return ticket


def _stop(copiers: set[_Copier]) -> None:
    for copier in copiers:
        copier.stop()


def _again(error: BaseException) -> BaseException:
    """A twin to be raised: tickets live long, and what is raised holds the frames it is seen in."""
    twin = type(error).__new__(type(error), *error.args)
    vars(twin).update(vars(error))
    twin.__cause__ = error.__cause__
    return twin


def _ended_by(killed: BaseException) -> RuntimeError:
    """Return the error for waiters of a dead thread; its own reason might end theirs, too."""
    error = RuntimeError(
        f"the thread that moves saved tensors ended ({type(killed).__name__}); run the step again"
    )
    error.__cause__ = killed.with_traceback(None)
    return error


def _unseen_memory(size: int) -> torch.Tensor:
    """Memory that torch's allocator, this double's device, knows nothing about."""
    return torch.frombuffer(bytearray(size), dtype=torch.uint8)


def _is_ours_alone(memory: torch.Tensor) -> bool:
    storage = memory.untyped_storage()
    held: int = torch._C._storage_Use_Count(storage._cdata)  # noqa: SLF001  # no public way
    return held <= _OURS


_OURS: Final = 2
"""Holders of a storage: our tensor, and the object that asks."""
