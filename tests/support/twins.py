"""A plain model and its fitted twin, trained alike; whatever they leave behind must be equal.

Pictures show everything that can be reached from a model: tensors with gradients, bit for bit,
attributes of any kind, generators, hooks. Only what fitting itself adds is left out.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import BuiltinFunctionType, FunctionType, MappingProxyType
from typing import Any, Final

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import chainstay
from chainstay.errors import InfeasibleBudgetError, UnsupportedModelError
from chainstay.fitting.fitted import Fitted
from chainstay.runtime import trace_memory
from torch_release import IS_TORCH_2_6
from zoo import loss_of

__all__ = [
    "SAMPLE",
    "TELLS_HOOKS",
    "Call",
    "Stack",
    "Step",
    "backward_step",
    "batch",
    "differences",
    "fit_to_least",
    "fitted_twins",
    "peak_of",
    "picture",
    "recomputes",
    "require_equal_steps",
    "require_refused",
    "require_trains_equally",
    "seed",
    "shown",
]

torch.set_num_threads(1)

TELLS_HOOKS: Final = pytest.mark.skipif(
    IS_TORCH_2_6,
    reason="torch before 2.7 does not tell which hooks on saved tensors are on",
)

Picture = dict[str, object]
Step = Callable[[nn.Module, int], "torch.Tensor | None"]
"""Takes a model and the number of a step; leaves gradients, and gives the loss."""

_ADDED: Final = frozenset({"forward", "_chainstay_forward", "chainstay", "_compiled_call_impl"})
"""What fitting adds to a module's own attributes."""

_QUICK: Final[Mapping[str, Any]] = MappingProxyType(
    {"loss": loss_of, "method": "dp", "repeats": 1, "progress": False}
)
"""Settings of `chainstay.fit` where a test does not say otherwise."""


@dataclass(frozen=True)
class Call:
    """How a model is called."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, model: nn.Module) -> Any:
        return model(*self.args, **self.kwargs)


def batch(*shape: int) -> torch.Tensor:
    """The same numbers at every call."""
    return torch.linspace(-3, 5, torch.Size(shape).numel()).sin().reshape(shape)


SAMPLE: Final = Call((batch(64, 16),))
"""A call of a `Stack`."""


class Stack(nn.Module):
    """Layers one after another; what is tested is put into a subclass or its layers."""

    def __init__(
        self, layer: Callable[[], nn.Module] = lambda: nn.Linear(16, 16), *, depth: int = 4
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layer() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def seed(number: int) -> None:
    """All generators that a process has."""
    torch.manual_seed(number)
    random.seed(number)
    np.random.seed(number)  # noqa: NPY002  # the global one is meant


def backward_step(call: Call) -> Step:
    """A forward and a backward."""

    def step(model: nn.Module, _: int) -> torch.Tensor:
        loss = loss_of(call(model))
        loss.backward()
        return loss

    return step


def peak_of(model: nn.Module, *args: Any) -> int:
    """Bytes that the second of two steps needs, without its inputs; gradients are there before."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)

    def step() -> None:
        loss_of(model(*args)).backward()

    step()
    return trace_memory(step, "cpu").peak_bytes


def shown(model: nn.Module) -> Fitted:
    """What is behind ``model.chainstay``."""
    there = model.chainstay
    assert isinstance(there, Fitted)
    return there


def recomputes(model: nn.Module) -> bool:
    """Whether any plan of the model runs a stage twice, or a part of one that is not kept."""
    plans = [planned.solution.schedule for planned in shown(model).plans]
    stages = ([op.stage for op in plan if op.kind.is_forward] for plan in plans)
    runs_twice = any(len(set(forwards)) < len(forwards) for forwards in stages)
    return runs_twice or any(op.option for plan in plans for op in plan)


def fit_to_least(model: nn.Module, call: Call, **settings: Any) -> nn.Module:
    """`model`, fitted to the least budget that there is."""
    budget, options = 1, {**_QUICK, **settings}
    for _ in range(4):
        try:
            return chainstay.fit(model, call.args, call.kwargs, budget=budget, **options)
        except InfeasibleBudgetError as refusal:
            budget = refusal.required
    raise AssertionError(f"nothing fits in {budget} bytes, although that was said to be enough")


