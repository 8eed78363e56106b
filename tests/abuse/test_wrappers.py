"""Fitted models inside of something else, and things that act on models from outside."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode

import chainstay
from chainstay.errors import ChainstayError, PlanMismatchError, UnsupportedModelError
from twins import (
    SAMPLE,
    TELLS_HOOKS,
    Stack,
    Step,
    backward_step,
    differences,
    fit_to_least,
    fitted_twins,
    picture,
    recomputes,
    require_equal_steps,
    require_trains_equally,
    seed,
)
from zoo import loss_of

X = SAMPLE.args[0]


def layer() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))


make = functools.partial(Stack, layer)


def _in(context: Callable[[], Any]) -> Step:
    """A step whose forward alone runs in a context."""

    def step(model: nn.Module, _: int) -> torch.Tensor:
        with context():
            loss = loss_of(SAMPLE(model))
        loss.backward()
        return loss

    return step


class _Precision:
    def __enter__(self) -> None:
        torch.set_float32_matmul_precision("medium")

    def __exit__(self, *_: object) -> None:
        torch.set_float32_matmul_precision("highest")


class _Deterministic:
    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(mode=True)

    def __exit__(self, *_: object) -> None:
        torch.use_deterministic_algorithms(mode=False)


class Halving(TorchDispatchMode):
    """Simulates another precision."""

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        return output.bfloat16().float() if "addmm" in str(func) else output


class _Double:
    """Tensors are made in double precision."""

    def __enter__(self) -> None:
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *_: object) -> None:
        torch.set_default_dtype(torch.float32)


class Ramp(nn.Module):
    """Multiplies by numbers that are made in every forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.linspace(0, 1, x.shape[-1])


CONTEXTS: dict[str, Callable[[], Any]] = {
    "the precision of products": _Precision,
    "kernels of mkldnn": lambda: torch.backends.mkldnn.flags(enabled=False),
    "deterministic kernels": _Deterministic,
    "saved tensors on the host": torch.autograd.graph.save_on_cpu,
    "a search for anomalies": torch.autograd.detect_anomaly,
    "a profiler": torch.profiler.profile,
    "a default device": lambda: torch.device("cpu"),
}


@pytest.mark.filterwarnings("ignore:TF32:UserWarning", "ignore:Anomaly:UserWarning")
@pytest.mark.parametrize("by", ["graph", "blocks"])
@pytest.mark.parametrize("name", CONTEXTS)
def test_around_the_forward_only(name: str, by: str) -> None:
    """Kernels have more to say where matrices are larger; some need more memory, too."""

    def wide() -> nn.Module:
        return Stack(lambda: nn.Sequential(nn.Linear(16, 128), nn.GELU(), nn.Linear(128, 16)))

    require_trains_equally(wide, SAMPLE, _in(CONTEXTS[name]), steps=2, by=by, budget="60%")


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_another_default_type_around_the_backward_only(by: str) -> None:
    def ramped() -> nn.Module:
        return Stack(lambda: nn.Sequential(nn.Linear(16, 16), Ramp()))

    def step(model: nn.Module, _: int) -> torch.Tensor:
        loss = loss_of(SAMPLE(model))
        with _Double():
            loss.backward()
        return loss

    require_trains_equally(ramped, SAMPLE, step, steps=2, by=by)


@pytest.mark.parametrize("by", ["graph", "blocks"])
@pytest.mark.parametrize(
    ("context", "error", "reason"),
    [
        pytest.param(
            lambda: saved_tensors_hooks(lambda t: t.bfloat16(), lambda t: t.float()),
            PlanMismatchError,
            "saved_tensors_hooks of .*test_wrappers are on around a call that goes by a plan",
            marks=TELLS_HOOKS,
        ),
        (
            Halving,
            UnsupportedModelError,
            "Stack is called under the dispatch mode Halving; what its plan runs again",
        ),
    ],
    ids=["saved tensors hooks", "dispatch mode"],
)
def test_refused_around_the_forward(
    context: Callable[[], Any], error: type[Exception], reason: str, by: str
) -> None:
    plain, fitted = fitted_twins(make, SAMPLE, by=by)
    before = picture(fitted)
    with pytest.raises(error, match=reason):
        _in(context)(fitted, 0)
    assert differences(before, picture(fitted)) == []
    require_equal_steps(plain, fitted, backward_step(SAMPLE))


