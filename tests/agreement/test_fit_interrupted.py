"""Steps that break off anywhere leave nothing behind, and the next step is right."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from chainstay.errors import PlanMismatchError
from chainstay.runtime import trace_memory
from interrupting import Interrupting, InterruptionError
from training_conditions import PLANS, SUBJECTS, Sample, differences, fit_to, pair, trained

pytestmark = pytest.mark.usefixtures("equal_times")

each_subject = pytest.mark.parametrize("subject", SUBJECTS)
each_share = pytest.mark.parametrize("share", PLANS)
_PLACES = 10


@dataclass(frozen=True)
class Surroundings:
    """What a step may patch for a while."""

    attributes: dict[str, int]
    training: list[bool]
    autocast: tuple[bool, torch.dtype]
    gradients: bool
    deterministic: bool

    @classmethod
    def of(cls, model: nn.Module) -> Surroundings:
        """The present ones; objects by identity."""
        named = {
            f"{path} {name}": id(value)
            for path, module in model.named_modules()
            for name, value in (*vars(module).items(), *module.named_buffers(recurse=False))
            if name != "_compiled_call_impl"
        }
        return cls(
            named,
            [module.training for module in model.modules()],
            (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")),
            torch.is_grad_enabled(),
            torch.are_deterministic_algorithms_enabled(),
        )


@contextmanager
def leaving_surroundings(model: nn.Module) -> Iterator[None]:
    before = Surroundings.of(model)
    yield
    assert Surroundings.of(model) == before


def whole_step(model: nn.Module, sample: Sample) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        loss = sample.loss(model)
    loss.backward()


def operators_of(model: nn.Module, sample: Sample) -> tuple[int, int]:
    """How many a forward has, and a whole step; a copy is captured before, by a call of its own."""
    sample.loss(model)
    with Interrupting(None) as mode:
        loss = sample.loss(model)
        forward = mode.count
        loss.backward()
    return forward, mode.count


def with_gradients(model: nn.Module) -> None:
    """Allocated before, so that what a step allocates should be gone after it."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)


