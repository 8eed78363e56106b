"""What users do besides plain steps, and errors that only an asynchronous device shows."""

from __future__ import annotations

import copy
import faulthandler
import gc
import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from simulated_device.networks import Case, Residual, build, chain_of, differences, record, step
from simulated_device.place import KIND, first, is_simulated, second, twice
from simulated_device.sim import Extension
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import chainstay
from chainstay.errors import InvalidBudgetError, PlanMismatchError, UnsupportedModelError
from chainstay.fitting import solved_plans
from chainstay.fitting.fitted import Fitted
from chainstay.runtime import measure, trace_memory
from chainstay.runtime.capture.trials.isolation import values_kept
from chainstay.runtime.devices import device_memory
from chainstay.runtime.devices.accelerator import Accelerator
from chainstay.runtime.devices.device import accelerator_at, default_device, device_at
from chainstay.runtime.devices.device_memory import free_bytes, smaller_budget
from chainstay.runtime.measures.rehearsal import Rehearsal, rehearse_graph
from chainstay.runtime.transfer import measure_link
from chainstay.solve.offload import solve_offload
from runtime_support import some_schedules

LINK: Final = chainstay.Link(bandwidth=1, latency=10_000)


simulated = pytest.mark.skipif(not is_simulated, reason="needs the device's settings")


def accelerator(index: int = 0) -> Accelerator:
    found = accelerator_at(torch.device(KIND, index))
    assert found is not None
    return found


@pytest.fixture
def _deadline() -> Iterator[None]:
    """A thread that waits for ever ends the process, which tells all stacks."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


# ---------------------------------------------------------------------------- the device layer
@simulated
def test_memory_is_counted_as_it_is_asked_for() -> None:
    found = accelerator()
    torch.accelerator.synchronize()
    before = found.memory()
    found.reset_peaks()
    tensor = torch.empty(1000, dtype=torch.uint8, device=first())
    now, peak = found.memory(), found.peaks()
    assert (now.requested - before.requested, now.allocated - before.allocated) == (1000, 1024)
    del tensor
    assert found.memory() == before or found.memory().reserved > before.reserved
    assert found.peaks().requested == peak.requested
    found.reset_peaks()
    assert found.peaks().requested == before.requested


@simulated
def test_traces_tell_what_was_asked_for_and_what_was_handed_out() -> None:
    def work() -> torch.Tensor:
        _ = torch.empty(3000, dtype=torch.uint8, device=first())
        return torch.empty(100, dtype=torch.uint8, device=first())

    trace = trace_memory(work, first())
    assert (trace.peak_bytes, trace.end_bytes, trace.allocated_bytes) == (3100, 100, 3072 + 512)
    assert trace.reserved_bytes >= trace.allocated_bytes


@simulated
def test_marks_time_the_stream_and_not_the_host(device: Extension) -> None:
    found = device_at(first())
    x = torch.ones(10, device=first())
    found.synchronize()
    device.set_kernel_us(20_000)
    device.host_waits()
    begin = found.mark()
    for _ in range(3):
        x = x + 1
    end = found.mark()
    assert device.host_waits() == {}
    found.synchronize()
    assert 60e6 <= found.elapsed(begin, end) < 600e6


@twice
def test_streams_and_devices_are_put_back() -> None:
    found, other = accelerator(0), accelerator(1)
    before = found.current_stream()
    stream = other.stream()
    with other.on(stream):
        assert torch.accelerator.current_device_index() == 1
        assert other.current_stream() == stream
    assert torch.accelerator.current_device_index() == 0
    assert found.current_stream() == before
    with other.current():
        assert torch.empty(0, device=KIND).device.index == 1
    assert torch.accelerator.current_device_index() == 0


@simulated
def test_devices_have_names() -> None:
    assert accelerator(1).name() == "simulated accelerator 1"
    assert default_device().type == KIND


@simulated
def test_what_is_free_is_known(device: Extension, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.accelerator.synchronize()
    used = accelerator().memory().allocated
    device.set_capacity(used + 1_000_000)
    assert accelerator().free_bytes() == 1_000_000
    module = torch.get_device_module(first())
    monkeypatch.setattr(module, "get_per_process_memory_fraction", lambda _: 0.5, raising=False)
    assert accelerator().free_bytes() == (used + 1_000_000) // 2 - used


@simulated
def test_a_budget_of_what_is_free_leaves_a_margin(device: Extension) -> None:
    model = nn.Linear(256, 256).to(first())
    device.set_capacity(accelerator().memory().allocated + 22 * 2**20 + 10_000_000)
    gradients = 256 * 257 * 4
    assert free_bytes(model, 0) == int((10_000_000 - gradients) * 0.95)
    assert free_bytes(model, 0) - free_bytes(model, 2**20) == pytest.approx(0.95 * 2**20, abs=2)
    with pytest.raises(InvalidBudgetError, match="nothing is left, so free some memory"):
        free_bytes(model, 2**40)


@simulated
def test_a_budget_of_what_is_free_is_lowered_where_blocks_are_larger(
    device: Extension, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of 512 bytes are 6 % more than what this network asks for, the margin is 5 %."""
    monkeypatch.setattr(device_memory, "PAGES", 0)  # the device takes no memory in pages
    case = build("blocks")
    options = {"offload": False, "repeats": 1, "loss": case.loss}
    chainstay.fit(case.model, (case.batch,), budget="70%", progress=False, **options)  # type: ignore[arg-type]
    solution: chainstay.Solution = case.model.chainstay.solution  # type: ignore[union-attr,assignment]
    needed = solution.peak_bytes
    chainstay.unfit(case.model)
    gradients = sum(parameter.nbytes for parameter in case.model.parameters())
    gc.collect()
    torch.accelerator.synchronize()
    used = accelerator().memory().allocated
    device.set_capacity(used + gradients + int(needed / 0.95))
    chainstay.fit(case.model, (case.batch,), budget=None, **options)  # type: ignore[arg-type]
    assert "ran out of memory, as the allocator's blocks" in capsys.readouterr().err
    step(case)


