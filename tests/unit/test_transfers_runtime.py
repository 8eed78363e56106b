"""What can go wrong with transfers, and that nothing is left of it."""

from __future__ import annotations

import copy
import gc
import re
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn

import chainstay
from chainstay.errors import (
    HostBudgetError,
    InvalidScheduleError,
    PlanMismatchError,
    UnsupportedModelError,
)
from chainstay.profiles import Link
from chainstay.runtime import measure, trace_memory
from chainstay.runtime.execute.items import Act, Action
from chainstay.runtime.execute.liveness import Step
from chainstay.runtime.transfer import engine_for, measure_link, planned_transfers
from chainstay.runtime.transfer.cpu_engine import DOUBLE_LINK, CopyingEngine
from chainstay.runtime.transfer.engine import Transfer
from chainstay.runtime.transfer.pool import HostPool, Slot
from chainstay.runtime.transfer.speed import link_from
from chainstay.runtime.transfer.step_transfers import StepTransfers
from chainstay.runtime.transfer.stream_engine import pinned_pieces
from chainstay.schedule import Item
from chainstay.solve.offload import solve_offload
from chainstay.timetable import Transfers
from offload_support import FAST, LATE, SLOW, Case, perceptron_case


def copiers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("chainstay")]


FAILING: list[str] = []
"""Where the operator below is to fail."""


@torch.library.custom_op("chainstay_tests::may_fail", mutates_args=())
def may_fail(x: torch.Tensor) -> torch.Tensor:
    """The hyperbolic tangent; fails when told to, in its forward or its backward."""
    if "forward" in FAILING:
        raise ZeroDivisionError
    return x.tanh()


