"""Questions to a GPU, each a function that yields the rows of a table, cheapest first."""

from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend

from benchmarks.runtime.gpu_models import model_rows
from benchmarks.runtime.gpu_plans import (
    Row,
    deterministic,
    let_go,
    plans,
    record_of,
    repeatable_record,
    waits_in,
)
from benchmarks.training import Forward, Task, interleaved_times, mebibytes, peak_bytes, step_of
from chainstay import DP, InfeasibleBudgetError, Schedule, fit, measure, simulate, unfit
from chainstay.planning import solve_measured
from chainstay.runtime import trace_memory
from chainstay.runtime.devices.accelerator import Accelerator
from chainstay.runtime.devices.device import accelerator_at, device_at
from chainstay.runtime.devices.device_memory import PAGES
from chainstay.runtime.estimate import estimate
from chainstay.runtime.transfer import measure_link
from chainstay.solve.offload import solve_offload
from models import gpt2, resnet50

__all__ = ["QUESTIONS", "Setting"]


@dataclass(frozen=True, slots=True)
class Setting:
    """How to ask.

    Attributes:
        device: Where.
        deadline: After which nothing is begun, in seconds of the monotonic clock.
        rounds: Timed steps of each kind.
        sheet: Name of the device's data sheet, for `estimate`; empty if none is known.
    """

    device: torch.device
    deadline: float
    rounds: int
    sheet: str

    def require_accelerator(self) -> Accelerator:
        """Return the device, where only an accelerator can answer."""
        found = accelerator_at(self.device)
        if found is None:
            raise LookupError("only an accelerator can answer this")
        return found


def _gpt2(device: torch.device, batch: int = 8) -> Task:
    small = device.type != "cuda"
    width, context = (64, 32) if small else (384, 256)
    torch.manual_seed(0)
    model = gpt2(width=width, heads=4, vocabulary=1000, context=context).to(device)
    tokens = torch.randint(0, 1000, (batch, context), device=device)
    following = torch.randint(0, 1000, (batch * context,), device=device)

    def loss(scores: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(scores.flatten(0, 1).float(), following)

    return Task("GPT-2", model, tokens, loss)


def _resnet(device: torch.device, batch: int = 8) -> Task:
    small = device.type != "cuda"
    torch.manual_seed(0)
    model = resnet50(width=8 if small else 64).to(device)
    images = torch.randn(batch, 3, 32 if small else 128, 32 if small else 128, device=device)
    classes = torch.randint(0, 1000, (batch,), device=device)
    return Task("ResNet-50", model, images, lambda y: functional.cross_entropy(y, classes))


_MEANS: Final[Mapping[str, Mapping[str, Any]]] = {
    "recompute": {"offload": False},
    "by blocks": {"offload": False, "by": "blocks"},
    "offload": {"offload": True, "recompute": False},
    "recompute and offload": {"offload": True},
}


def works(setting: Setting) -> Iterator[Row]:
    """Does each way to save memory train with plain bits, within its budget, without waiting?"""
    task = _gpt2(setting.device)
    task.prepare()
    expected, backends = repeatable_record(task)
    for name, means in _MEANS.items():
        options = {"loss": task.loss, "repeats": 2, "progress": False, **means}
        try:
            fit(task.model, (task.sample,), budget=0.6, **options)
        except InfeasibleBudgetError as error:
            fit(task.model, (task.sample,), budget=error.required, **options)
        with deterministic(backends):
            found = record_of(task, task.model)
        differing = -1
        if expected is not None:
            differing = sum(not torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        peak = peak_bytes(task, task.model)
        fitted: Any = task.model.chainstay
        solution = fitted.solution
        waits = waits_in(task, task.model)
        right = differing <= 0 and peak <= solution.budget and waits in ("none", "not on the CPU")
        yield {
            "means": name,
            "tensors that differ": "unknown" if differing < 0 else str(differing),
            "peak": mebibytes(peak),
            "budget": mebibytes(solution.budget),
            "waits": waits,
            "verdict": "ok" if right else "FAILED",
        }
        unfit(task.model)


def memory(setting: Setting) -> Iterator[Row]:
    """How far do allocated and reserved bytes lie above the requested ones that budgets count?"""
    accelerator = setting.require_accelerator()
    for build in (_gpt2, _resnet):
        task = build(setting.device)
        task.prepare()
        measured = measure(task.model, task.sample, loss=task.loss, repeats=1, progress=False)
        for share in (1.0, 0.6, 0.4):
            try:
                solution = solve_measured(measured, f"{share:.0%}", DP(discards="free"))
            except InfeasibleBudgetError as error:
                solution = solve_measured(measured, error.required, DP(discards="free"))
            step = step_of(task, measured.planned(solution))
            let_go(setting.device)
            step()
            before = accelerator.memory()
            trace = trace_memory(step, setting.device)
            yield {
                "network": task.name,
                "budget": f"{share:.0%}: {mebibytes(solution.budget)}",
                "requested": mebibytes(trace.peak_bytes),
                "allocated above": f"{trace.allocated_bytes / trace.peak_bytes - 1:+.1%}",
                "reserved above": mebibytes(
                    trace.reserved_bytes - before.requested - trace.peak_bytes
                ),
            }


def link(setting: Setting) -> Iterator[Row]:
    """How fast are copies by size and direction, idle and beside a computation; and pinning?"""
    accelerator, device = setting.require_accelerator(), setting.device
    found = measure_link(device)
    yield {"what": "measured link", "size": "", "GB/s": f"{float(found.bandwidth):.2f}"}
    out, back = accelerator.stream(), accelerator.stream()
    matrix = torch.randn(4096, 4096, device=device)
    for size in (4096, 2**18, 2**22, 2**26):
        here = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(2)]
        there = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]

        def copies(ways: str, here: Any = here, there: Any = there) -> None:
            if "out" in ways:
                with accelerator.on(out):
                    there[0].copy_(here[0], non_blocking=True)
            if "back" in ways:
                with accelerator.on(back):
                    here[1].copy_(there[1], non_blocking=True)

        for ways in ("out", "back", "out and back", "out and back, computing"):
            times = []
            for _ in range(5):
                begin = accelerator.now()
                if "computing" in ways:
                    for _ in range(4):
                        torch.mm(matrix, matrix)
                copies(ways)
                out.synchronize()
                back.synchronize()
                times.append(time.perf_counter_ns() - begin)
            row = {"what": ways, "size": f"{size / 1024:.0f} KiB"}
            yield row | {"us": f"{min(times) / 1e3:.1f}", "GB/s": f"{size / min(times):.2f}"}
    begin = time.perf_counter_ns()
    torch.empty(2**28, dtype=torch.uint8, pin_memory=True)
    took = time.perf_counter_ns() - begin
    yield {"what": "pinning", "size": "256 MiB", "us": f"{took / 1e3:.0f}"}


