"""Profiles by hand-worked digits, and a world left as it was."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from chainstay.errors import UnsupportedModelError
from chainstay.runtime import MemoryTrace, measure, trace_memory
from torch_release import IS_TORCH_2_6


def test_trace_gives_the_curve_of_what_is_allocated() -> None:
    def work() -> torch.Tensor:
        first = torch.zeros(100)
        second = torch.zeros(50)
        del first
        return second

    trace = trace_memory(work, "cpu")
    assert (trace.peak_bytes, trace.end_bytes) == (600, 200)
    assert trace.bytes == (0, 400, 600, 200)
    assert list(trace.times) == sorted(trace.times)
    assert trace.times[0] == 0


def test_trace_sees_temporaries_inside_operators() -> None:
    values = torch.rand(1000, dtype=torch.float64)
    trace = trace_memory(lambda: values.sort()[0], "cpu")
    assert trace.peak_bytes > trace.end_bytes == 8000


def test_trace_ends_the_profiler_when_the_function_fails() -> None:
    def fail() -> None:
        raise KeyError("on purpose")

    with pytest.raises(KeyError):
        trace_memory(fail, "cpu")
    assert trace_memory(lambda: None, "cpu") == MemoryTrace(
        peak_bytes=0, end_bytes=0, times=(0,), bytes=(0,)
    )


def test_trace_does_not_see_older_garbage_go() -> None:
    class Ring:
        def __init__(self) -> None:
            self.itself = self
            self.tensor = torch.zeros(1000)

    def work() -> None:
        Ring()

    def make_much_garbage() -> list[list[int]]:
        return [[number] for number in range(100_000)]

    gc.collect()
    assert trace_memory(work, "cpu").end_bytes == 4000
    trace = trace_memory(make_much_garbage, "cpu")
    assert (min(trace.bytes), trace.end_bytes) == (0, 0)
    assert gc.isenabled()


def test_trace_refuses_other_devices() -> None:
    with pytest.raises(UnsupportedModelError, match="'meta' device cannot be measured"):
        trace_memory(lambda: None, "meta")


def test_profile_of_linear_layers_by_hand() -> None:
    """Linear saves its input only; the output is the caller's until the step ends."""
    model = nn.Sequential(nn.Linear(30, 20, bias=False), nn.Linear(20, 10, bias=False))
    profile = measure(model, torch.ones(7, 30), loss=torch.Tensor.mean, repeats=1).profile
    first, second, loss = profile.stages
    standing = 7 * 30 * 4 + 4 + 4 + 280  # the input, the loss value, its gradient, the output
    assert (profile.input_bytes, profile.input_gradient_bytes) == (0, 0)  # it is not let go
    assert (first.output_bytes, first.saved_bytes, first.gradient_bytes) == (560, 560, 560)
    assert first.forward_overhead_bytes == standing
    # the weight's gradient and two scalars of measuring, less the output: it is gone by then
    assert first.backward_overhead_bytes == 20 * 30 * 4 + 8 - 560 + standing
    assert (second.output_bytes, second.gradient_bytes) == (280, 280)
    assert (second.saved_bytes, second.forward_overhead_bytes) == (280, standing)
    assert (loss.output_bytes, loss.saved_bytes, loss.gradient_bytes) == (4, 4, 4)


def test_a_loss_that_keeps_the_output_makes_it_count() -> None:
    model = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10))
    kept = measure(model, torch.ones(7, 30), loss=lambda y: y.square().mean(), repeats=1)
    assert kept.profile.stages[1].output_bytes == 280
    unknown = measure(model, torch.ones(7, 30), repeats=1)
    assert unknown.profile.stages[1].output_bytes == 280
    assert unknown.profile.stages[2].forward_time == 0


def test_integer_input_has_no_gradient_and_a_wanted_one_has() -> None:
    tokens = measure([nn.Embedding(5, 3)], torch.zeros(4, dtype=torch.long), repeats=1)
    assert (tokens.profile.input_bytes, tokens.profile.input_gradient_bytes) == (0, 0)
    assert tokens.profile.stages[-1].forward_overhead_bytes == 32, "it counts all the time"
    wanted = measure([nn.Linear(3, 3)], torch.zeros(4, 3, requires_grad=True), repeats=1)
    assert (wanted.profile.input_bytes, wanted.profile.input_gradient_bytes) == (0, 48)