@each_share
@each_subject
@pytest.mark.parametrize("error", [InterruptionError, torch.OutOfMemoryError])
def test_a_step_that_breaks_off_anywhere(subject: str, share: str, error: type[Exception]) -> None:
    plain, planned, sample = pair(subject, share)
    initial = {name: value.clone() for name, value in planned.state_dict().items()}
    with_gradients(planned)
    forward, step = operators_of(planned, sample)
    offset = 0 if error is InterruptionError else step // _PLACES // 2

    def interrupted(at: int) -> None:
        with suppress(error), Interrupting(at, error):
            whole_step(planned, sample)
            raise AssertionError("not interrupted")

    def interrupted_then_whole(at: int) -> None:
        interrupted(at)
        whole_step(planned, sample)  # the engine itself holds a failed graph until it runs again

    for at in range(offset, step, step // _PLACES):
        with leaving_surroundings(planned):
            assert trace_memory(partial(interrupted_then_whole, at), "cpu").end_bytes == 0, at
        if at > forward:
            assert_random_state_after_forward(planned, sample, partial(interrupted, at))
            whole_step(planned, sample)  # or the next trace counts what the engine held as freed
    planned.zero_grad()
    planned.load_state_dict(initial)
    assert differences(trained(planned, sample), trained(plain, sample)) == []


def assert_random_state_after_forward(
    model: nn.Module, sample: Sample, interrupted: Callable[[], None]
) -> None:
    """A recomputation that breaks off has put the present random numbers back."""
    torch.manual_seed(11)
    sample.loss(model)
    expected = torch.get_rng_state()
    torch.manual_seed(11)
    interrupted()
    assert torch.equal(torch.get_rng_state(), expected)


@each_share
@each_subject
def test_a_failed_backward_can_be_asked_again_after_a_new_forward_only(
    subject: str, share: str
) -> None:
    """The graph of a failed backward never gives wrong numbers: the same ones, or an error."""
    plain, planned, sample = pair(subject, share)
    forward, step = operators_of(planned, sample)
    state = {name: value.clone() for name, value in plain.state_dict().items()}
    for at in range(1, step - forward, (step - forward) // 5):
        for model in (plain, planned):
            model.load_state_dict(state)
        torch.manual_seed(5)
        expected = gradients_of(sample.loss(plain), plain)
        torch.manual_seed(5)
        loss = sample.loss(planned)
        with suppress(InterruptionError), Interrupting(at):
            gradients_of(loss, planned)
        try:
            found = gradients_of(loss, planned)
        except PlanMismatchError as cause:
            refusal = str(cause)
        else:
            refusal = ""
            assert all(map(torch.equal, found, expected)), at
        assert not refusal or "run the forward again" in refusal


def gradients_of(loss: torch.Tensor, model: nn.Module) -> tuple[torch.Tensor, ...]:
    return torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)


@each_share
@each_subject
def test_forwards_without_backward_leave_nothing(subject: str, share: str) -> None:
    _, planned, sample = pair(subject, share)
    sample.loss(planned)  # which captures it

    def forwards() -> None:
        held = [sample.loss(planned), sample.loss(planned)]
        assert len(held) == 2
        with torch.no_grad():
            sample.loss(planned)

    with leaving_surroundings(planned):
        assert trace_memory(forwards, "cpu").end_bytes == 0


@each_share
@each_subject
def test_the_graph_of_a_step_dies_with_its_loss(subject: str, share: str) -> None:
    """No cycle holds it until some collection of garbage."""
    _, planned, sample = pair(subject, share)
    loss = sample.loss(planned)
    node = loss.grad_fn
    assert node is not None
    metadata: Any = node.metadata
    metadata["token"] = _Token()
    first = weakref.ref(metadata["token"])
    loss.backward()
    del loss, node, metadata
    assert first() is None


class _Token:
    """Lives as long as a node's metadata, in which it is."""


def test_tokens_that_do_not_exist() -> None:
    """An operator's own error, in the middle of a forward by plan."""
    plain, planned, sample = pair("transformer", "60 %")
    wrong = Sample((sample.args[0] + 1000,), sample.kwargs)
    with leaving_surroundings(planned), pytest.raises(IndexError, match="out of range"):
        wrong.loss(planned)
    assert differences(trained(planned, sample), trained(plain, sample)) == []


_calls_left = -1


@torch.library.custom_op("chainstay_tests::tanh_until_told", mutates_args=())
def tanh_until_told(x: torch.Tensor) -> torch.Tensor:
    """The user's own operator, which fails when it is told to."""
    global _calls_left  # noqa: PLW0603  # operators have no other state
    _calls_left -= 1
    if _calls_left == 0:
        raise InterruptionError("on purpose")
    return x.tanh()


tanh_until_told.register_fake(torch.empty_like)


def _save(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:  # noqa: ARG001
    ctx.save_for_backward(output)


def _slope(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor
    (output,) = ctx.saved_tensors
    return gradient * (1 - output**2)


tanh_until_told.register_autograd(_slope, setup_context=_save)


class Failing(nn.Module):
    """Runs that."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = tanh_until_told(x)
        return output


@pytest.mark.parametrize("calls", [1, 2], ids=["first run", "recomputation"])
def test_an_exception_of_the_users_own(calls: int) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(12, 24)]
    for activation in (nn.Tanh(), Failing(), nn.Tanh()):
        layers += [activation, nn.Linear(24, 24), nn.BatchNorm1d(24), nn.Dropout()]
    plain = nn.Sequential(*layers, nn.Tanh(), nn.Linear(24, 4))
    sample = SUBJECTS["layered"][1]
    state = {name: value.clone() for name, value in plain.state_dict().items()}
    expected = trained(plain, sample)
    plain.load_state_dict(state)
    plain.zero_grad()
    planned = fit_to(plain, sample, "least")
    with_gradients(planned)

    def fails() -> None:
        global _calls_left  # noqa: PLW0603  # as above
        _calls_left = calls
        with suppress(InterruptionError):
            whole_step(planned, sample)
            raise AssertionError("it did not run that often")

    assert trace_memory(fails, "cpu").end_bytes == 0
    planned.load_state_dict(state)
    planned.zero_grad()
    assert differences(trained(planned, sample), expected) == []
