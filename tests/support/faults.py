"""Faults in the middle of a training step, and what must hold after each of them.

A trial breaks one step of one model at one point. Afterwards

- every buffer is as before the step, or as a whole plain step leaves it, never anything else;
- parameters are untouched, random numbers go on from where the forward left them;
- the next step gives the same bits as plain training from the same state.

`wrong_after` says which of these do not hold.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from chainstay.errors import HostBudgetError
from chainstay.runtime.stage.chain_stage import ChainStage
from chainstay.runtime.stage.states import State
from chainstay.runtime.transfer.cpu_engine import _Copier
from fault_subjects import Subject

__all__ = [
    "FAULTS",
    "Fault",
    "InterruptionError",
    "restart",
    "settle",
    "trial",
    "unlike",
    "wrong_after",
]

_SEED: Final = 11


class InterruptionError(Exception):
    """Nobody else raises or catches it."""


@dataclass
class Counter:
    """Counts events; the one of number `at` raises.

    Attributes:
        at: ``None`` to count only.
        make: What to raise.
        count: Events so far.
    """

    at: int | None
    make: Callable[[], BaseException] = lambda: InterruptionError("on purpose")
    count: int = 0
    has_fired: bool = field(default=False)

    def event(self) -> None:
        """One more."""
        self.count += 1
        if self.at is not None and self.count == self.at + 1:
            self.has_fired = True
            raise self.make()


Inject = Callable[[Subject, Counter], AbstractContextManager[object]]


@dataclass(frozen=True)
class Fault:
    """A kind of fault.

    Attributes:
        name: For people.
        inject: A context in which the counter's events are those at which it may happen.
        make: What is raised then.
        needs_engine: It happens to transfers only.
        is_sent: The exception is sent to another thread.
    """

    name: str
    inject: Inject
    make: Callable[[], BaseException] = lambda: InterruptionError("on purpose")
    needs_engine: bool = False
    is_sent: bool = False

    def points(self, subject: Subject) -> int:
        """At how many places of a step it can happen."""
        counter = Counter(None)
        restart(subject)
        torch.manual_seed(_SEED)
        with self.inject(subject, counter):
            loss = subject.sample.loss(subject.planned)
            loss.backward()
        return counter.count


class _Operators(TorchDispatchMode):
    """Every operator is an event, before it runs.

    A fitted model refuses to run under modes but for torch's own, which only look on. So does this.
    """

    __module__ = "torch.utils.faults"

    def __init__(self, counter: Counter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self._counter = counter

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],  # as torch calls it
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self._counter.event()
        return func(*args, **(kwargs or {}))


@contextmanager
def _operations(_: Subject, counter: Counter) -> Iterator[None]:
    """Every operation of the schedule is two events: forwards at both ends, backwards at first."""
    plain = ChainStage.__call__

    def called(stage: ChainStage, state: State, shared: State = ()) -> State:
        counter.event()
        output = plain(stage, state, shared)
        for tensor in output:
            if tensor.requires_grad and all(tensor is not given for given in state):
                tensor.register_hook(lambda _: counter.event())
        counter.event()
        return output

    ChainStage.__call__ = called  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        ChainStage.__call__ = plain  # type: ignore[method-assign]


@contextmanager
def _replaced(owner: object, name: str, function: Callable[..., object]) -> Iterator[None]:
    """An attribute of an object is another one inside."""
    setattr(owner, name, function)
    try:
        yield
    finally:
        delattr(owner, name)


@contextmanager
def _of_engine(subject: Subject, counter: Counter) -> Iterator[None]:
    """Every order to the engine is an event: to send, to fetch, to wait."""
    engine: Any = subject.engine

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*args: object) -> object:
            counter.event()
            return function(*args)

        return call

    with (
        _replaced(engine, "send", counted(engine.send)),
        _replaced(engine, "fetch", counted(engine.fetch)),
        _replaced(engine, "wait", counted(engine.wait)),
    ):
        yield


@contextmanager
def _of_pool(subject: Subject, counter: Counter) -> Iterator[None]:
    """Every slot that is asked for is an event."""
    pool: Any = subject.engine and subject.engine.pool
    take = pool.take

    def counted(size: int) -> object:
        counter.event()
        return take(size)

    with _replaced(pool, "take", counted):
        yield


@contextmanager
def _of_host(subject: Subject, counter: Counter) -> Iterator[None]:
    """Every allocation of host memory is an event; nothing is left of earlier ones."""
    pool: Any = subject.engine and subject.engine.pool
    allocate = pool._allocate
    while pool._let_one_go():
        pass

    def counted(size: int) -> object:
        counter.event()
        return allocate(size)

    pool._allocate = counted
    try:
        yield
    finally:
        pool._allocate = allocate


@contextmanager
def _of_copies(subject: Subject, counter: Counter) -> Iterator[None]:
    """Every job of a copier is an event, in its thread."""
    engine: Any = subject.engine
    for copier in {engine._out, engine._back}:
        plain = copier._do

        def counted(job: object, plain: Callable[[object], None] = plain) -> None:
            counter.event()
            plain(job)

        copier._do = counted
    try:
        yield
    finally:
        for copier in {engine._out, engine._back}:
            del copier._do


@contextmanager
def _of_copiers(subject: Subject, counter: Counter) -> Iterator[None]:
    """Every job given to a copier is an event, upon which its thread is killed."""
    engine: Any = subject.engine
    for copier in {engine._out, engine._back}:
        plain = copier.put

        def counted(
            job: object, copier: _Copier = copier, plain: Callable[[object], None] = plain
        ) -> None:
            try:
                counter.event()
            except SystemExit:
                _kill(copier._thread)
            plain(job)

        copier.put = counted
    try:
        yield
    finally:
        for copier in {engine._out, engine._back}:
            del copier.put


def _kill(thread: threading.Thread | None) -> None:
    """Raise SystemExit wherever `thread` is, as soon as it runs Python again."""
    if thread is not None and thread.ident is not None:
        identity = ctypes.c_ulong(thread.ident)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(identity, ctypes.py_object(SystemExit))


def _host_budget() -> HostBudgetError:
    return HostBudgetError(budget=1, required=2, is_least=False)


def _out_of_memory() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("on purpose")


def _operators(_: Subject, counter: Counter) -> AbstractContextManager[object]:
    return _Operators(counter)


FAULTS: Final = (
    Fault("an operation of the schedule fails", _operations),
    Fault("an operator fails", _operators),
    Fault("an operator finds no memory", _operators, _out_of_memory),
    Fault("Ctrl-C at an operator", _operators, KeyboardInterrupt),
    Fault("an order to the engine fails", _of_engine, needs_engine=True),
    Fault("the host's memory is full", _of_pool, _host_budget, needs_engine=True),
    Fault("the host has no memory", _of_host, MemoryError, needs_engine=True),
    Fault("a copy fails", _of_copies, needs_engine=True),
    Fault("a copier's thread dies in a job", _of_copies, SystemExit, needs_engine=True),
    Fault("a copier's thread is killed", _of_copiers, SystemExit, needs_engine=True, is_sent=True),
)


def step(model: nn.Module, subject: Subject) -> torch.Tensor:
    """Forward and backward from the seed; gradients are added to."""
    torch.manual_seed(_SEED)
    loss = subject.sample.loss(model)
    loss.backward()
    return loss.detach()


def trial(subject: Subject, fault: Fault, at: int) -> list[str]:
    """Break a step at a point; what is wrong afterwards, in words."""
    restart(subject)
    expected = _Whole.of(subject)
    parameters = {
        name: parameter.detach().clone() for name, parameter in subject.planned.named_parameters()
    }
    counter = Counter(at, fault.make)
    torch.manual_seed(_SEED)
    is_forward = True
    try:
        with fault.inject(subject, counter):
            loss = subject.sample.loss(subject.planned)
            is_forward = False
            loss.backward()
    except BaseException as error:  # noqa: BLE001  # whatever it was, it is looked at
        wrong = _unexpected(error, fault)
    else:
        wrong = [] if counter.has_fired else ["nothing happened"]
    for name, parameter in subject.planned.named_parameters():
        if not torch.equal(parameter, parameters[name]):
            wrong.append(f"parameter {name} changed")
    for name, buffer in subject.planned.named_buffers():
        if not any(
            torch.equal(buffer, values[name]) for values in (subject.initial, expected.buffers)
        ):
            wrong.append(f"buffer {name} is neither that before nor that after a step")
    if not is_forward and not torch.equal(torch.get_rng_state(), expected.random):
        wrong.append("random numbers go on from elsewhere")
    return wrong + wrong_after(subject)


def _unexpected(error: BaseException, fault: Fault) -> list[str]:
    """What is wrong with what was raised: a thread's error may come as a refusal that says so."""
    expected = type(fault.make())
    text = f"{type(error).__name__}: {error}"
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, expected) or "thread" in str(found):
            return []
        found = found.__cause__ or found.__context__
    return [f"raised {text[:200]}"]