def test_saved_buffers_and_random_states_are_in_the_profile() -> None:
    plain = nn.Sequential(nn.Linear(100, 100), nn.Linear(100, 100))
    norm = nn.Sequential(nn.Linear(100, 100), nn.BatchNorm1d(100))
    normed = nn.Sequential(norm, nn.Linear(100, 100))
    sample = torch.ones(2, 100)
    before, after = (measure(model, sample, repeats=1).profile.stages for model in (plain, normed))
    buffers = 2 * 400 + 8  # running mean, running variance, batches tracked
    second = after[1].forward_overhead_bytes - before[1].forward_overhead_bytes
    assert second == buffers


def test_a_stage_that_runs_again_sets_the_present_random_state_aside() -> None:
    model = nn.Sequential(nn.Dropout(), nn.ReLU())
    x = torch.ones(2, 4, requires_grad=True)
    profile = measure(model, x, loss=torch.Tensor.mean, repeats=1).profile
    state, scalars = torch.get_rng_state().nbytes, 4 + 4
    overheads = [stage.forward_overhead_bytes for stage in profile.stages]
    assert overheads[0] >= 2 * state + scalars
    assert state + scalars <= overheads[1] < 2 * state


def test_effects_name_what_a_stage_changes() -> None:
    """Even where the sample's values would not show it: a mean of zeros stays one on zeros."""
    norm = nn.BatchNorm1d(4)
    stages = [nn.Linear(4, 4, bias=False), norm, nn.Dropout()]
    values = {name: buffer.clone() for name, buffer in norm.named_buffers()}
    measured = measure(stages, torch.zeros(2, 4), repeats=1)
    names = measured.chain.names
    assert [of_stage.draws_random for of_stage in measured.chain.effects] == [False, False, True]
    assert [
        {names[position] for position in of_stage.written} for of_stage in measured.chain.effects
    ] == [
        set(),
        {"1.running_mean", "1.running_var", "1.num_batches_tracked"},
        set(),
    ]
    assert all(torch.equal(buffer, values[name]) for name, buffer in norm.named_buffers())


class Fragile(nn.Module):
    """Changes all that it can, then fails or does not."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.fails = fails
        self.runs = 0
        self.norm = nn.BatchNorm1d(4)
        self.dropout = nn.Dropout()
        self.switched = nn.Identity()

    def forward(self, activation: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        self.switched.eval()
        output: torch.Tensor = self.dropout(self.norm(activation))
        if self.fails:
            raise KeyError("on purpose")
        return output


@pytest.mark.parametrize("fails", [False, True])
def test_measuring_leaves_everything_as_it_was(fails: bool) -> None:  # noqa: FBT001  # a parameter of the test
    fragile = Fragile(fails=fails)
    first, last = nn.Linear(4, 4), nn.Linear(4, 4)
    model = nn.Sequential(first, fragile, last)
    last.eval()
    gradient = torch.full_like(first.weight, 3.0)
    first.weight.grad = gradient
    sample = torch.rand(2, 4, requires_grad=True)
    buffers = dict(model.named_buffers())
    values = {name: buffer.clone() for name, buffer in buffers.items()}
    state = torch.get_rng_state()
    caught = None
    try:
        measure(model, sample, loss=torch.Tensor.mean, repeats=1)
    except UnsupportedModelError as error:
        caught = error  # held on to, as a debugger would: nothing may wait for its frames
    assert (caught is not None) == fails
    if caught is not None:
        assert "stage 1 (Fragile1) cannot be traced" in str(caught)
        raised = "an exception" if IS_TORCH_2_6 else "KeyError('on purpose')"
        assert f"it raises {raised}" in str(caught)
    assert fragile.runs == 0
    assert all(buffer is buffers[name] for name, buffer in model.named_buffers())
    assert all(torch.equal(buffer, values[name]) for name, buffer in buffers.items())
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model] == [True, True, False]
    assert fragile.switched.training
    assert first.weight.grad is gradient
    assert bool((gradient == 3.0).all())
    assert all(
        parameter.grad is None for parameter in model.parameters() if parameter is not first.weight
    )
    assert sample.requires_grad
    assert sample.grad is None


CLOCK = [0]
"""What the time is said to be."""


@torch.library.custom_op("chainstay_tests::tick", mutates_args=())
def tick(x: torch.Tensor, forward: int, backward: int) -> torch.Tensor:  # noqa: ARG001  # see below
    """The identity; the clock goes on by what its forward and backward are said to take."""
    CLOCK[0] += forward
    return x.clone()


@tick.register_fake
def _(x: torch.Tensor, forward: int, backward: int) -> torch.Tensor:  # noqa: ARG001  # as `tick`
    return torch.empty_like(x)


def _keep_time(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:  # noqa: ARG001  # as torch calls it
    ctx.backward_time = inputs[2]


def _tick_back(ctx: Any, gradient: torch.Tensor) -> Any:
    CLOCK[0] += ctx.backward_time
    return gradient, None, None


tick.register_autograd(_tick_back, setup_context=_keep_time)


@pytest.mark.parametrize("free_bytes", [0, 1 << 40], ids=["stage by stage", "in whole steps"])
def test_times_belong_to_their_stages(monkeypatch: pytest.MonkeyPatch, free_bytes: int) -> None:
    """What needs no gradient runs in front of the stages; nobody runs the loss again."""

    def ticking(forward: int, backward: int) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: tick(x, forward, backward)

    monkeypatch.setattr("chainstay.runtime.devices.cpu.now", lambda: CLOCK[0])
    monkeypatch.setattr("chainstay.runtime.devices.cpu.unused_host_bytes", lambda: free_bytes)
    layers = (ticking(7, 10_000), nn.Linear(8, 8), ticking(100, 30), ticking(5, 600))
    stages: list[Callable[[torch.Tensor], torch.Tensor]] = [*layers]
    measured = measure(stages, torch.rand(4, 8), loss=lambda x: ticking(40, 2)(x).sum(), repeats=2)
    times = [(stage.forward_time, stage.backward_time) for stage in measured.profile.stages]
    assert times == [(0, 0), (0, 0), (100, 30), (5, 600), (40, 2)]


class _CastsTakeTime(TorchDispatchMode):
    """The clock goes on by 1 where a weight of 8 x 8 is cast to the low precision."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        is_cast = func is torch.ops.aten._to_copy.default and result.dtype is torch.bfloat16
        CLOCK[0] += is_cast and result.shape == (8, 8)
        return result