@simulated
@pytest.mark.parametrize("failures", [3, 4])
def test_plans_whose_steps_run_out_of_memory_are_replaced_three_times(
    failures: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[int] = []

    def rehearsed(planned: Any, *args: Any) -> Rehearsal:
        budgets.append(planned.solution.budget)
        if len(budgets) <= failures:
            raise torch.OutOfMemoryError("on purpose")
        return rehearse_graph(planned, *args)

    monkeypatch.setattr(solved_plans, "rehearse_graph", rehearsed)
    case = build("blocks")
    expected = record(case)
    options: dict[str, Any] = {"loss": case.loss, "offload": False, "repeats": 1}
    is_too_often = pytest.raises(torch.OutOfMemoryError, match="on purpose")
    with is_too_often if failures > 3 else nullcontext():
        chainstay.fit(case.model, (case.batch,), budget=None, progress=False, **options)
    assert isinstance(getattr(case.model, "chainstay", None), Fitted) is (failures == 3)
    assert differences(record(case), expected) == []
    assert len(budgets) == 4
    assert all(after <= 0.95 * before for before, after in itertools.pairwise(budgets))


@simulated
def test_what_is_free_is_asked_for_once_for_all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that was lowered says no more what was free."""
    known: list[int] = []
    failing = [True, False, True, False]

    def noted(budget: int, free: int, lost: int) -> int:
        known.append(free)
        return smaller_budget(budget, free, lost)

    def rehearsed(planned: Any, *args: Any) -> Rehearsal:
        if failing.pop(0):
            raise torch.OutOfMemoryError("on purpose")
        return rehearse_graph(planned, *args)

    monkeypatch.setattr(solved_plans, "smaller_budget", noted)
    monkeypatch.setattr(solved_plans, "rehearse_graph", rehearsed)
    case = build("blocks")
    options: dict[str, Any] = {"offload": False, "repeats": 1, "progress": False}
    chainstay.fit(case.model, (case.batch,), budget=None, loss=case.loss, **options)
    case.model(torch.cat([case.batch] * 2)).sum().backward()
    assert failing == []
    assert len(known) == 2
    assert len(set(known)) == 1


@simulated
@pytest.mark.parametrize("rate", [5e8, 2e9])
def test_links_are_measured(rate: float, device: Extension) -> None:
    device.set_link(rate)
    link = measure_link(first())
    assert 0.5 * rate < link.bandwidth * 1e9 < 1.1 * rate
    assert link.is_full_duplex


# ---------------------------------------------------------------------------- measuring
@pytest.mark.parametrize("threads", [1, 2])
def test_times_around_blocks_are_of_one_clock(threads: int) -> None:
    """Backwards run in another thread than forwards; with one thread, clocks are the threads'."""
    case = build("blocks")
    torch.set_num_threads(threads)
    chainstay.fit(
        *(case.model, (case.batch,)),
        budget=0.7, loss=case.loss, by="blocks", offload=False, repeats=3, progress=False,
    )  # fmt: skip
    step(case)


@simulated
def test_stages_take_the_time_that_their_kernels_take(device: Extension) -> None:
    """In a whole pass the host is ahead; no stage waits for the host to notice its end."""
    model = nn.Sequential(nn.Linear(8, 8), *(nn.Tanh() for _ in range(6)))
    model.to(first())
    batch = torch.randn(4, 8, device=first())
    device.set_kernel_us(3000)
    measured = measure(model, batch, loss=lambda y: y.sum(), repeats=3, progress=False)
    times = [stage.forward_time for stage in measured.profile.stages[1:-1]]
    assert all(3e6 <= time < 6e6 for time in times), times


# ---------------------------------------------------------------------------- B3, B4, B6, B9
class Penalised(nn.Module):
    """Takes the slope of what its blocks give, in the same forward."""

    looks = False

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Residual(16) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x
        for block in self.blocks:
            y = block(y)
        if self.looks:
            (self.slope,) = torch.autograd.grad(y.sum(), x, retain_graph=True)
        return y


@pytest.mark.usefixtures("_deadline")
def test_a_forward_that_takes_gradients_of_planned_blocks_ends() -> None:
    model, x = Penalised().to(first()), torch.randn(8, 16).to(first()).requires_grad_()
    chainstay.fit(
        *(model, (x,)),
        budget=0.6, loss=lambda y: y.square().mean(), by="blocks", offload=False, repeats=1,
        progress=False,
    )  # fmt: skip
    model.looks = True
    model(x).square().mean().backward()
    assert torch.isfinite(model.slope).all()


@pytest.mark.parametrize("share", [0.65, 0.7, 0.75, 0.8])
def test_memory_of_hybrid_plans_is_not_let_go_under_a_copy(share: float, device: Extension) -> None:
    case = build("two towers")
    expected = record(case)
    try:
        fit = {"budget": share, "offload": True, "link": LINK, "repeats": 1, "progress": False}
        chainstay.fit(case.model, (case.batch,), loss=case.loss, **fit)  # type: ignore[arg-type]
    except chainstay.InfeasibleBudgetError:
        pytest.skip("no plan within so little")
    device.set_link(1e6)
    assert differences(record(case), expected) == []
    assert device.races() == []


def test_kernels_chosen_by_timing_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    case = build("blocks")
    fit = {"budget": 0.6, "offload": False, "repeats": 1, "progress": False}
    chainstay.fit(case.model, (case.batch,), loss=case.loss, **fit)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    with pytest.raises(PlanMismatchError, match=r"torch.backends.cudnn.benchmark is on: every"):
        case.model(case.batch)


@simulated
def test_capture_of_a_planned_step_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    case = build("blocks")
    fit = {"budget": 0.6, "offload": False, "repeats": 1, "progress": False}
    chainstay.fit(case.model, (case.batch,), loss=case.loss, **fit)  # type: ignore[arg-type]
    module = torch.get_device_module(first())
    monkeypatch.setattr(module, "is_current_stream_capturing", lambda: True, raising=False)
    with pytest.raises(PlanMismatchError, match="a CUDA graph is being captured, but steps"):
        case.model(case.batch)


@torch.library.custom_op("chainstay_tests::chosen_by_thread", mutates_args=())
def chosen_by_thread(x: torch.Tensor) -> torch.Tensor:
    """Other numbers in another thread, as of kernels that libraries choose for each thread."""
    is_main = threading.current_thread() is threading.main_thread()
    return x + (1 if is_main else 2)


chosen_by_thread.register_fake(torch.empty_like)
chosen_by_thread.register_autograd(lambda _, gradient: gradient)


class ByThread(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = chosen_by_thread(x)
        return result


def test_a_stage_is_tried_in_the_thread_in_which_it_runs_again() -> None:
    model = nn.Sequential(nn.Linear(8, 8), ByThread(), nn.Linear(8, 8)).to(first())
    batch = torch.randn(4, 8, device=first())
    with pytest.raises(UnsupportedModelError, match=r"when it runs again .*chosen_by_thread\S*\)"):
        measure(model, batch, repeats=1, progress=False)


def test_only_the_generators_that_a_stage_draws_from_are_put_back() -> None:
    class Mixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.rand(8).to(x.device)

    def build_stages() -> nn.Sequential:
        torch.manual_seed(0)
        parts = [nn.Linear(8, 8), nn.Dropout(), Mixed(), nn.Linear(8, 8), nn.Dropout()]
        return nn.Sequential(*parts).to(first())

    model, batch = build_stages(), torch.randn(4, 8).to(first())
    measured = measure(model, batch, loss=lambda y: y.square().sum(), repeats=1, progress=False)
    effects = measured.chain.effects
    assert [
        (of_stage.draws_random, of_stage.draws_on_host)
        for of_stage in effects
        if of_stage.draws_random
    ] == [
        (True, False),
        (True, True),
        (True, False),
    ]
    case = Case(build_stages(), batch, lambda y: y.square().sum())
    expected = record(case)
    planned = measured.planned(some_schedules(len(measured.profile))["drop everything"])
    assert differences(record(Case(model, batch, case.loss), planned), expected) == []


class Copies(TorchDispatchMode):
    """Counts copies of 100 numbers to the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch does not annotate it
        self.count = 0

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if "copy" in str(func) and result.device.type == "cpu" and result.numel() == 100:
            self.count += 1
        return result


@pytest.mark.parametrize("has_room", [True, False])
@pytest.mark.parametrize("change", [None, 0, 99, "roll"])
def test_parameters_are_copied_once_to_be_put_back(
    change: int | str | None, *, has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the device, or on the host where there is no room."""
    parameter = nn.Parameter(torch.arange(100.0).to(first()))
    before = parameter.detach().cpu()
    if not has_room:
        monkeypatch.setattr(Accelerator, "free_bytes", lambda _: 0)
    with Copies() as copies, values_kept([parameter]) as changed:
        if isinstance(change, int):
            parameter.data[change] += 1e-3  # which no version counts
        elif change is not None:
            parameter.data.copy_(parameter.data.roll(6))
    assert copies.count == (0 if has_room else 1)
    assert changed == (set() if change is None else {id(parameter)})
    assert torch.equal(parameter.detach().cpu(), before)


# ---------------------------------------------------------------------------- loops
def fitted(name: str, share: float = 0.6, device: torch.device | None = None) -> Case:
    case = build(name, device)
    fit = {"budget": share, "offload": True, "link": LINK, "repeats": 1, "progress": False}
    chainstay.fit(case.model, (case.batch,), loss=case.loss, **fit)  # type: ignore[arg-type]
    return case


@twice
def test_a_model_trains_on_the_second_device() -> None:
    expected = record(build("U-Net", second()))
    case = fitted("U-Net", device=second())
    assert torch.accelerator.current_device_index() == 0
    assert differences(record(case), expected) == []


def test_a_model_trains_on_a_side_stream(device: Extension) -> None:
    case = fitted("U-Net")
    expected = record(case)
    device.set_link(2e7)
    stream = torch.Stream(first())
    stream.wait_event(torch.accelerator.current_stream().record_event())
    with stream:
        found = record(case)
    assert differences(found, expected) == []


def test_what_a_failed_backward_leaves_is_let_go(device: Extension) -> None:
    case = fitted("U-Net")
    expected = record(case)
    device.set_link(2e7)

    class StopError(Exception):
        pass

    def stop(_: torch.Tensor) -> None:
        raise StopError

    handle = next(iter(case.model.parameters())).register_hook(stop)
    for _ in range(2):
        with pytest.raises(StopError):
            step(case)
    held = _held_at_rest(0)
    with pytest.raises(StopError):
        step(case)
    assert _held_at_rest(held) == held
    handle.remove()
    case.model.load_state_dict(build("U-Net").model.state_dict())  # batch norms have counted
    assert differences(record(case), expected) == []


def _held_at_rest(least: int) -> int:
    """Bytes of the device once they are `least`, or after a second.

    Autograd's thread lets go of an error some time after it has been raised here.
    """
    for _ in range(20):
        gc.collect()
        torch.accelerator.synchronize()
        held = accelerator().memory().requested
        if held <= least:
            break
        time.sleep(0.05)
    return held


def test_graphs_without_a_backward_leave_nothing(device: Extension) -> None:
    case = fitted("U-Net")
    device.set_link(2e7)
    step(case)
    gc.collect()
    torch.accelerator.synchronize()
    before = accelerator().memory().requested
    for _ in range(3):
        output = case.model(case.batch)
        del output
    gc.collect()
    torch.accelerator.synchronize()
    assert accelerator().memory().requested == before


def test_two_models_train_in_turns(device: Extension) -> None:
    one, other = fitted("U-Net"), fitted("two towers", 0.7)
    expected = record(one), record(other)
    device.set_link(2e7)
    outputs = one.model(one.batch), other.model(other.batch)
    one.loss(outputs[0]).backward()
    other.loss(outputs[1]).backward()
    del outputs
    one.model.load_state_dict(build("U-Net").model.state_dict())  # batch norms have counted
    other.model.load_state_dict(build("two towers").model.state_dict())
    assert differences(record(one), expected[0]) == []
    assert differences(record(other), expected[1]) == []


def test_a_copied_chain_has_an_engine_of_its_own(device: Extension) -> None:
    case = build("GPT-2")
    measured = measure(chain_of(case), case.batch, loss=case.loss, repeats=1, progress=False)
    profile = measured.offload_profile
    solution = solve_offload(profile, profile.required_bytes, link=LINK, method="heuristics")
    planned = measured.planned(solution)
    twin = Case(copy.deepcopy(planned), case.batch, case.loss)
    expected = record(Case(planned, case.batch, case.loss))
    planned.close()
    device.set_link(2e7)
    assert differences(record(twin), expected) == []


@pytest.mark.parametrize("network", ["U-Net", "GPT-2", "two towers"])
def test_autocast_of_the_device_is_kept_for_what_runs_again(network: str) -> None:
    case = build(network)
    options = {"offload": True, "link": LINK, "repeats": 1, "progress": False}
    with torch.autocast(KIND, torch.bfloat16):  # of one step: its copies of weights stay inside
        expected = record(case, steps=1)
        chainstay.fit(case.model, (case.batch,), budget=0.9, loss=case.loss, **options)  # type: ignore[arg-type]
        assert differences(record(case, steps=1), expected) == []


def test_a_plan_from_a_file_trains_another_copy(tmp_path: Path) -> None:
    case, twin = fitted("U-Net"), build("U-Net")
    file = tmp_path / "plan.json"
    chainstay.save_plan(case.model, file)
    expected = record(case)
    chainstay.apply_plan(twin.model, (twin.batch,), plan=file)
    assert differences(record(twin), expected) == []