@dataclass(frozen=True)
class _Whole:
    """What a whole plain step leaves."""

    buffers: dict[str, torch.Tensor]
    random: torch.Tensor

    @classmethod
    def of(cls, subject: Subject) -> _Whole:
        subject.plain.load_state_dict(subject.initial)
        step(subject.plain, subject)
        buffers = {name: buffer.clone() for name, buffer in subject.plain.named_buffers()}
        return cls(buffers, torch.get_rng_state())


def restart(subject: Subject) -> None:
    for model in (subject.plain, subject.planned):
        model.load_state_dict(subject.initial)
        model.zero_grad()


def wrong_after(subject: Subject) -> list[str]:
    """In what the next step is not plain training's from the state that the model is in now."""
    subject.plain.load_state_dict(subject.planned.state_dict())
    records = []
    for model in (subject.plain, subject.planned):
        model.zero_grad()
        try:
            loss = step(model, subject)
        except Exception as error:  # noqa: BLE001  # none may be raised
            return [f"the next step raised {type(error).__name__}: {str(error)[:200]}"]
        found = {"the loss": loss, "random numbers": torch.get_rng_state()}
        for name, parameter in model.named_parameters():
            if parameter.grad is not None:
                found[f"the gradient of {name}"] = parameter.grad.clone()
        found |= {f"buffer {name}": buffer.clone() for name, buffer in model.named_buffers()}
        records.append(found)
    plain, planned = records
    return [f"in the next step {name}" for name in unlike(plain, planned)]


def unlike(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of what is not equal in both: bits, or NaN in the same places."""
    return [
        name
        for name in dict.fromkeys((*one, *other))
        if name not in one or name not in other or not _same(one[name], other[name])
    ]


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype != other.dtype or not torch.equal(one.isnan(), other.isnan()):
        return False
    return torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))


def settle(seconds: float = 5.0) -> int:
    """Threads of this process, once those that are ending have ended."""
    deadline = time.perf_counter() + seconds
    count = threading.active_count()
    while time.perf_counter() < deadline:
        time.sleep(0.01)
        before, count = count, threading.active_count()
        if before == count:
            break
    return count