def times(setting: Setting) -> Iterator[Row]:
    """Do the times of stages add up to a step, and is the step's time that of its launches?"""
    for build in (_gpt2, _resnet):
        for batch in (2, 16):
            task = build(setting.device, batch)
            task.prepare()
            measured = measure(task.model, task.sample, loss=task.loss, repeats=5, progress=False)
            keep = Schedule.keep_all(len(measured.profile))
            predicted = simulate(measured.profile_for(keep), keep).makespan
            found = interleaved_times(task, {"plain": task.model}, setting.rounds)["plain"].median
            step, device = step_of(task, task.model), device_at(setting.device)
            device.synchronize()
            begin = time.perf_counter_ns()
            step()
            issued = time.perf_counter_ns() - begin
            device.synchronize()
            yield {
                "network": f"{task.name}, batch {batch}",
                "step": f"{found / 1e6:.2f} ms",
                "sum of stages": f"{predicted / found - 1:+.1%}",
                "issued in": f"{issued / 1e6:.2f} ms",
            }


def repeats(setting: Setting) -> Iterator[Row]:
    """Does plain training repeat itself with default kernels, and a planned step plain training?"""
    for build, kind in ((_gpt2, torch.float32), (_gpt2, torch.bfloat16), (_resnet, torch.float32)):
        task = build(setting.device)
        task.model.to(kind)
        if task.sample.is_floating_point():
            task = Task(task.name, task.model, task.sample.to(kind), task.loss)
        task.prepare()
        once, again = record_of(task, task.model), record_of(task, task.model)
        measured = measure(task.model, task.sample, loss=task.loss, repeats=1, progress=False)
        schedule = solve_measured(measured, "60%", DP(discards="free"))
        found = record_of(task, measured.planned(schedule))
        yield {
            "network": f"{task.name}, {kind}".replace("torch.", ""),
            "tensors": str(len(once)),
            "plain differs from plain in": str(_differing(once, again)),
            "planned differs in": str(_differing(once, found)),
        }


def autotuning(setting: Setting) -> Iterator[Row]:
    """With `torch.backends.cudnn.benchmark`, do two threads compute other bits?"""
    setting.require_accelerator()  # the CPU chooses no kernels by timing
    task = _resnet(setting.device)
    task.model.eval()
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = True
    try:
        for seed in range(3):
            torch.manual_seed(seed)
            images = torch.randn_like(task.sample)
            outputs: list[torch.Tensor] = []

            def forward(images: torch.Tensor = images, to: list[torch.Tensor] = outputs) -> None:
                with torch.no_grad():
                    to.append(task.model(images))

            forward()
            other = threading.Thread(target=forward)
            other.start()
            other.join()
            equal = torch.equal(*outputs)
            yield {"seed": str(seed), "two threads": "equal bits" if equal else "other bits"}
    finally:
        torch.backends.cudnn.benchmark = before