def fitted_twins(
    make: Callable[[], nn.Module],
    call: Call,
    *,
    watched: Sequence[object] = (),
    **settings: Any,
) -> tuple[nn.Module, nn.Module]:
    """A plain model and an equal one that is fitted; fitting must have changed nothing.

    Args:
        make: Makes the model.
        call: The sample.
        watched: What else must not change.
        settings: As for `chainstay.fit`; without a budget, the least.
    """
    plain, fitted = _two_of(make)
    before = _surroundings(fitted, call, watched)
    if "budget" in settings:
        options = {**_QUICK, **settings}
        chainstay.fit(fitted, call.args, call.kwargs, **options)
    else:
        fit_to_least(fitted, call, **settings)
    assert differences(before, _surroundings(fitted, call, watched)) == []
    return plain, fitted


def require_equal_steps(
    plain: nn.Module,
    fitted: nn.Module,
    step: Step,
    steps: int = 3,
    *,
    watched: Sequence[object] = (),
) -> None:
    """Train both, one after another from the same seed, with plain gradient descent."""
    expected = list(_trained(plain, step, steps, watched))
    found = list(_trained(fitted, step, steps, watched))
    for number, (one, other) in enumerate(zip(expected, found, strict=True)):
        assert differences(one, other) == [], f"in step {number}"


def require_trains_equally(
    make: Callable[[], nn.Module],
    call: Call,
    step: Step | None = None,
    *,
    recomputed: bool = True,
    steps: int = 3,
    watched: Sequence[object] = (),
    **settings: Any,
) -> nn.Module:
    """Fit a model to the least budget and train it beside a plain one.

    Args:
        make: Makes the model.
        call: The sample.
        step: Of the training; `backward_step` of the sample by default.
        recomputed: Whether a plan must run something twice.
        steps: How many.
        watched: What else fitting must not change, and training must change alike.
        settings: As for `chainstay.fit`.

    Returns:
        The fitted model.
    """
    plain, fitted = fitted_twins(make, call, watched=watched, **settings)
    require_equal_steps(plain, fitted, step or backward_step(call), steps, watched=watched)
    assert recomputes(fitted) or not recomputed, "the plan is another one than meant"
    return fitted


def require_refused(
    make: Callable[[], nn.Module],
    call: Call,
    reason: str,
    *,
    step: Step | None = None,
    error: type[Exception] = UnsupportedModelError,
    watched: Sequence[object] = (),
    **settings: Any,
) -> None:
    """Fitting must be refused for this reason, and leave the model as if it had not been tried."""
    plain, refused = _two_of(make)
    before, added = _surroundings(refused, call, watched), _added(refused)
    with pytest.raises(error, match=reason):
        fit_to_least(refused, call, **settings)
    assert differences(before, _surroundings(refused, call, watched)) == []
    assert _added(refused) == added
    if step is not None:
        require_equal_steps(plain, refused, step, watched=watched)


def picture(*values: object, identities: bool = False) -> Picture:
    """All that can be reached from some objects, by path.

    Args:
        values: The objects.
        identities: Whether containers, modules and tensors must stay the same objects.
    """
    painter = _Painter(identities)
    for index, value in enumerate(values):
        painter.paint(str(index), value)
    return painter.found


def differences(one: Picture, other: Picture) -> list[str]:
    """Paths of what differs, the first ones."""
    paths = [path for path in {**one, **other} if one.get(path, _NONE) != other.get(path, _NONE)]
    return paths[:8]


_NONE: Final = object()


def _two_of(make: Callable[[], nn.Module]) -> tuple[nn.Module, nn.Module]:
    models = []
    for _ in range(2):
        seed(0)
        models.append(make())
    return models[0], models[1]


def _surroundings(model: nn.Module, call: Call, watched: Sequence[object]) -> Picture:
    return picture(model, call, watched, identities=True) | {"random": _random_states()}


def _added(model: nn.Module) -> set[tuple[str, str]]:
    modules = model.named_modules()
    return {(path, name) for path, module in modules for name in _ADDED & vars(module).keys()}


def _random_states() -> object:
    numbers = np.random.get_state(legacy=False)  # noqa: NPY002  # the global one is meant
    return bytes(torch.get_rng_state().numpy()), random.getstate(), repr(numbers)


