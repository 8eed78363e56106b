"""What a forward reads from Python may change at any time: each step goes by what is there then."""

from __future__ import annotations

import contextvars
import enum
import functools
import itertools
import os
import threading
from collections import deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from twins import (
    SAMPLE,
    Stack,
    Step,
    backward_step,
    fitted_twins,
    require_equal_steps,
    require_trains_equally,
    shown,
)
from zoo import loss_of

GLOBAL = 1.0
TABLE: dict[str, Any] = {"scale": 1.0}
LOCAL = threading.local()
CONTEXT = contextvars.ContextVar("scale", default=1.0)
COLLECTOR = contextvars.ContextVar[dict[str, int] | None]("collector", default=None)


class Mode(enum.Enum):
    """As configurations have them."""

    SIN = 0
    COS = 1
    TANH = 2


@dataclass(frozen=True)
class Config:
    """Cannot be changed, but replaced."""

    scale: float = 1.0
    names: tuple[str, ...] = ("sin",)


Pair = namedtuple("Pair", "scale shift")  # noqa: PYI024  # as users write it


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def halve(x: torch.Tensor) -> torch.Tensor:
    return x / 2


class Reader(Stack):
    """Reads a value in each of its layers, in a way of its own."""

    value: Any = 1.0

    def __init__(self) -> None:
        super().__init__(depth=2)
        self.options: dict[str, Any] = {"scale": 1.0, "name": "sin", "inner": {"scale": 1.0}}
        self.scales = [1.0, 1.0]
        self.config = SimpleNamespace(scale=1.0, mode=Mode.SIN)
        self.frozen = Config()
        self.pair = Pair(1.0, 0.0)
        self.history: deque[float] = deque([1.0], maxlen=2)
        self.counter = itertools.count()
        self.steps = 0
        self.scale_tensor = torch.ones(())
        self.act: Callable[[torch.Tensor], torch.Tensor] = double
        self.plugins: list[Callable[[torch.Tensor], torch.Tensor]] = []
        self.register_buffer("warm", torch.ones(()))

    def read(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.read(torch.tanh(layer(x)))
        return x


Read = Callable[[Any, torch.Tensor], torch.Tensor]
Write = Callable[[Any, int], None]


def setting(name: str, *values: object) -> Write:
    """Sets an attribute, another value in every step."""
    return lambda model, number: setattr(model, name, values[number])


def _set_global(_: object, number: int) -> None:
    globals()["GLOBAL"] = 1.0 + number


def _set_class(_: object, number: int) -> None:
    Reader.value = 1.0 + number


def _set_variable(_: object, number: int) -> None:
    CONTEXT.set(1.0 + number)


def _set_local(_: object, number: int) -> None:
    LOCAL.scale = 1.0 + number


def _set_environment(_: object, number: int) -> None:
    os.environ["CHAINSTAY_TEST_SCALE"] = str(1 + number)


def _patched(_: object, number: int) -> None:
    globals()["double"] = _DOUBLES[number]


_DOUBLES = (double, halve, torch.sin)


def _by_config(model: Any, x: torch.Tensor) -> torch.Tensor:
    match model.config.mode:
        case Mode.SIN:
            return x.sin()
        case Mode.COS:
            return x.cos()
    return x.tanh()


def _by_plugins(model: Any, x: torch.Tensor) -> torch.Tensor:
    for plugin in model.plugins:
        x = plugin(x)
    return x


_SWITCH = (True, False, True)

READERS: dict[str, tuple[Read, Write]] = {
    "an int": (lambda m, x: x * m.value, setting("value", 1, 2, 3)),
    "a float": (lambda m, x: x * m.value, setting("value", 1.0, 0.5, 0.25)),
    "a bool": (lambda m, x: x.sin() if m.value else x, setting("value", *_SWITCH)),
    "a str": (
        lambda m, x: getattr(x, m.options["name"])(),
        lambda m, n: m.options.update(name=("sin", "cos", "tanh")[n]),
    ),
    "None": (lambda m, x: x if m.value is None else x * m.value, setting("value", None, 2, None)),
    "a NumPy float": (
        lambda m, x: x * m.value,
        setting("value", np.float64(1), np.float64(2), np.float32(3)),
    ),
    "a NumPy array": (
        lambda m, x: x * torch.as_tensor(m.value, dtype=x.dtype),
        setting("value", np.ones(16), np.full(16, 2.0), np.full(16, 3.0)),
    ),
    "a plain tensor": (
        lambda m, x: x * m.scale_tensor,
        lambda m, n: setattr(m, "scale_tensor", torch.tensor(1.0 + n)),
    ),
    "a tensor in place": (lambda m, x: x * m.scale_tensor, lambda m, _: m.scale_tensor.mul_(2)),
    "a buffer": (lambda m, x: x * m.warm, lambda m, n: m.warm.fill_(1 + n)),
    "a list": (lambda m, x: x * m.scales[0], lambda m, n: m.scales.insert(0, 1.0 + n)),
    "the length of a list": (lambda m, x: x * len(m.scales), lambda m, _: m.scales.append(0)),
    "a dict": (lambda m, x: x * m.options["scale"], lambda m, n: m.options.update(scale=n + 1.0)),
    "a nested dict": (
        lambda m, x: x * m.options["inner"]["scale"],
        lambda m, n: m.options["inner"].update(scale=1.0 + n),
    ),
    "a missing key": (
        lambda m, x: x * 2 if "late" in m.options else x,
        lambda m, n: m.options.update(late=1) if n == 1 else None,
    ),
    "a namespace": (
        lambda m, x: x * m.config.scale,
        lambda m, n: setattr(m.config, "scale", 1.0 + n),
    ),
    "an enumeration": (_by_config, lambda m, n: setattr(m.config, "mode", Mode(n))),
    "a frozen dataclass": (
        lambda m, x: x * m.frozen.scale,
        lambda m, n: setattr(m, "frozen", replace(m.frozen, scale=1.0 + n)),
    ),
    "a named tuple": (
        lambda m, x: x * m.pair.scale + m.pair.shift,
        lambda m, n: setattr(m, "pair", Pair(1.0 + n, n)),
    ),
    "a deque": (lambda m, x: x * m.history[-1], lambda m, n: m.history.append(1.0 + n)),
    "a function": (lambda m, x: m.act(x), setting("act", double, halve, torch.sin)),
    "a lambda with a cell": (
        lambda m, x: m.act(x),
        lambda m, n: setattr(m, "act", lambda x: x * (1.0 + n)),
    ),
    "a partial": (
        lambda m, x: m.act(x),
        lambda m, n: setattr(m, "act", functools.partial(torch.mul, other=1.0 + n)),
    ),
    "a list of functions": (_by_plugins, lambda m, n: m.plugins.append(_DOUBLES[n])),
    "a global": (lambda _, x: x * GLOBAL, _set_global),
    "a global dict": (lambda _, x: x * TABLE["scale"], lambda _, n: TABLE.update(scale=1.0 + n)),
    "a global function": (lambda _, x: double(x), _patched),
    "a class attribute": (lambda m, x: x * m.value, _set_class),
    "a context variable": (lambda _, x: x * CONTEXT.get(), _set_variable),
    "a thread's own value": (lambda _, x: x * LOCAL.scale, _set_local),
    "the environment": (
        lambda _, x: x * float(os.environ.get("CHAINSTAY_TEST_SCALE", "1")),
        _set_environment,
    ),
    "a module's mode": (
        lambda m, x: functional.dropout(x, 0.3, m.layers[0].training),
        lambda m, n: m.layers[0].train(n != 1),
    ),
    "a dropout rate": (
        lambda m, x: functional.dropout(x, m.value, training=True),
        setting("value", 0.1, 0.2, 0.3),
    ),
}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TABLE, "scale", 1.0)
    monkeypatch.setenv("CHAINSTAY_TEST_SCALE", "1")
    for name in ("GLOBAL", "double"):
        monkeypatch.setitem(globals(), name, globals()[name])
    monkeypatch.setattr(Reader, "value", 1.0)
    LOCAL.scale = 1.0
    CONTEXT.set(1.0)