@pytest.mark.long
def test_inside_of_another_model_that_is_fitted() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.rest = make(), make()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.rest(self.inner(x))
            return y

    seed(0)
    plain = Outer()
    seed(0)
    fitted = Outer()
    fit_to_least(fitted.inner, SAMPLE)
    fit_to_least(fitted, SAMPLE)
    require_equal_steps(plain, fitted, backward_step(SAMPLE))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_inside_of_what_is_compiled_around_it() -> None:
    """A graph of a plan would give wrong gradients: it is not traced."""
    plain, fitted = fitted_twins(make, SAMPLE)

    def outside(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = model(x * 2).square().mean()
        return y

    compiled = torch.compile(outside, backend="eager")
    for model, function in ((plain, outside), (fitted, compiled)):
        function(model, X).backward()
    assert differences(picture(plain), picture(fitted)) == []


@pytest.mark.long
def test_data_parallel() -> None:
    plain, fitted = fitted_twins(make, SAMPLE)
    require_equal_steps(nn.DataParallel(plain), nn.DataParallel(fitted), backward_step(SAMPLE))


FUNCTIONS: dict[str, Callable[[nn.Module], object]] = {
    "functional_call": lambda model: torch.func.functional_call(
        model, {name: value * 2 for name, value in model.named_parameters()}, (X,)
    ),
    "grad": lambda model: torch.func.grad(lambda x: model(x).sum())(X),
    "vmap": lambda model: torch.func.vmap(model)(X[:8]),
    "jacrev": lambda model: torch.func.jacrev(lambda x: model(x).sum())(X),
}


def tangent(model: nn.Module) -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(X, X))).tangent


@pytest.mark.long
@pytest.mark.parametrize("settings", [{"by": "graph"}, {"by": "blocks", "budget": 10**6}])
def test_forward_mode_ad(settings: dict[str, Any]) -> None:
    """It is refused in words; without gradients the model runs plainly; training goes on."""
    plain, fitted = fitted_twins(make, SAMPLE, **settings)
    for ask in (tangent, lambda model: torch.func.jvp(lambda x: model(x).sum(), (X,), (X,))):
        with pytest.raises(UnsupportedModelError, match=r"in forward-mode AD .* under torch.no_g"):
            ask(fitted)
        with torch.no_grad():
            assert differences(picture(ask(plain)), picture(ask(fitted))) == []
    require_equal_steps(plain, fitted, backward_step(SAMPLE), 1)


@pytest.mark.parametrize("by", ["graph", "blocks"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_torch_func(name: str, by: str) -> None:
    """Equal, or refused in words; training goes on."""
    plain, fitted = fitted_twins(make, SAMPLE, budget=10**6, by=by)
    expected = FUNCTIONS[name](plain)
    try:
        found = FUNCTIONS[name](fitted)
    except ChainstayError as refusal:
        assert "Stack is called under a transform of torch.func; what" in str(refusal)  # noqa: PT017  # not in all cases
    else:
        assert differences(picture(expected), picture(found)) == []
    require_equal_steps(plain, fitted, backward_step(SAMPLE), 1)


PREPARED: dict[str, Callable[[nn.Module], object]] = {
    "spectral norm": parametrizations.spectral_norm,
    "weight norm": parametrizations.weight_norm,
    "orthogonal": parametrizations.orthogonal,
}


@pytest.mark.long
@pytest.mark.parametrize("by", ["graph", "blocks"])
@pytest.mark.parametrize("name", PREPARED)
def test_parametrizations(name: str, by: str) -> None:
    def prepared() -> nn.Module:
        model = make()
        for block in model.layers:
            PREPARED[name](block[0])  # type: ignore[index]
        return model

    require_trains_equally(prepared, SAMPLE, by=by)


@pytest.mark.long
def test_a_wrapper_that_replaces_the_forward_after_fit() -> None:
    model = fit_to_least(make(), SAMPLE)
    inner = model.forward
    model.forward = lambda x: inner(x) * 2
    for act in (chainstay.unfit, lambda module: fit_to_least(module, SAMPLE)):
        with pytest.raises(UnsupportedModelError, match="was replaced or wrapped after fitting"):
            act(model)
    assert recomputes(model)
    assert torch.equal(SAMPLE(model), inner(X) * 2)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_export_and_trace_leave_it_as_it_is() -> None:
    plain, fitted = fitted_twins(make, SAMPLE)
    for export in (lambda m: torch.jit.trace(m, (X,)), lambda m: torch.export.export(m, (X,))):
        with suppress(Exception):  # whatever torch says
            export(fitted)
        require_equal_steps(plain, fitted, backward_step(SAMPLE), 1)