def _trained(
    model: nn.Module, step: Step, steps: int, watched: Sequence[object]
) -> Iterator[Picture]:
    seed(7)
    for number in range(steps):
        model.zero_grad()
        loss = step(model, number)
        yield picture(loss, model, watched) | {"random": _random_states()}
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.to_dense(), alpha=0.1)


@dataclass
class _Painter:
    """Writes down what it finds.

    Attributes:
        identities: As for `picture`.
        found: By path.
        seen: Objects on the way, with a number each; held, so that no identity is used twice.
    """

    identities: bool
    found: Picture = field(default_factory=dict)
    seen: dict[int, tuple[int, object]] = field(default_factory=dict)

    def paint(self, path: str, value: Any) -> None:
        if isinstance(value, _LEAVES):
            self.found[path] = value
        elif id(value) in self.seen:
            self.found[path] = f"object {self.seen[id(value)][0]}"
        else:
            self.seen[id(value)] = len(self.seen), value
            for kinds, told in _TOLD:
                if isinstance(value, kinds):
                    self.found[path] = told(value)
                    return
            self._paint_parts(path, value)

    def _paint_parts(self, path: str, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self._paint_tensor(path, value)
        elif isinstance(value, Mapping):
            self._paint_mapping(path, value)
        elif hasattr(value, "__next__"):
            self.found[path] = repr(value)  # of itertools: with its position
        elif isinstance(value, Sequence | deque):
            self._paint_items(path, enumerate(value), len(value))
        else:
            self._paint_object(path, value)

    def _paint_tensor(self, path: str, tensor: torch.Tensor) -> None:
        with suppress(RuntimeError):  # uninitialised
            self.found[path] = (
                "a fake tensor" if isinstance(tensor, FakeTensor) else type(tensor).__name__,
                str(tensor.dtype),
                tuple(tensor.shape),
                str(tensor.layout),
                tensor.requires_grad,
                _bytes_of(tensor),
                id(tensor) if self.identities else None,
            )
        if tensor.is_leaf and not nn.parameter.is_lazy(tensor):
            self.paint(f"{path}.grad", tensor.grad)

    def _paint_mapping(self, path: str, value: Mapping[Any, Any]) -> None:
        are_hooks = path.endswith(("_hooks", "_hooks_with_kwargs", "_hooks_always_called"))
        keys: Any = [key if isinstance(key, (*_LEAVES, tuple)) else type(key) for key in value]
        keys = range(len(value)) if are_hooks else keys  # hooks have numbers of the process
        self._paint_items(
            path, zip(map(str, keys), value.values(), strict=True), list(map(str, keys))
        )
        self._note_identity(path, value)

    def _paint_items(self, path: str, items: Any, what: object) -> None:
        self.found[f"{path} items"] = what
        for key, item in items:
            self.paint(f"{path}[{key}]", item)

    def _paint_object(self, path: str, value: object) -> None:
        self.found[path] = type(value).__qualname__
        self._note_identity(path, value)
        own = getattr(value, "__dict__", {})
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in (*own, *slots):
            if not (isinstance(value, nn.Module) and name in _ADDED) and hasattr(value, name):
                self.paint(f"{path}.{name}", own[name] if name in own else getattr(value, name))

    def _note_identity(self, path: str, value: object) -> None:
        if self.identities:
            self.found[f"{path} object"] = id(value)


_TOLD: Final[tuple[tuple[Any, Callable[[Any], object]], ...]] = (
    (np.ndarray, lambda array: (array.dtype.str, array.shape, array.tobytes())),
    ((set, frozenset), lambda values: sorted(map(repr, values))),
    (random.Random, lambda generator: generator.getstate()),
    (torch.Generator, lambda generator: bytes(generator.get_state().numpy())),
    (np.random.Generator, lambda generator: repr(generator.bit_generator.state)),
    (torch.ScriptObject, lambda value: type(value).__name__),
    ((type, FunctionType, BuiltinFunctionType), lambda function: function.__qualname__),
)
"""Objects without parts, and what is to be known of them."""

_LEAVES: Final = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device)


def _bytes_of(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach()
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    plain = plain.resolve_conj().resolve_neg().contiguous().flatten().clone()
    return bytes(plain.view(torch.uint8).numpy().tobytes()) if plain.numel() else b""