def reader(read: Read) -> Callable[[], nn.Module]:
    return type("Reader", (Reader,), {"read": read})


def writing(write: Write) -> Step:
    def step(model: nn.Module, number: int) -> torch.Tensor | None:
        write(model, number)
        return backward_step(SAMPLE)(model, number)

    return step


@pytest.mark.parametrize("name", READERS)
def test_between_steps(name: str) -> None:
    read, write = READERS[name]
    steps = 3 if name in _NUMBERS else 2
    require_trains_equally(
        reader(read),
        SAMPLE,
        writing(write),
        steps=steps,
        recomputed=False,
        budget=10**6,
        on_new_shape="run plainly",  # takes less time
    )


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_a_context_variable_holds_nothing_now_and_then(by: str) -> None:
    """As the collector of a model of ``transformers``, which each block asks for."""

    class Asking(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            wanted = COLLECTOR.get()
            y = super().forward(x).tanh()
            return y if wanted is None or "double" not in wanted else y * 2

    def make() -> nn.Module:
        return nn.Sequential(*(Asking(16, 16) for _ in range(4)))

    def step(model: nn.Module, number: int) -> torch.Tensor | None:
        token = COLLECTOR.set([None, {}, {"double": 1}][number % 3])
        try:
            return backward_step(SAMPLE)(model, number)
        finally:
            COLLECTOR.reset(token)

    plain, fitted = fitted_twins(make, SAMPLE, by=by, budget=10**6)
    require_equal_steps(plain, fitted, step, 5)
    assert shown(fitted).plans


_NUMBERS = ("an int", "a float", "a bool", "None", "a dropout rate")
"""What TorchDynamo treats in another way once it has changed."""


class Ramp(Stack):
    """Counts its own steps, and reads the count."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.seen.append(self.steps)
        y: torch.Tensor = super().forward(x) * min(1.0, self.steps / 4)
        return y


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_a_count_of_the_models_own_goes_on_from_where_it_was(by: str) -> None:
    """Not from where measuring would have left it."""
    model = require_trains_equally(Ramp, SAMPLE, steps=6, by=by)
    assert model.steps == 6
    assert len(shown(model).plans) == 1


class Switched(nn.Module):
    """A block that reads switches."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(16, 32), nn.Linear(32, 16)
        self.scale: Any = 1
        self.is_on = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inner(x) * self.scale
        return self.out(functional.gelu(y) if self.is_on else y)


@pytest.mark.parametrize("by", ["graph", "blocks"])
@pytest.mark.parametrize(
    ("name", "value"),
    [("scale", 3), ("scale", 0.5), ("is_on", False)],
    ids=["int", "float", "bool"],
)
def test_between_forward_and_backward(name: str, value: object, by: str) -> None:
    """A recomputation is of the forward as it was."""

    def step(model: nn.Module, _: int) -> torch.Tensor:
        loss = loss_of(SAMPLE(model))
        for layer in model.layers:  # type: ignore[union-attr]
            setattr(layer, name, value)
        loss.backward()
        return loss

    require_trains_equally(lambda: Stack(Switched), SAMPLE, step, steps=2, by=by)


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_each_layer_reads_its_own_number(by: str) -> None:
    def make() -> nn.Module:
        model = Stack(Switched)
        for index, layer in enumerate(model.layers):
            cast("Switched", layer).scale = 1 + index / 8
        return model

    def step(model: nn.Module, number: int) -> torch.Tensor | None:
        for layer in model.layers:  # type: ignore[union-attr]
            layer.scale = layer.scale * (1 + number)
        return backward_step(SAMPLE)(model, number)

    require_trains_equally(make, SAMPLE, step, by=by)


def test_the_number_of_layers_that_run_grows() -> None:
    class Growing(Stack):
        active = 2

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers[: self.active]:
                x = torch.tanh(layer(x))
            return x

    def step(model: nn.Module, number: int) -> torch.Tensor | None:
        model.active = 2 + number  # type: ignore[assignment]
        return backward_step(SAMPLE)(model, number)

    model = require_trains_equally(Growing, SAMPLE, step, recomputed=False, budget="100%")
    assert len(shown(model).plans) == 3


@pytest.mark.long
def test_the_width_of_layers_shrinks() -> None:
    class Slimmable(Stack):
        width = 16

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                assert isinstance(layer, nn.Linear)
                y = functional.linear(x, layer.weight[: self.width], layer.bias[: self.width])
                x = x + functional.pad(torch.tanh(y), (0, 16 - self.width))
            return x

    def step(model: nn.Module, number: int) -> torch.Tensor | None:
        model.width = (16, 8, 4)[number]  # type: ignore[assignment]
        return backward_step(SAMPLE)(model, number)

    require_trains_equally(Slimmable, SAMPLE, step, recomputed=False, budget=10**6)


@pytest.mark.parametrize("by", ["graph", "blocks"])
@pytest.mark.parametrize("is_layer", [False, True], ids=["model", "layer"])
def test_a_forward_that_is_patched_in_its_class(by: str, *, is_layer: bool) -> None:
    class Layer(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)

    class Model(Stack):
        pass

    def of_layer(self: nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self.weight * 2, self.bias)

    def of_model(self: Stack, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = Stack.forward(self, x) * 3
        return y

    before = Layer.forward, Model.forward

    def step(model: nn.Module, number: int) -> torch.Tensor | None:
        is_late = number > 0
        Layer.forward = of_layer if is_late and is_layer else before[0]  # type: ignore[method-assign]
        Model.forward = of_model if is_late and not is_layer else before[1]  # type: ignore[method-assign]
        return backward_step(SAMPLE)(model, number)

    make = functools.partial(Model, lambda: Layer(16, 16))
    require_trains_equally(make, SAMPLE, step, budget=10**6, recomputed=False, by=by)


class Dropping(nn.Linear):
    """Its rate is a number of an operator."""

    rate = 0.1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = functional.gelu(super().forward(x))
        return functional.dropout(y, self.rate, training=True)


@pytest.mark.parametrize("by", ["graph", "blocks"])
def test_a_dropout_rate_of_each_block(by: str) -> None:
    def step(model: nn.Module, number: int) -> torch.Tensor | None:
        for index, layer in enumerate(model.layers):  # type: ignore[arg-type]
            layer.rate = (1 + number) * (1 + index) / 20
        return backward_step(SAMPLE)(model, number)

    model = require_trains_equally(lambda: Stack(lambda: Dropping(16, 16)), SAMPLE, step, by=by)
    assert len(shown(model).plans) == 1
