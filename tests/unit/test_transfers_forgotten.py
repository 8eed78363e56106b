"""Device memory whose transfer nobody needs any more goes at once, by the computing thread."""

from __future__ import annotations

import weakref

import pytest
import torch

from chainstay.runtime import trace_memory
from chainstay.runtime.execute.items import Act, Action
from chainstay.runtime.transfer.cpu_engine import CopyingEngine, CopyTicket
from chainstay.runtime.transfer.step_transfers import StepTransfers
from chainstay.schedule import Item
from offload_support import FAST, LATE


@pytest.mark.parametrize("is_target", [False, True])
def test_what_is_forgotten_is_let_go_by_who_computes(*, is_target: bool) -> None:
    """At once, while its transfer is still to come; the others that go with it arrive."""
    engine = CopyingEngine(FAST)
    before = CopyTicket([])  # the transfer begins when this one has ended
    memory, other = (torch.full((8,), 7, dtype=torch.uint8) for _ in range(2))
    slots = [engine.pool.take(8) for _ in range(2)]
    if is_target:
        slots[1].pieces[0].fill_(7)
        other.zero_()
        ticket = engine.fetch([(memory, slots[0]), (other, slots[1])], before)
    else:
        slots[1].after = before
        ticket = engine.send([(memory, slots[0]), (other, slots[1])])
    gone = weakref.ref(memory)
    engine.forget(memory, ticket, is_target=is_target)
    del memory
    assert gone() is None
    assert not ticket.ended.is_set()
    before.end()
    engine.wait(ticket)
    assert (other == 7).all()
    assert (slots[1].pieces[0] == 7).all()
    engine.close()


def test_what_dies_on_its_way_is_let_go_by_who_computes() -> None:
    """The profiler sees what a thread of ours lets go, and not what the engine's do."""
    engine = CopyingEngine(LATE)

    def sends_and_drops() -> None:
        transfers = StepTransfers(engine)
        of_item = transfers.by_item[Item("b", 0)] = []
        storage = transfers.new_storage(0, torch.zeros(64, 64), of_item)
        transfers.act([Action(Act.SEND, Item("b", 0))])
        del storage

    trace = trace_memory(sends_and_drops, "cpu")
    assert (trace.peak_bytes, trace.end_bytes) == (64 * 64 * 4, 0)
    assert engine.pool.used_bytes == 0
    engine.close()