@pytest.mark.parametrize("free_bytes", [0, 1 << 40], ids=["stage by stage", "in whole steps"])
def test_under_autocast_every_run_of_a_step_casts_its_weights(
    monkeypatch: pytest.MonkeyPatch, free_bytes: int
) -> None:
    """A run again does so too: in a backward outside of autocast there are no copies any more."""
    monkeypatch.setattr("chainstay.runtime.devices.cpu.now", lambda: CLOCK[0])
    monkeypatch.setattr("chainstay.runtime.devices.cpu.unused_host_bytes", lambda: free_bytes)
    layers = [nn.Linear(8, 8) for _ in range(3)]
    with torch.autocast("cpu", torch.bfloat16), _CastsTakeTime():  # type: ignore[no-untyped-call]  # as torch has it
        measured = measure(layers, torch.rand(4, 8), loss=torch.Tensor.mean, repeats=2)
    times = [(stage.forward_time, stage.backward_time) for stage in measured.profile.stages]
    assert times == [(1, 0), (1, 0), (1, 0), (0, 0)]


@pytest.mark.parametrize("free_bytes", [0, 1 << 40], ids=["stage by stage", "in whole steps"])
def test_a_backward_that_fails_is_told_with_its_stage(
    monkeypatch: pytest.MonkeyPatch, free_bytes: int
) -> None:
    monkeypatch.setattr("chainstay.runtime.devices.cpu.unused_host_bytes", lambda: free_bytes)

    def failing(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.requires_grad:
            y.register_hook(lambda gradient: gradient[:, :2].reshape(3, 9))
        return y * 1

    first = nn.Linear(8, 8)
    model: list[Callable[[torch.Tensor], torch.Tensor]] = [first, failing, nn.Linear(8, 3)]
    with pytest.raises(UnsupportedModelError, match=r"stage 1 .*input of shape \(4, 8\)"):
        measure(model, torch.rand(4, 8), repeats=1)
    assert all(parameter.grad is None for parameter in first.parameters())


def test_a_model_of_which_nothing_is_trained_is_refused() -> None:
    frozen = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)).requires_grad_(requires_grad=False)
    with pytest.raises(
        UnsupportedModelError, match=r"nothing that the model returns .* a gradient"
    ):
        measure(frozen, torch.randn(3, 4))