def offload(setting: Setting) -> Iterator[Row]:
    """Do steps that offload take the time that was planned, and less than `save_on_cpu`?"""
    setting.require_accelerator()  # threads of the CPU are measured in frontier.py
    task = _gpt2(setting.device, 32)
    task.prepare()
    measured = measure(task.model, task.sample, loss=task.loss, repeats=5, progress=False)
    profile, found = measured.offload_profile, measure_link(setting.device)
    for tenths in (0, 3, 6):
        budget = (
            profile.required_bytes + (profile.peak_bytes - profile.required_bytes) * tenths // 10
        )
        solution = solve_offload(profile, budget, link=found, method="heuristics")
        planned = measured.planned(solution)

        def on_cpu(sample: torch.Tensor) -> torch.Tensor:
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                output: torch.Tensor = task.model(sample)
                return output

        ways: dict[str, Forward] = {"plain": task.model, "ours": planned, "save_on_cpu": on_cpu}
        took = interleaved_times(task, ways, setting.rounds)
        yield {
            "budget": mebibytes(budget),
            "peak": mebibytes(peak_bytes(task, planned)),
            "step": f"{took['ours'].median / 1e6:.2f} ms",
            "planned": f"{solution.makespan / took['ours'].median - 1:+.1%}",
            "of plain": f"{took['ours'].ratio_to(took['plain']):.3f}",
            "of save_on_cpu": f"{took['ours'].ratio_to(took['save_on_cpu']):.3f}",
        }
        planned.close()


def limit(setting: Setting) -> Iterator[Row]:
    """How much must the device have beyond a budget and 22 MiB, so that a step runs?"""
    accelerator = setting.require_accelerator()
    task = _resnet(setting.device, 32)
    task.prepare()
    measured = measure(task.model, task.sample, loss=task.loss, repeats=1, progress=False)
    solution = solve_measured(measured, "60%", DP(discards="free"))
    step = step_of(task, measured.planned(solution))
    step()
    let_go(setting.device)
    index = torch.cuda.current_device()
    total = torch.cuda.mem_get_info(index)[1]
    for margin in (0.2, 0.1, 0.05, 0.02):
        room = accelerator.memory().reserved + PAGES + int(solution.budget * (1 + margin))
        torch.cuda.set_per_process_memory_fraction(room / total, index)
        try:
            step()
            verdict = "runs"
        except torch.OutOfMemoryError:
            verdict = "out of memory"
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0, index)
            let_go(setting.device)
        yield {"budget and": f"{margin:.0%}", "step": verdict}


def estimates(setting: Setting) -> Iterator[Row]:
    """How far is `estimate` of the data sheet from what is measured?"""
    if not setting.sheet:
        raise LookupError("no data sheet is known for this device")
    for build in (_gpt2, _resnet):
        task = build(setting.device)
        measured = measure(task.model, task.sample, loss=task.loss, repeats=5, progress=False)
        model, sample = copy.deepcopy(task.model), (task.sample,)
        told = estimate(model, sample, device=setting.sheet, stage_options=False)
        keep = Schedule.keep_all(len(measured.profile))
        found = simulate(measured.profile_for(keep), keep)
        guessed = simulate(told.profile, Schedule.keep_all(len(told.profile)))
        yield {
            "network": task.name,
            "time": f"{guessed.makespan / found.makespan - 1:+.1%}",
            "peak": f"{guessed.peak_bytes / found.peak_bytes - 1:+.1%}",
        }


def ways(setting: Setting) -> Iterator[Row]:
    """Which way does `fit` choose at 40 %, how long did that take, and is a step as it predicts?"""
    task = _gpt2(setting.device, 32)
    task.prepare()
    for name, means in {"chosen by fit": {}, **_MEANS}.items():
        options = {"loss": task.loss, "repeats": 5, "progress": False, **means}
        took = interleaved_times(task, {"plain": task.model}, setting.rounds)["plain"].median
        begin = time.perf_counter()
        try:
            fit(task.model, (task.sample,), budget=0.4, **options)
        except InfeasibleBudgetError as error:
            yield {"way": name, "chosen": f"needs {mebibytes(error.required)}"}
            continue
        planned = time.perf_counter() - begin
        step = interleaved_times(task, {"ours": task.model}, setting.rounds)["ours"].median
        fitted: Any = task.model.chainstay
        makespan = fitted.solution.makespan
        chosen = [alternative.name for alternative in fitted.alternatives if alternative.is_chosen]
        yield {
            "way": name,
            "chosen": ", ".join(chosen) or name,
            "planned in": f"{planned:.1f} s",
            "step": f"{step / 1e6:.2f} ms",
            "planned": f"{makespan / step - 1:+.1%}",
            "of plain": f"{step / took:.3f}",
        }
        unfit(task.model)


def networks(setting: Setting) -> Iterator[Row]:
    """Whole networks by plans, beside plain training and checkpoint_sequential."""
    yield from plans(setting.device, setting.deadline, setting.rounds)


def models(setting: Setting) -> Iterator[Row]:
    """Models of transformers and torchvision by `fit`, beside gradient checkpointing."""
    with deterministic([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
        yield from model_rows(setting.device, setting.deadline, setting.rounds)


def _differing(one: list[torch.Tensor], other: list[torch.Tensor]) -> int:
    return sum(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


Question = Callable[[Setting], Iterator[Row]]
QUESTIONS: Final[tuple[Question, ...]] = (
    works, link, memory, autotuning, limit, times, repeats, estimates, offload, ways, models,
    networks,
)  # fmt: skip
