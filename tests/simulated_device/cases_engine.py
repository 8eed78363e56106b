"""Orders between the computing stream and the two that copy: each that is left out is noticed.

Plans are run on an engine whose source lacks one line. The checker goes by what is ordered with
what, so that it finds the race however fast link and device are.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
import torch
from mutants.runtime import MUTANTS
from simulated_device.networks import Case, build, chain_of, differences, record, step
from simulated_device.place import first, is_simulated
from simulated_device.sim import Extension

from chainstay.problems.offload import OffloadSolution
from chainstay.profiles import Link
from chainstay.runtime import MeasuredChain, measure
from chainstay.runtime.transfer import Engine, stream_engine
from chainstay.runtime.transfer.engine import Ticket, Transfer
from chainstay.runtime.transfer.movable_storage import MovableStorage, send
from chainstay.runtime.transfer.stream_engine import StreamEngine, StreamTicket
from chainstay.solve.offload import solve_offload

pytestmark = [
    pytest.mark.skipif(not is_simulated, reason="only the simulated device looks for races"),
    # Parameters get their gradients on the streams that read them, as these plans mean it.
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream"),
]

PRODUCED = "self._out.wait_event(computing.record_event())  # produced"
REUSED = "self._out.wait_event(slot.after.end)"
ALLOCATED = (
    "self._back.wait_event(computing.record_event())  # allocated: its earlier users are done"
)
SENT = "self._back.wait_event(_end_of(sent))"
WAITS = "self._accelerator.current_stream().wait_event(_end_of(ticket))"
FORGETS = "ticket.computing.wait_event(ticket.end)"
ON_CURRENT_STREAM = "self._accelerator.current_stream().wait_event(ticket.end)"


@pytest.fixture(scope="module")
def case() -> Case:
    return build("GPT-2")


@pytest.fixture(scope="module")
def measured(case: Case) -> MeasuredChain:
    return measure(chain_of(case), case.batch, loss=case.loss, repeats=1, progress=False)


def solved(measured: MeasuredChain) -> OffloadSolution:
    profile = measured.offload_profile
    budget = profile.required_bytes + (profile.peak_bytes - profile.required_bytes) * 2 // 10
    link = Link(bandwidth=1, latency=1000)
    return solve_offload(profile, budget, link=link, method="heuristics")


def engine_with(line: str, other: str) -> Engine:
    """The engine, in which another line stands in the place of one."""
    text = Path(str(stream_engine.__file__)).read_text(encoding="utf-8")
    assert text.count(line) == 1
    module = ModuleType("chainstay.runtime.transfer.stream_engine_with_an_error")
    exec(compile(text.replace(line, other), "mutant", "exec"), vars(module))  # our own source
    engine: Engine = module.StreamEngine(first())
    return engine


class Deaf(StreamEngine):
    """Does not wait for some of its tickets."""

    def __init__(self) -> None:
        super().__init__(first())
        self.unheard: list[Ticket] = []

    def wait(self, ticket: Ticket) -> None:
        if not any(ticket is other for other in self.unheard):
            super().wait(ticket)


class FreesEarly(Deaf):
    """Memory is let go before what it holds has arrived on the host."""

    def send(self, transfers: Sequence[Transfer]) -> StreamTicket:
        ticket = super().send(transfers)
        self.unheard.append(ticket)
        return ticket


class ReadsEarly(Deaf):
    """Memory is read before anything has arrived there."""

    def fetch(self, transfers: Sequence[Transfer], sent: Ticket) -> StreamTicket:
        ticket = super().fetch(transfers, sent)
        self.unheard.append(ticket)
        return ticket


def steps_of_training(engine: Engine, case: Case, measured: MeasuredChain) -> None:
    """Steps by a plan that moves nearly everything."""
    planned = measured.planned(solved(measured), engine=engine)
    for _ in range(2):
        step(case, planned)
    torch.accelerator.synchronize()


def steps_on_two_streams(engine: Engine, case: Case, measured: MeasuredChain) -> None:
    """Each on a stream of its own, unordered, with one pool: slots go from one to the other."""
    planned = measured.planned(solved(measured), engine=engine)
    parameters = list(case.model.parameters())
    torch.accelerator.synchronize()
    held = []
    for _ in range(2):
        stream = torch.Stream(first())
        with stream:
            loss = case.loss(planned(case.batch))
            held.append((loss, torch.autograd.grad(loss, parameters)))
    torch.accelerator.synchronize()


def sent_here_fetched_there(engine: Engine, _: Case, __: MeasuredChain) -> None:
    """A tensor comes back on another stream than it left, as one that a debugger looks at."""
    sent_and_fetched(engine, torch.ones(1 << 16, dtype=torch.uint8, device=first()))


def sent_and_fetched(engine: Engine, memory: torch.Tensor) -> torch.Tensor:
    """Return `memory` as it comes back on another stream, and one more."""
    target = torch.empty_like(memory)
    slot = engine.pool.take(memory.nbytes)
    torch.accelerator.synchronize()
    sent = engine.send([(memory, slot)])
    with torch.Stream(first()):
        engine.wait(engine.fetch([(target, slot)], sent))
        looked_at = target + 1
    torch.accelerator.synchronize()
    engine.give_back(slot, None)
    return looked_at


def a_graph_that_is_dropped(engine: Engine, case: Case, measured: MeasuredChain) -> None:
    """A forward on a side stream whose graph goes outside of it, in the middle of a backward."""
    planned = measured.planned(solved(measured), engine=engine)
    stream = torch.Stream(first())
    stream.wait_event(torch.accelerator.current_stream().record_event())
    with stream:
        loss = case.loss(planned(case.batch))
        _fails_in_the_middle(case, loss)
    del loss
    gc.collect()
    with stream:  # where memory that was let go is used again
        sizes = [size for size in range(512, 16_385, 512) for _ in range(60)]
        zeros = [torch.zeros(size, dtype=torch.uint8, device=first()) for size in sizes]
    torch.accelerator.synchronize()
    del zeros


def a_storage_that_is_dropped(engine: Engine, _: Case, __: MeasuredChain) -> None:
    """Sent, and then needed by nobody."""
    tensor = torch.ones(1 << 16, device=first())
    storage = MovableStorage(0, engine, tensor)
    send([storage], engine)
    del storage, tensor
    torch.zeros(1 << 16, device=first())
    torch.accelerator.synchronize()


def _fails_in_the_middle(case: Case, loss: torch.Tensor) -> None:
    class StopError(Exception):
        pass

    parameters, calls = list(case.model.parameters()), []

    def stop(_: torch.Tensor) -> None:
        calls.append(1)
        if 2 * len(calls) > len(parameters):
            raise StopError

    hooks = [parameter.register_hook(stop) for parameter in parameters]
    with pytest.raises(StopError):
        loss.backward()
    for hook in hooks:
        hook.remove()


Plan = Callable[[Engine, Case, MeasuredChain], None]
PLANS: Final[list[Plan]] = [
    steps_of_training,
    steps_on_two_streams,
    sent_here_fetched_there,
    a_graph_that_is_dropped,
    a_storage_that_is_dropped,
]
SPEEDS: Final = [(0.0, 0.0), (5e7, 0.0), (0.0, 100.0)]


@pytest.mark.parametrize("speed", SPEEDS, ids=["fast", "slow link", "slow device"])
@pytest.mark.parametrize("plan", PLANS)
def test_no_race_is_left(
    plan: Plan, speed: tuple[float, float], case: Case, measured: MeasuredChain, device: Extension
) -> None:
    device.set_link(speed[0])
    device.set_kernel_us(speed[1])
    engine = StreamEngine(first())
    plan(engine, case, measured)
    assert device.races() == []
    engine.close()


@pytest.mark.parametrize(
    ("lines", "plan"),
    [
        ((PRODUCED, "pass"), steps_of_training),
        ((ALLOCATED, "pass"), steps_of_training),
        ((WAITS, "pass"), steps_of_training),
        ((REUSED, "pass"), steps_on_two_streams),
        ((SENT, "pass"), sent_here_fetched_there),
        ((FORGETS, "pass"), a_storage_that_is_dropped),
        ((FORGETS, f"if is_target: {FORGETS}"), a_storage_that_is_dropped),
        ((FORGETS, ON_CURRENT_STREAM), a_graph_that_is_dropped),
    ],
)
def test_an_order_that_is_left_out_is_noticed(
    lines: tuple[str, str],
    plan: Plan,
    case: Case,
    measured: MeasuredChain,
    device: Extension,
) -> None:
    engine = engine_with(*lines)
    plan(engine, case, measured)
    assert device.races() != []
    engine.close()


def test_every_line_that_orders_is_left_out_once() -> None:
    text = Path(str(stream_engine.__file__)).read_text(encoding="utf-8")
    orders = {line.strip() for line in text.splitlines() if "wait_event(" in line}
    file = "runtime/transfer/stream_engine.py"
    mutated = {mutant.old.strip() for mutant in MUTANTS if mutant.file == file}
    assert orders == mutated == {PRODUCED, REUSED, ALLOCATED, SENT, WAITS, FORGETS}


def test_what_lies_in_several_pieces_comes_back_as_it_was() -> None:
    engine = StreamEngine(first())
    memory = torch.arange(5 << 14, device=first()).remainder(200).to(torch.uint8)
    looked_at = sent_and_fetched(engine, memory)
    assert engine.pool.allocated_bytes == memory.nbytes
    assert torch.equal(looked_at.cpu(), memory.cpu() + 1)
    engine.close()


@pytest.mark.parametrize("kind", [FreesEarly, ReadsEarly])
def test_a_wait_that_storages_leave_out_is_noticed(
    kind: type[Deaf], case: Case, measured: MeasuredChain, device: Extension
) -> None:
    steps_of_training(kind(), case, measured)
    assert device.races() != []


def test_the_checker_does_not_go_by_bits(
    case: Case, measured: MeasuredChain, device: Extension
) -> None:
    """With a quick link the bits are right although nobody waits for what arrives."""
    planned = measured.planned(solved(measured), engine=ReadsEarly())
    device.set_kernel_us(100.0)
    expected, found = record(case), record(case, planned)
    assert device.races() != []
    assert differences(found, expected) == []