@may_fail.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def _keep_output(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001  # as torch calls it
    ctx.save_for_backward(output)


def _may_fail_back(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    if "backward" in FAILING:
        raise ZeroDivisionError
    output: torch.Tensor
    (output,) = ctx.saved_tensors
    return gradient * (1 - output * output)


may_fail.register_autograd(_may_fail_back, setup_context=_keep_output)


class Breaks(nn.Module):
    """Fails when told to."""

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        changed: torch.Tensor = may_fail(activation)
        return changed


def breaking_case() -> Case:
    torch.manual_seed(0)
    stages: list[nn.Module] = [nn.Linear(32, 32) for _ in range(6)]
    stages.insert(4, Breaks())
    model = nn.Sequential(*(nn.Sequential(stage, nn.Sigmoid()) for stage in stages))
    return Case.of(model, torch.randn(64, 32), lambda out: out.square().mean())


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_exceptions_leave_nothing_and_the_next_step_is_right(when: str) -> None:
    case = breaking_case()
    expected = case.trained(case.model)
    engine = CopyingEngine(FAST, poison=True)
    chain = case.offloaded(0, engine)
    case.step(chain)
    FAILING.append(when)
    try:
        with pytest.raises(ZeroDivisionError):
            case.step(chain)
    finally:
        FAILING.clear()
    gc.collect()
    assert engine.pool.used_bytes == 0
    held = engine.pool.allocated_bytes
    case.model.zero_grad()
    assert case.trained(chain).differences(expected) == []
    assert engine.pool.allocated_bytes == held
    chain.close()


def test_a_missing_backward_leaves_nothing() -> None:
    case = perceptron_case()
    engine = CopyingEngine(FAST, poison=True)
    chain = case.offloaded(0, engine)
    output = chain(case.batch)
    assert engine.pool.used_bytes > 0
    del output
    assert engine.pool.used_bytes == 0
    chain.close()


def test_without_gradients_nothing_moves() -> None:
    case = perceptron_case()
    engine = CopyingEngine(FAST)
    chain = case.offloaded(0, engine)
    with torch.no_grad():
        assert torch.equal(chain(case.batch), case.model(case.batch))
    assert engine.pool.allocated_bytes == 0
    assert not copiers()


def test_closing_stops_threads_and_frees_everything() -> None:
    case = perceptron_case()
    engine = CopyingEngine(LATE)
    chain = case.offloaded(0, engine)
    value = case.loss(chain(case.batch))
    assert copiers()
    chain.close()
    chain.close()
    assert not copiers()
    assert engine.pool.allocated_bytes == 0
    with pytest.raises(PlanMismatchError, match="was closed"):
        value.backward()
    with pytest.raises(PlanMismatchError, match="this plan was closed; make another"):
        chain(case.batch)
    with torch.no_grad():
        chain(case.batch)


def test_a_forgotten_chain_stops_its_threads() -> None:
    case = perceptron_case()
    chain = case.offloaded(0)
    case.step(chain)
    assert copiers()
    gone = weakref.ref(chain)
    del chain
    gc.collect()
    assert gone() is None
    assert not copiers()


def test_a_failing_copy_is_told_where_it_is_waited_for() -> None:
    engine = CopyingEngine(FAST)
    memory = torch.zeros(7, 1, dtype=torch.uint8)
    slot = engine.pool.take(7)
    ticket = engine.send([(memory, slot)])
    with pytest.raises(RuntimeError, match="broadcast shape"):
        engine.wait(ticket)
    engine.close()


class Counts(CopyingEngine):
    """Counts the bytes that it sends, and the storages."""

    def __init__(self) -> None:
        super().__init__(FAST, poison=True)
        self.bytes = self.storages = 0
        self.sizes: list[int] = []

    def send(self, transfers: Any) -> Any:
        self.sizes += [memory.nbytes for memory, _ in transfers]
        self.bytes += sum(memory.nbytes for memory, _ in transfers)
        self.storages += len(transfers)
        return super().send(transfers)


class SharesStorage(nn.Module):
    """Saves four views of one storage, and its input twice."""

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        wide = torch.cat([activation, activation.exp()], 1)
        left, right = wide.chunk(2, 1)
        mixed = (left * right).T * wide[:, ::2].reshape(-1, 32).T[:, : left.shape[0]]
        result: torch.Tensor = (mixed.T.contiguous() * activation * activation.square()).tanh()
        return result


def test_storages_go_once_and_views_are_rebuilt() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(32, 32), *(nn.Sequential(SharesStorage(), nn.Linear(32, 32)) for _ in range(4))
    )
    case = Case.of(model, torch.randn(16, 32), lambda out: out.square().mean())
    engine = Counts()
    chain = case.offloaded(0, engine)
    moved = chain._executor.transfers.plan.moved  # type: ignore[union-attr]
    assert case.trained(copy.deepcopy(chain)).differences(case.trained(model)) == []
    model.zero_grad()
    case.step(chain)
    x = case.measured.offload_profile.activations
    assert moved
    assert engine.bytes <= sum(x[item.stage + 1] for item in moved), "no storage goes twice"
    chain.close()


class Normed(nn.Module):
    """Saves two large tensors and the two small ones of its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(32), nn.Linear(32, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(self.norm(x)))


@pytest.mark.parametrize("room", [1.0, 0.5])
def test_small_storages_stay_while_the_budget_has_room(
    room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Normed() for _ in range(8)))
    case = Case.of(model, torch.randn(64, 32), lambda out: out.square().mean())
    small = 64 * 4
    all_small = 8 * 2 * small
    monkeypatch.setattr(planned_transfers, "_SPARE", int(case.budget(3) / (room * all_small)))
    monkeypatch.setattr(CopyingEngine, "least_bytes", 1024)
    engine = Counts()
    chain = case.offloaded(3, engine)
    expected = case.trained(model)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    case.step(chain)
    engine.sizes.clear()
    peak = trace_memory(lambda: case.step(chain), "cpu").peak_bytes
    assert peak + case.batch.nbytes <= case.budget(3)
    assert any(size > small for size in engine.sizes)
    assert (small in engine.sizes) == (room < 1)
    assert case.trained(chain).differences(expected) == []
    chain.close()


def test_what_a_stage_passes_on_is_not_let_go() -> None:
    """Two states have it; a second copy would come back beside the first."""
    engine = CopyingEngine(FAST)
    item = Item("a", 1)
    first, second = (
        Step(
            stage=stage,
            is_first=True,
            is_last=True,
            captures=False,
            releases_input=False,
            wanted=frozenset(),
            output_wanted=True,
            makes=None if stage else item,
        )
        for stage in range(2)
    )
    transfers = StepTransfers(engine)
    start, passed, own = (torch.full((4,), value) for value in (1.0, 2.0, 3.0))
    kept, moved = transfers.made(first, (start,), (passed, own))
    transfers.act([Action(Act.SEND, item)])
    transfers.made(second, (passed, own), (passed, torch.zeros(4)))
    transfers.act([Action(Act.RELEASE, item)])
    assert kept.memory is not None
    assert moved.memory is None
    transfers.act([Action(Act.FETCH, item)])
    assert torch.equal(moved.arrived().view(torch.float32), own)
    assert kept.arrived().data_ptr() == passed.data_ptr()
    engine.close()


def test_dtypes_and_conjugates_come_back() -> None:
    class Complex(nn.Module):
        def forward(self, activation: torch.Tensor) -> torch.Tensor:
            turned = torch.complex(activation, activation.sin())
            half = (turned * turned.conj()).real.to(torch.bfloat16) * activation.to(torch.bfloat16)
            return (half.float() * turned.imag.neg()).tanh()

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), Complex()) for _ in range(4)))
    case = Case.of(model, torch.randn(8, 16), lambda out: out.square().mean())
    assert case.trained(case.offloaded(0)).differences(case.trained(model)) == []


def error_of(action: Callable[[], object]) -> str:
    """What it raises; empty if it does not."""
    try:
        action()
    except (PlanMismatchError, RuntimeError) as told:
        return str(told)
    return ""


def test_a_change_in_place_is_found() -> None:
    kept: list[torch.Tensor] = []

    class Leaks(nn.Module):
        def forward(self, activation: torch.Tensor) -> torch.Tensor:
            result = activation.exp()
            kept.append(result)
            return result * 2

    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), Leaks()) for _ in range(4)))
    case = Case.of(model, torch.randn(8, 16), lambda out: out.square().mean())
    case.loss(model(case.batch)).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    refused = []
    for stage in range(4):
        chain = case.offloaded(0, CopyingEngine(FAST))
        kept.clear()
        model.zero_grad()
        value = case.loss(chain(case.batch))
        with torch.no_grad():
            kept[stage].zero_()
        if told := error_of(value.backward):
            assert re.search("in.?place", told)
            refused.append(stage)
        else:  # the copy on the host is as it was
            for parameter, gradient in zip(model.parameters(), expected, strict=True):
                assert parameter.grad is not None
                assert gradient is not None
                assert torch.equal(parameter.grad, gradient)
        chain.close()
    assert refused


def test_host_memory_has_a_limit() -> None:
    case = perceptron_case()
    solution = case.solution(0)
    with pytest.raises(
        HostBudgetError, match=r"host_budget is 100 bytes, .* Raise host_budget"
    ) as info:
        case.measured.planned(solution, host_budget=100)
    enough = info.value.required
    assert info.value.budget == 100
    chain = case.measured.planned(solution, host_budget=enough)
    case.step(chain)
    values = [case.loss(chain(case.batch))]
    with pytest.raises(HostBudgetError, match="needs at least"):
        values.append(case.loss(chain(case.batch)))
    values[0].backward()
    case.step(chain)
    chain.close()


def test_pool_reuses_and_evicts() -> None:
    pool = HostPool(lambda size: torch.empty(size, dtype=torch.uint8), lambda size: (size,), 100)
    first = pool.take(60)
    pool.give(first, "read until then")
    again = pool.take(60)
    assert again is first
    assert again.after == "read until then"
    pool.give(again, None)
    second = pool.take(50)
    assert (pool.allocated_bytes, pool.used_bytes) == (50, 50)
    with pytest.raises(HostBudgetError, match="at least 110 bytes"):
        pool.take(60)
    pool.close()
    with pytest.raises(PlanMismatchError, match="closed while saved tensors were in host memory"):
        _ = second.pieces
    with pytest.raises(PlanMismatchError, match="this plan was closed"):
        pool.take(1)
    pool.give(second, None)


def test_pools_of_one_model_share_what_waits_and_the_limit() -> None:
    def allocate(size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8)

    one = HostPool(allocate, lambda size: (size,), 100)
    other = HostPool(allocate, lambda size: (size,), 100, beside=one)
    slot, held = one.take(60), one.take(10)
    one.give(slot, "read until then")
    assert other.take(60) is slot
    assert other.allocated_bytes == 70
    with pytest.raises(HostBudgetError, match="at least 110 bytes"):
        other.take(40)
    one.close()
    one.close()
    assert slot.pieces[0].nbytes == other.allocated_bytes == 60
    with pytest.raises(PlanMismatchError, match="closed while saved tensors were in host memory"):
        _ = held.pieces
    other.give(slot, None)
    other.close()
    assert other.allocated_bytes == 0


@pytest.mark.parametrize(
    ("size", "pieces"),
    [
        (1, (512,)),
        (513, (1024,)),
        (4096, (4096,)),
        (5000, (4096, 1024)),
        (2**20 + 1, (2**20, 2**17)),
        (15 * 2**17 - 1, (2**20, 2**19, 2**18, 2**17)),
        (15 * 2**17 + 1, (2**21,)),
    ],
)
def test_pinned_memory_is_allocated_in_powers_of_two(size: int, pieces: tuple[int, ...]) -> None:
    assert pinned_pieces(size) == pieces


def test_pinned_memory_is_an_eighth_more_at_most() -> None:
    for size in range(4096, 2**17, 97):
        assert size <= sum(pinned_pieces(size)) <= size + size // 8


def test_a_slot_of_several_pieces_holds_a_storage_in_their_order() -> None:
    slot = Slot([torch.zeros(size, dtype=torch.uint8) for size in (8, 4, 2)], 14)
    slot.size = 13
    memory = torch.arange(13, dtype=torch.uint8)
    for piece, part in slot.beside(memory):
        piece.copy_(part)
    assert torch.cat(slot.pieces).tolist() == [*range(13), 0]


def test_plans_that_cannot_be_run_are_refused() -> None:
    case = perceptron_case()
    solution = case.solution(0)
    with pytest.raises(PlanMismatchError, match="interruptible transfers, and this runtime"):
        case.measured.planned(replace(solution, transfers=Transfers.INTERRUPTIBLE))
    with pytest.raises(InvalidScheduleError, match="more than the budget"):
        case.measured.planned(replace(solution, budget=solution.peak_bytes - 1, peak_bytes=0))
    with pytest.raises(InvalidScheduleError, match="this runtime has no link"):
        case.measured.planned(solution.schedule)
    other = measure(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.zeros(2, 4), repeats=1)
    with pytest.raises((PlanMismatchError, InvalidScheduleError)):
        other.planned(solution)
    with pytest.raises(UnsupportedModelError, match="'meta' device"):
        engine_for(torch.device("meta"))
    with pytest.raises(UnsupportedModelError, match="'meta' device"):
        measure_link("meta")


def test_the_input_is_the_callers() -> None:
    """A profile that lets the input go promises memory that a training loop holds."""
    case = perceptron_case()
    held = case.measured.offload_profile
    assert held.activations[0] == 0
    assert (
        held.peak_bytes
        == chainstay.OffloadProfile.from_chain(
            case.measured.profile_for(chainstay.Schedule.keep_all(len(held)))
        ).peak_bytes
    )


def test_links_are_measured() -> None:
    assert chainstay.measure_link("cpu") == DOUBLE_LINK
    half = link_from(small=10_000, one_way=1_010_000, both_ways=2_020_000)
    assert not half.is_full_duplex
    assert half.latency == 10_000
    assert abs(half.transfer_time(64 * 2**20) - 1_010_000) < 1_000
    full = link_from(small=10_000, one_way=1_010_000, both_ways=1_210_000)
    assert full.is_full_duplex
    assert abs(full.transfer_time(64 * 2**20) - 1_210_000) < 1_000
    assert link_from(small=5, one_way=5, both_ways=5).bandwidth > Fraction(0)


@pytest.mark.parametrize("duplex", ["half", "full"])
def test_copies_are_made_in_order_and_in_time(duplex: str) -> None:
    """Many slots used again and again in both directions; the last value arrives."""
    engine = CopyingEngine(
        Link.from_bytes_per_second(10**9, latency_ns=10_000, duplex=duplex), poison=True
    )
    for value in range(40):
        transfers: list[Transfer] = []
        for place in range(3):
            memory = torch.full((100 + place,), value, dtype=torch.uint8)
            transfers.append((memory, engine.pool.take(memory.nbytes)))
        sent = engine.send(transfers)
        back = [(torch.empty_like(memory), slot) for memory, slot in transfers]
        fetched = engine.fetch(back, sent)
        for _, slot in back:
            engine.give_back(slot, fetched)
        if value % 3 == 0:
            engine.wait(fetched)
            assert all((memory == value).all() for memory, _ in back)
    assert engine.pool.allocated_bytes == 303
    engine.close()


def test_plans_of_every_method_run() -> None:
    case = perceptron_case()
    profile = case.measured.offload_profile
    expected = case.trained(case.model)
    for method in ("greedy", "dp", "heuristics"):
        solution = solve_offload(profile, case.budget(3), link=SLOW, method=method)
        chain = case.measured.planned(solution, engine=CopyingEngine(FAST, poison=True))
        assert case.trained(chain).differences(expected) == []
